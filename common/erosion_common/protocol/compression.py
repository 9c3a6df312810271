"""Vectors of float32 as 16-bit or 8-bit numbers, and back: the same on every machine.

`int8` cuts a vector into blocks of BLOCK values. A block with largest magnitude m is sent as its
scale s = m / 127 and the nearest whole multiples of s, from -127 to 127, so that no value is off by
more than s / 2. (Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, 2016.)
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Compression = Literal["none", "float16", "bfloat16", "int8"]
BLOCK = 256  # values that share a scale: 4 bytes for 256, that is 1.6 % in addition to their own
LARGEST = 127  # code of an 8-bit number, and with the other sign the smallest
_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A compressed vector."""

    kind: Compression
    codes: Tensor  # (n,) uint8, the numbers' bytes; (2n,) of 16-bit numbers
    scales: Tensor | None = None  # (ceil(n / BLOCK),) float32, of 8-bit numbers


def pack(vector: Tensor, kind: Compression) -> Packed:
    """Compress (n,) float32. Values that are not finite come out as such."""
    if kind in _HALVES:
        limit = torch.finfo(_HALVES[kind]).max
        halves = vector.clamp(-limit, limit).to(_HALVES[kind])  # NaN stays; infinite does not
        halves = torch.where(vector.isinf(), vector.to(_HALVES[kind]), halves)
        return Packed(kind, halves.contiguous().view(torch.uint8))
    if kind != "int8":
        raise ValueError(f"{kind!r} compresses nothing")
    blocks = _in_blocks(vector)
    largest = blocks.abs().amax(dim=1)
    scales = largest / LARGEST  # NaN and infinity come through
    overflows = (scales * LARGEST).isinf() & largest.isfinite()  # where the division rounded up
    scales = torch.where(overflows, scales.nextafter(torch.zeros(())), scales)
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).unsqueeze(1)
    codes = (blocks / steps).round_().clamp_(-LARGEST, LARGEST).nan_to_num_(0.0)
    flat = codes.to(torch.int8).view(torch.uint8).reshape(-1)[: len(vector)]
    return Packed(kind, flat.contiguous(), scales)


def unpack(packed: Packed, dim: int) -> Tensor:
    """Return the vector: (dim,) float32. Raises ValueError for another number of values."""
    codes, scales = packed.codes, packed.scales
    if codes.dtype != torch.uint8 or codes.dim() != 1:
        raise ValueError("codes that are no bytes")
    width = 2 if packed.kind in _HALVES else 1
    if len(codes) != width * dim:
        raise ValueError(f"{len(codes)} bytes of codes, expected {width * dim}")
    if packed.kind in _HALVES:
        return codes.view(_HALVES[packed.kind]).to(torch.float32)
    num_blocks = -(-dim // BLOCK)
    if scales is None or scales.dtype != torch.float32 or scales.shape != (num_blocks,):
        raise ValueError(f"scales that are not {num_blocks} float32 numbers, one for each block")
    if not bool((scales >= 0).all()) or not bool(torch.isfinite(scales).all()):
        raise ValueError("a scale that is negative or not finite")
    values = _in_blocks(codes.view(torch.int8).to(torch.float32)) * scales.unsqueeze(1)
    return values.reshape(-1)[:dim]


def compress(vector: Tensor, kind: Compression) -> tuple[Tensor, Packed | None]:
    """Return the vector as the other side gets it, and its compressed form, if any."""
    if kind == "none" or not len(vector) or not bool(torch.isfinite(vector).all()):
        return vector, None  # what is not finite travels as it is: it is for the screening to see
    packed = pack(vector, kind)
    return unpack(packed, len(vector)), packed


def compress_with_feedback(
    vector: Tensor, error: Tensor | None, kind: Compression
) -> tuple[Tensor, Packed | None, Tensor | None]:
    """Compress an update; the error is added to the next one.

    `error`: of the updates before, None at first. Returns also the new error.
    (Seide et al., 1-Bit Stochastic Gradient Descent, 2014; Karimireddy et al., Error Feedback Fixes
    SignSGD, 2019.)
    """
    if kind == "none":
        return vector, None, error
    wanted = vector if error is None or error.shape != vector.shape else vector + error
    received, packed = compress(wanted, kind)
    if packed is None:  # nothing that could be sent: what was left over is kept for the next
        return vector, None, error
    return received, packed, wanted - received


def _in_blocks(vector: Tensor) -> Tensor:
    """Return (ceil(n / BLOCK), BLOCK), the last block filled up with zeros."""
    missing = -len(vector) % BLOCK
    return torch.nn.functional.pad(vector, (0, missing)).reshape(-1, BLOCK)


KINDS: tuple[Compression, ...] = get_args(Compression)
