"""Masks: the AES-256-CTR keystream of a key as little-endian uint32, added modulo 2^32."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint32]  # numbers modulo 2^32

CHUNK = 1 << 16  # words at a time: 256 KiB, so that words and masks stay in the cache
_BLOCK = 16  # bytes of AES; the cipher wants room for all but one of them behind what it writes
_ZEROS = memoryview(bytes(4 * CHUNK))


def keystream(key: bytes) -> CipherContext:
    """The stream of a key from its beginning: IV 0, because a key is used once."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()


def chunks(length: int) -> Iterator[slice]:
    """The parts in which long vectors are gone through."""
    for start in range(0, length, CHUNK):
        yield slice(start, min(length, start + CHUNK))


def norm_of(vector: NDArray[np.floating[Any]]) -> float:
    """|v| of (dim,), added up in float64 without a copy of it."""
    square = 0.0
    for place in chunks(len(vector)):
        part = vector[place].astype(np.float64)
        square += float(np.dot(part, part))
    return math.sqrt(square)


class Mask:
    """A mask that is added, or taken off, part by part from its beginning."""

    def __init__(self, key: bytes, sign: int) -> None:
        """`sign`: +1 where it is added, -1 where it is taken off."""
        self._stream, self._add = keystream(key), sign > 0
        self._buffer = bytearray(4 * CHUNK + _BLOCK - 1)
        self._words = np.frombuffer(self._buffer, "<u4", CHUNK)

    def apply(self, part: Words) -> None:
        """The mask's next words to or from `part`, up to CHUNK of them, in place."""
        self._stream.update_into(_ZEROS[: 4 * len(part)], self._buffer)
        mask = self._words[: len(part)]
        if self._add:
            part += mask
        else:
            part -= mask


def apply_masks(words: Words, masks: Sequence[Mask]) -> None:
    """All masks from their beginnings, in place and in one pass."""
    for place in chunks(len(words)):
        for mask in masks:
            mask.apply(words[place])
