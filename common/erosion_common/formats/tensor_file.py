"""Reads a safetensors file, with one kind of error for everything that can be wrong with it.

What a run goes on from has a JSON header and a checksum of it and of the tensors: a bit that a disk
lost would otherwise be another number.
"""

import ctypes
import json
import mmap
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from erosion_common.support.files import naming, open_named

PIECE_BYTES = 2**20  # read or written at a time
_C = ctypes.CDLL(None)
_TYPES = {  # as the format names them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors by name. Raises OSError, ValueError (damaged file)."""
    with _opened(path) as file:
        about: dict[str, str] = file.metadata() or {}
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    about: dict[str, str] | None,
    unchanged: Collection[str] = (),
) -> None:
    """Write straight from contiguous tensors' memory, without a copy. Raises OSError.

    `unchanged`: those that are as another file has them, see `parts_of`.
    """
    header: dict[str, Any] = {} if about is None else {"__metadata__": about}
    names, end = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)), 0
    for name in names:  # the widest numbers first, so that all begin at a multiple of their width
        tensor, begin, end = tensors[name], end, end + tensors[name].nbytes
        place = {"data_offsets": [begin, end], "shape": list(tensor.shape)}
        header[name] = {"dtype": _TYPES[tensor.dtype], **place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file, naming(path):
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.writelines(_pieces(tensors[name], name in unchanged))


def parts_of(vector: Tensor) -> Iterator[Tensor]:
    """Yield a contiguous vector in parts of PIECE_BYTES.

    Of a file that is mapped, and that nothing here has changed, each part leaves the memory when
    the next is asked for. A change would be lost.
    """
    is_mapped = vector.nbytes > PIECE_BYTES and _is_mapped(vector)
    values = PIECE_BYTES // vector.element_size()
    for at in range(0, len(vector), values):
        yield (part := vector[at : at + values])
        if is_mapped:  # from the beginning of a page, as the system wants it
            start = part.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            length = part.data_ptr() + part.nbytes - start
            _C.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def _is_mapped(tensor: Tensor) -> bool:
    """Return whether its memory is a file's: any other would be lost if it were let go."""
    with open("/proc/self/maps", "rb") as places:  # noqa: PTH123
        for place in places:
            span, _, _, _, inode, *_ = place.split()
            first, _, end = span.partition(b"-")
            if int(first, 16) <= tensor.data_ptr() < int(end, 16):
                return inode != b"0"
    return False


def _pieces(tensor: Tensor, is_unchanged: bool) -> Iterator[memoryview]:
    flat = tensor.detach().cpu().reshape(-1).view(torch.uint8)
    return (part.numpy().data for part in (parts_of(flat) if is_unchanged else [flat]))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with open_named(path):  # a pipe would be waited for
        pass
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    # Of types that PyTorch does not have safetensors raises what it likes.
    except (safetensors.SafetensorError, LookupError, TypeError, AttributeError) as problem:
        raise ValueError(str(problem)) from None


def metadata(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], unchanged: Collection[str] = ()
) -> dict[str, str]:
    """Return the metadata of contiguous tensors, for `read_with_header`.

    One entry, the checksum before the header: safetensors writes several in an order that differs
    from one process to the next, and a resumed run's files are to be equal bit for bit.
    """
    text = json.dumps(header)
    return {"erosion": f"{_checksum(text, tensors, unchanged)} {text}"}


def read_with_header(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors by name. Raises OSError, ValueError (damaged file).

    They are mapped, so that each takes memory only once it is read.
    """
    about, tensors = read_tensors(path)
    header, checksum, text = _header_in(about)
    if checksum != _checksum_in(path, text):
        raise ValueError("its checksum is not that of its content, so it was changed or damaged")
    return header, tensors


def read_header(path: Path) -> dict[str, Any]:
    """Return the header alone, without its checksum tested. Raises as `read_with_header`."""
    with _opened(path) as file:
        about: dict[str, str] = file.metadata() or {}
    header, _, _ = _header_in(about)
    return header


def _header_in(about: Mapping[str, str]) -> tuple[dict[str, Any], str, str]:
    try:
        checksum, _, text = about["erosion"].partition(" ")
        header = json.loads(text)
    except KeyError:
        raise ValueError("it has no header of this program") from None
    except RecursionError as problem:
        raise ValueError(str(problem)) from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header, checksum, text


def _checksum_in(path: Path, text: str) -> str:
    """Return the same of a file's tensors, read piece by piece: a map would stay in memory."""
    found = zlib.crc32(text.encode())
    with path.open("rb", buffering=0) as file:
        length = int.from_bytes(file.read(8), "little")
        places = json.loads(file.read(length))
        places.pop("__metadata__", None)
        for name in sorted(places):
            begin, end = places[name]["data_offsets"]
            found = zlib.crc32(name.encode(), found)
            file.seek(8 + length + begin)
            for at in range(begin, end, PIECE_BYTES):
                found = zlib.crc32(file.read(min(PIECE_BYTES, end - at)), found)
    return f"{found:08x}"


def _checksum(text: str, tensors: Mapping[str, Tensor], unchanged: Collection[str]) -> str:
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        found = zlib.crc32(name.encode(), found)
        for piece in _pieces(tensors[name], name in unchanged):
            found = zlib.crc32(piece, found)
    return f"{found:08x}"
