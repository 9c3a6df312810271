"""Arrays of numbers as Flower Arrays whose bytes are not copied before somebody asks for them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

RAW_FLOAT32 = "erosion.float32.le"  # a serialisation's name: little-endian values, no header
_KINDS: dict[
    str, tuple[str, np.dtype[Any]]
] = {  # what can travel: dtype -> the serialisation, and numpy's little-endian type
    "float32": (RAW_FLOAT32, np.dtype("<f4")),
    "uint8": ("erosion.uint8", np.dtype("u1")),
    "uint32": ("erosion.uint32.le", np.dtype("<u4")),
    "int64": ("erosion.int64.le", np.dtype("<i8")),
}


class BufferArray(Array):
    """An Array over memory that is there already; Flower's own holds a copy as `bytes`."""

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, buffer: memoryview) -> None:
        """`buffer`: the serialised values, contiguous, as bytes."""
        self._buffer = buffer
        super().__init__(dtype, shape, stype, b"")

    @property
    def buffer(self) -> memoryview:
        """The serialised values, not copied."""
        return self._buffer

    @property
    def data(self) -> bytes:
        """The serialised values, copied now: for whoever uses Flower's own interface."""
        return bytes(self._buffer)

    @data.setter
    def data(self, value: bytes) -> None:
        if value:  # Flower's constructor sets what it was given, which was nothing
            self._buffer = memoryview(value)

    def __deepcopy__(self, _memo: object) -> Array:
        return Array(self.dtype, self.shape, self.stype, self.data)


# By this name Flower's own programs read an array; to them there is no difference.
BufferArray.__qualname__ = Array.__qualname__


def buffer_of(array: Array) -> memoryview:
    """The serialised values of any Array, without a copy where that can be."""
    if isinstance(array, BufferArray):
        return array.buffer
    return memoryview(array.data)


def to_array(tensor: Tensor) -> Array:
    """A Flower Array of `tensor` (any shape), for sending; it shares the tensor's memory.

    Raises ValueError for a type that cannot travel.
    """
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _KINDS:
        raise ValueError(f"{tensor.dtype} cannot be sent; it must be one of {', '.join(_KINDS)}")
    stype, little = _KINDS[kind]
    values = tensor.detach().cpu().contiguous().numpy().astype(little, copy=False)
    raw = values.reshape(-1).view(np.uint8)
    return BufferArray(kind, tuple(values.shape), stype, raw.data)


def to_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """The arrays themselves under their names; ArrayRecord's own constructor copies them."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def to_tensor(array: Array) -> Tensor:
    """The values of an array in its type and shape, in the memory that they came in.

    Raises ValueError.
    """
    stype, little = _KINDS.get(array.dtype, ("?", np.dtype("u1")))
    if array.stype != stype:
        raise ValueError(
            f"{array.dtype} in {array.stype}, expected float32 in {RAW_FLOAT32}, or uint8, uint32"
            " or int64 likewise"
        )
    buffer, size = buffer_of(array), little.itemsize
    if any(n < 0 for n in array.shape) or buffer.nbytes != size * math.prod(array.shape):
        raise ValueError(f"{buffer.nbytes} bytes for shape {array.shape}")
    values = np.frombuffer(buffer, dtype=little).astype(little.newbyteorder("="), copy=False)
    if not values.flags.writeable:  # of `bytes`, which torch must not write to
        values = values.copy()
    return torch.from_numpy(values.reshape(array.shape))
