"""Reads a safetensors file, with one kind of error for everything that can be wrong with it.

What a run goes on from has a JSON header and a checksum of it and of the tensors: a bit that a disk
lost would otherwise be another number.
"""

import errno
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from erosion_common.support.files import open_named

PIECE_BYTES = 2**20  # read at a time


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors by name. Raises OSError, ValueError (damaged file)."""
    with _opened(path) as file:
        about: dict[str, str] = file.metadata() or {}
        return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None) -> None:
    """Write straight from contiguous tensors' memory, without a copy. Raises OSError."""
    try:
        safetensors.torch.save_file(_apart(tensors), path, metadata=about)
    except safetensors.SafetensorError as problem:  # which hides the OSError in its text
        reason = str(problem).rpartition("I/O error: ")[2]
        raise OSError(errno.EIO, reason, str(path)) from None


def remove_unfinished_tensors(path: Path) -> None:
    """What `write_tensors` left by `path` where this program was killed; nobody writes there."""
    for unfinished in path.parent.glob(".tmp*"):
        unfinished.unlink(missing_ok=True)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


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


def metadata(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the metadata of contiguous tensors, for `read_with_header`.

    One entry, the checksum before the header: safetensors writes several in an order that differs
    from one process to the next, and a resumed run's files are to be equal bit for bit.
    """
    text = json.dumps(header)
    return {"erosion": f"{_checksum(text, tensors)} {text}"}


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


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        content = tensors[name].detach().cpu().reshape(-1).view(torch.uint8)
        found = zlib.crc32(content.numpy().data, zlib.crc32(name.encode(), found))
    return f"{found:08x}"
