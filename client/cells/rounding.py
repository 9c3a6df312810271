"""The stated rule by which counts and figures are rounded before they leave a site.

A count below the smallest cell leaves as 0, any other as a multiple of the cell. A mean leaves as a
multiple of the deviation times cell / n: what a cell of patients, one deviation off, would move it
by. A deviation leaves as a power of two with exponents that far apart. Whether a figure goes up or
down to its grid is drawn from the site's secret, with the odds that keep it right on average, so
nobody else knows how far it went.

Every step is a power of two, so that the grids of different n lie within each other.
"""

import hashlib
import hmac
from collections.abc import Mapping
from math import floor, log2

from erosion.common.protocol.summary import relative_step


def draw(secret: bytes, *words: str | bytes) -> float:
    """A number in [0, 1) that depends on the secret and the words alone."""
    message = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (w.encode() if isinstance(w, str) else w for w in words)
    )
    digest = hmac.digest(secret, message, hashlib.sha256)
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def rounded_count(count: int, cell: int, at: float) -> int:
    """0 for fewer than a cell of patients, else a multiple of it. `at`: a draw in [0, 1)."""
    return cell * floor(count / cell + at) if count >= cell else 0


def rounded_parts(parts: Mapping[str, int], cell: int, at: float) -> dict[str, int]:
    """Each part as `rounded_count` has it, so that their sum is that of all parts of a cell.

    They are rounded as the running total passes the multiples of the cell.
    """
    total, told = 0, {}
    for name, count in parts.items():
        before = floor(total / cell + at)
        total += count if count >= cell else 0
        told[name] = cell * (floor(total / cell + at) - before)
    return told


def rounded(value: float, step: float, at: float) -> float:
    """The multiple of `step` below or above; the value itself where there is no step."""
    return step * floor(value / step + at) if step > 0 else value


def rounded_deviation(deviation: float, count: int, cell: int, at: float) -> float:
    """A power of two; 0 where there is no deviation."""
    if deviation <= 0:
        return 0.0
    return float(2.0 ** rounded(log2(deviation), relative_step(count, cell), at))
