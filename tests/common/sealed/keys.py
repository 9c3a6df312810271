"""Paillier keys for tests: one of each size, because making one takes a while."""

from functools import cache

from erosion_common.sealed.paillier import NoiseMaker, PaillierPrivateKey, new_private_key


@cache
def paillier_key(bits: int = 2048) -> PaillierPrivateKey:
    """The same key each time."""
    return new_private_key(bits)


@cache
def _maker() -> NoiseMaker:
    return NoiseMaker(paillier_key())


def noise() -> int:
    """Fresh noise of that key."""
    return _maker().make()
