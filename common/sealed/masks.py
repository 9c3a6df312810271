"""Masks: the AES-256-CTR keystream of a key as little-endian uint32, added modulo 2^32."""

from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint32]  # numbers modulo 2^32

CHUNK = 1 << 18  # words at a time: 1 MiB, which stays in the cache
_ZEROS = bytes(4 * CHUNK)


def keystream(key: bytes) -> CipherContext:
    """The stream of a key from its beginning: IV 0, because a key is used once."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def add_mask(words: Words, key: bytes, sign: Literal[1, -1]) -> None:
    """words += sign * mask, modulo 2^32, in place."""
    stream = keystream(key)
    buffer = bytearray(4 * CHUNK + 15)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        stream.update_into(memoryview(_ZEROS)[: 4 * len(part)], buffer)
        mask = np.frombuffer(buffer, "<u4", len(part))
        if sign > 0:
            part += mask
        else:
            part -= mask
