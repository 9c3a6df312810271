"""Vectors of float32 as 16-bit or 8-bit numbers, and back: the same on every machine.

`int8` cuts a vector into blocks of BLOCK values. A block with largest magnitude m is sent as its
scale s = m / 127 and the nearest whole multiples of s, from -127 to 127, so that no value is off by
more than s / 2. (Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, 2016.)

A model may take most of a machine's memory: vectors are worked on in parts, and the only new array
of a vector's length is the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from erosion_common.aggregation.vectors import is_finite

Compression = Literal["none", "float16", "bfloat16", "int8"]
BLOCK = 256  # values that share a scale: 4 bytes for 256, that is 1.6 % in addition to their own
LARGEST = 127  # code of an 8-bit number, and with the other sign the smallest
PART = 1024 * BLOCK  # values in hand at a time: the processor's cache holds a few times as many
_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A compressed vector."""

    kind: Compression
    codes: Tensor  # (n,) uint8, the numbers' bytes; (2n,) of 16-bit numbers
    scales: Tensor | None = None  # (ceil(n / BLOCK),) float32, of 8-bit numbers

    def __len__(self) -> int:
        return self.codes.numel() // (2 if self.kind in _HALVES else 1)


def sent_arrays(vector: Tensor | Packed | None, name: str = "") -> dict[str, Tensor]:
    """Return the arrays that travel for a vector of that name."""
    if not isinstance(vector, Packed):
        return {} if vector is None else {name: vector}
    scales = {} if vector.scales is None else {f"{name}.scales": vector.scales}
    return {f"{name}.{vector.kind}": vector.codes, **scales}


def unpacked(vector: Tensor | Packed) -> Tensor:
    """Return the vector as the other side gets it, (n,) float32; of a compressed one a new one."""
    return unpack(vector, len(vector)) if isinstance(vector, Packed) else vector


def pack(vector: Tensor, kind: Compression) -> Packed:
    """Compress (n,) float32. Values that are not finite come out as such."""
    packed = _to_fill(len(vector), kind)
    for place in _parts(len(vector)):
        _pack_part(vector[place], packed, place)
    return packed


def unpack(packed: Packed, dim: int) -> Tensor:
    """Return the vector: (dim,) float32. Raises ValueError for another number of values."""
    vector = torch.empty(len(checked(packed, dim)))
    for place in _parts(dim):
        _unpack_part(packed, place, vector[place])
    return vector


def checked(packed: Packed, dim: int) -> Packed:
    """Return it; raises ValueError where it cannot be unpacked to (dim,)."""
    codes, scales = packed.codes, packed.scales
    if codes.dtype != torch.uint8 or codes.dim() != 1:
        raise ValueError("codes that are no bytes")
    width = 2 if packed.kind in _HALVES else 1
    if len(codes) != width * dim:
        raise ValueError(f"{len(codes)} bytes of codes, expected {width * dim}")
    num_blocks = -(-dim // BLOCK)
    if packed.kind not in _HALVES:
        if scales is None or scales.dtype != torch.float32 or scales.shape != (num_blocks,):
            raise ValueError(
                f"scales that are not {num_blocks} float32 numbers, one for each block"
            )
        if not bool((scales >= 0).all()) or not bool(torch.isfinite(scales).all()):
            raise ValueError("a scale that is negative or not finite")
    return packed


def compress(vector: Tensor, kind: Compression) -> Tensor | Packed:
    """Return what is sent for the vector: itself, where the study does not compress."""
    if kind == "none" or not len(vector) or not is_finite(vector):
        return vector  # what is not finite travels as it is: it is for the screening to see
    return pack(vector, kind)


def compress_with_feedback(
    vector: Tensor, error: Tensor | None, kind: Compression
) -> tuple[Tensor | Packed, Tensor | None]:
    """Compress an update, and return the new error, which is added to the next one.

    `error`: of the updates before, None at first. The new one takes the memory of `vector`.
    (Seide et al., 1-Bit Stochastic Gradient Descent, 2014; Karimireddy et al., Error Feedback Fixes
    SignSGD, 2019.)
    """
    if kind == "none":
        return vector, error
    if error is not None and error.shape != vector.shape:
        error = None
    parts = list(_parts(len(vector)))
    if not parts or not all(is_finite(_wanted(vector, error, place)) for place in parts):
        return vector, error  # nothing that could be sent: what was left over stays for the next
    packed = _to_fill(len(vector), kind)
    received = torch.empty(min(PART, len(vector)))
    for place in parts:
        wanted, got = _wanted(vector, error, place), received[: place.stop - place.start]
        _pack_part(wanted, packed, place)
        _unpack_part(packed, place, got)
        torch.sub(wanted, got, out=vector[place])
    return packed, vector


def _wanted(vector: Tensor, error: Tensor | None, place: slice) -> Tensor:
    return vector[place] if error is None else vector[place] + error[place]


def _parts(dim: int) -> Iterator[slice]:
    """Yield the parts of a vector, whole blocks but for the last."""
    return (slice(start, min(dim, start + PART)) for start in range(0, dim, PART))


def _to_fill(dim: int, kind: Compression) -> Packed:
    if kind in _HALVES:
        return Packed(kind, torch.empty(2 * dim, dtype=torch.uint8))
    if kind != "int8":
        raise ValueError(f"{kind!r} compresses nothing")
    return Packed(kind, torch.empty(dim, dtype=torch.uint8), torch.empty(-(-dim // BLOCK)))


def _pack_part(vector: Tensor, packed: Packed, place: slice) -> None:
    if (half := _HALVES.get(packed.kind)) is not None:
        halves, limit = packed.codes.view(half)[place].copy_(vector), torch.finfo(half).max
        least, most = (float(extreme) for extreme in vector.aminmax())
        if not (least >= -limit and most <= limit):  # what was infinite stays infinite
            torch.where(vector.isinf(), halves, halves.clamp(-limit, limit), out=halves)
        return
    blocks = _in_blocks(vector)
    largest = blocks.abs().amax(dim=1)
    scales = largest / LARGEST  # NaN and infinity come through
    overflows = (scales * LARGEST).isinf() & largest.isfinite()  # where the division rounded up
    scales = torch.where(overflows, scales.nextafter(torch.zeros(())), scales)
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).unsqueeze(1)
    codes = (blocks / steps).round_().clamp_(-LARGEST, LARGEST).nan_to_num_(0.0)
    packed.codes.view(torch.int8)[place].copy_(codes.view(-1)[: len(vector)])
    assert packed.scales is not None
    packed.scales[_blocks_at(place)] = scales


def _unpack_part(packed: Packed, place: slice, vector: Tensor) -> None:
    if (half := _HALVES.get(packed.kind)) is not None:
        vector.copy_(packed.codes.view(half)[place])
        return
    assert packed.scales is not None
    values = _in_blocks(packed.codes.view(torch.int8)[place].to(torch.float32))
    values *= packed.scales[_blocks_at(place)].unsqueeze(1)
    vector.copy_(values.view(-1)[: len(vector)])


def _blocks_at(place: slice) -> slice:
    return slice(place.start // BLOCK, -(-place.stop // BLOCK))


def _in_blocks(vector: Tensor) -> Tensor:
    """Return (ceil(n / BLOCK), BLOCK), the last block filled up with zeros."""
    missing = -len(vector) % BLOCK
    return torch.nn.functional.pad(vector, (0, missing)).reshape(-1, BLOCK)


KINDS: tuple[Compression, ...] = get_args(Compression)
