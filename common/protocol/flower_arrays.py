"""Arrays of numbers in Flower's object format, without Flower's spare copies.

Flower stores an array as chunks, each an object that is named by the SHA-256 of its content. Making
one through `Array` copies every value about five times, and reading one four times. Here it is once
each way; what travels is the same, byte for byte. The only module of `common` that uses Flower's
private names.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from torch import Tensor

INLINE_BYTES = 64 * 2**10  # a message up to here travels inside its call, a larger one as objects
RAW_FLOAT32 = "erosion.float32.le"  # a serialisation's name: little-endian values, no header
_KINDS: dict[
    str, tuple[str, np.dtype[Any]]
] = {  # what can travel: dtype -> the serialisation, and numpy's little-endian type
    "float32": (RAW_FLOAT32, np.dtype("<f4")),
    "uint8": ("erosion.uint8", np.dtype("u1")),
    "uint32": ("erosion.uint32.le", np.dtype("<u4")),
    "int64": ("erosion.int64.le", np.dtype("<i8")),
}
_CHUNKS, _PARTS = "_chunks", "_erosion_parts"
_CHUNK = b"ArrayChunk "  # how a chunk's content begins
RECEIVED_BYTES = "_erosion_received_bytes"  # where a reply notes how large it came


class _ReadyChunk(ArrayChunk):
    """A chunk whose content and name are made once, not at every question."""

    def __init__(self, values: memoryview) -> None:
        head = b"ArrayChunk  %d\0" % len(values)
        self._content = b"".join((head, values))
        self._name = hashlib.sha256(self._content).hexdigest()
        super().__init__(memoryview(self._content)[len(head) :])

    def deflate(self) -> bytes:
        return self._content

    @property
    def object_id(self) -> str:
        return self._name


def to_array(tensor: Tensor) -> Array:
    """A Flower Array of `tensor` (any shape), for sending. Raises ValueError for other types."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _KINDS:
        raise ValueError(f"{tensor.dtype} cannot be sent; it must be one of {', '.join(_KINDS)}")
    stype, little = _KINDS[kind]
    values = tensor.detach().cpu().contiguous().numpy().astype(little, copy=False)
    data = values.tobytes() if values.nbytes <= INLINE_BYTES else b""
    array = Array(dtype=kind, shape=tuple(values.shape), stype=stype, data=data)
    if data:
        return array
    view = values.reshape(-1).view(np.uint8).data
    size = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    chunks = [_ReadyChunk(view[i : i + size]) for i in range(0, len(view), size)]
    array.__dict__[_CHUNKS] = [(chunk.object_id, chunk) for chunk in chunks]
    return array


def travels_inline(message: Message) -> bool:
    """Whether a message is small enough to go with its call instead of object by object."""
    if not message.has_content():
        return True
    arrays = [
        array for record in message.content.array_records.values() for array in record.values()
    ]
    return (
        all(array.data for array in arrays)
        and sum(len(array.data) for array in arrays) <= INLINE_BYTES
    )


def to_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """The arrays themselves under their names; ArrayRecord's own constructor copies them."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


class StoredChunk(ArrayChunk):
    """A chunk that lies in a file, whole as an object, and is read each time that it is used."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            head = file.read(64)
        self._path, self._start = path, head.index(b"\0") + 1
        self.num_bytes = path.stat().st_size - self._start

    @property
    def data(self) -> memoryview:  # type: ignore[override]
        """The values, read now."""
        return memoryview(self._path.read_bytes())[self._start :]


