"""Paillier keys for tests: one of each size, because making one takes a while."""

from functools import cache

from erosion.common.sealed.paillier import PrivateKey, new_private_key


@cache
def paillier_key(bits: int = 2048) -> PrivateKey:
    """The same key each time."""
    return new_private_key(bits)
