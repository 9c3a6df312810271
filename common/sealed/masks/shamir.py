"""Secrets in n shares of which t give the secret and t - 1 nothing (Shamir 1979)."""

import secrets
from collections.abc import Mapping, Sequence

P = 2**256 + 297  # a prime just above the secrets, which have 32 bytes
SECRET_BYTES, SHARE_BYTES = 32, 33


def threshold(num_sites: int) -> int:
    """t = floor(2n/3) + 1: so many that no two groups can be told different things."""
    return 2 * num_sites // 3 + 1


def split(secret: bytes, needed: int, places: Sequence[int]) -> list[bytes]:
    """Shares for the places (from 1), of which any `needed` give the secret of 32 bytes."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(P) for _ in range(needed - 1))]
    return [_value(coefficients, place).to_bytes(SHARE_BYTES) for place in places]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret from as many shares, by place, as it needs.

    Raises ValueError where they give none: too few, or one is wrong.
    """
    total = 0
    for place, share in shares.items():
        numerator = denominator = 1
        for other in shares:
            if other != place:
                numerator = numerator * -other % P
                denominator = denominator * (place - other) % P
        total += int.from_bytes(share) * numerator * pow(denominator, -1, P)
    secret = total % P
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not fit together")
    return secret.to_bytes(SECRET_BYTES)


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % P
    return value