def inflate(
    root: str, contents: Mapping[str, bytes | Path], *, most_bytes: float = math.inf
) -> InflatableObject:
    """The object named `root`; arrays in it keep views of `contents` until `to_tensor` reads them.

    A content may be a file that holds it; a chunk's file is read by `to_tensor`. `most_bytes` is
    for all arrays together: one may name a chunk many times, and be far larger than what came.
    Raises OSError for a file, and what Flower raises for contents that do not fit together: treat
    any other exception alike.
    """
    objects: dict[str, InflatableObject] = {}
    read: dict[str, bytes] = {}
    for name, content in contents.items():
        if isinstance(content, Path) and _begins(content, _CHUNK):
            objects[name] = StoredChunk(content)
            continue
        read[name] = content.read_bytes() if isinstance(content, Path) else content
        if read[name].startswith(_CHUNK):
            body = read[name].index(b"\0") + 1
            objects[name] = ArrayChunk(memoryview(read[name])[body:])
    for name, content in read.items():
        if content.startswith(b"Array "):
            objects[name] = _array(content, objects)
    num_bytes = 0
    for name, content in read.items():
        if content.startswith(b"ArrayRecord "):
            arrays = _arrays(content, objects)
            num_bytes += sum(
                _num_bytes(part) for array in arrays.values() for part in _parts(array)
            )
            objects[name] = to_record(arrays)
    if num_bytes > most_bytes:
        raise ValueError(f"arrays of {num_bytes} bytes, at most {most_bytes} are accepted")
    return inflate_object_from_contents(root, read, keep_object_contents=True, objects=objects)


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _array(content: bytes, objects: Mapping[str, InflatableObject]) -> Array:
    _, children, _ = get_object_head_values_from_object_content(content)
    body: dict[str, Any] = json.loads(content[content.index(b"\0") + 1 :])
    chunks = [objects[children[index]] for index in body["arraychunk_ids"]]
    array = Array(dtype=body["dtype"], shape=tuple(body["shape"]), stype=body["stype"], data=b"")
    array.__dict__[_PARTS] = [chunk for chunk in chunks if isinstance(chunk, ArrayChunk)]
    return array


def _arrays(content: bytes, objects: Mapping[str, InflatableObject]) -> dict[str, Array]:
    names: dict[str, str] = json.loads(content[content.index(b"\0") + 1 :])
    arrays = {name: objects[object_id] for name, object_id in names.items()}
    return {name: array for name, array in arrays.items() if isinstance(array, Array)}


def to_tensor(array: Array) -> Tensor:
    """The values of an array in its type and shape. Raises ValueError."""
    stype, little = _KINDS.get(array.dtype, ("?", np.dtype("u1")))
    if array.stype != stype:
        raise ValueError(
            f"{array.dtype} in {array.stype}, expected float32 in {RAW_FLOAT32}, or uint8, uint32"
            " or int64 likewise"
        )
    parts = parts_of(array)
    num_bytes = sum(map(len, parts))
    if any(size < 0 for size in array.shape) or num_bytes != little.itemsize * int(
        np.prod(array.shape, dtype=np.float64)
    ):
        raise ValueError(f"{num_bytes} bytes for shape {array.shape}")
    values = np.empty(num_bytes // little.itemsize, dtype=little)
    raw = values.view(np.uint8).data
    start = 0
    for part in parts:
        data = part.data
        raw[start : start + len(data)] = data
        start += len(data)
    native = values.astype(little.newbyteorder("="), copy=False)
    return torch.from_numpy(native.reshape(array.shape))


class Part(Protocol):
    """A run of an array's bytes; large ones are read when `data` is asked for."""

    @property
    def data(self) -> bytes | memoryview:
        """The bytes."""
        ...

    def __len__(self) -> int:
        """How many."""
        ...


def parts_of(array: Array) -> Sequence[Part]:
    """The bytes of an array, as they came or are about to be sent."""
    chunks = [ArrayChunk(memoryview(array.data))] if array.data else _parts(array)
    return [_Part(chunk) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class _Part:
    chunk: ArrayChunk

    @property
    def data(self) -> memoryview:
        return memoryview(self.chunk.data)

    def __len__(self) -> int:
        return _num_bytes(self.chunk)


def _num_bytes(chunk: ArrayChunk) -> int:
    return chunk.num_bytes if isinstance(chunk, StoredChunk) else len(chunk.data)


def _parts(array: Array) -> list[ArrayChunk]:
    """Of an array that travels in chunks: as it came, or as it is about to be sent."""
    if _PARTS in array.__dict__:
        parts: list[ArrayChunk] = array.__dict__[_PARTS]
        return parts
    return [chunk for _, chunk in array.__dict__.get(_CHUNKS) or ()]
