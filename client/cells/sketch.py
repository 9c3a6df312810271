"""A short summary of a set of patients, by which two sets can be told to be nearly the same.

Every patient is hashed to one of BUCKETS places, and each place holds the sum of its patients'
hashes. Sets that differ in d patients differ in at most 2d places (a changed patient leaves one and
comes to another); so where at least 2d places differ, at least d patients do. The converse may fail
by chance: then a site takes two sets to be nearer than they are, which tells less.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BUCKETS = 1024

Hashes = NDArray[np.uint64]
Sketch = NDArray[np.uint64]  # (BUCKETS,)


def keys_of(secret: bytes) -> Hashes:
    """Four numbers that the hashes are keyed with."""
    return np.frombuffer(hashlib.sha256(b"erosion cells" + secret).digest(), dtype="<u8").copy()


def patient_hashes(
    values: NDArray[np.float64] | NDArray[np.uint8], groups: NDArray[np.int64], keys: Hashes
) -> Hashes:
    """One hash for every patient of rows (n, ...), of all its rows' values; (patients,).

    Patients with equal values have different hashes, by their number among these: a set with one
    more of them differs in one.
    """
    if not len(values):
        return np.zeros(0, dtype=np.uint64)
    return hashes_of_patients(row_hashes(values, keys), groups, keys)


def hashes_of_patients(rows: Hashes, groups: NDArray[np.int64], keys: Hashes) -> Hashes:
    """The same of rows (n,) that have hashes."""
    if not len(rows):
        return np.zeros(0, dtype=np.uint64)
    _, places = np.unique(groups, return_inverse=True)
    patients = np.zeros(int(places.max()) + 1, dtype=np.uint64)
    np.add.at(patients, places, mixed(rows ^ keys[2]))
    return mixed(patients ^ mixed(times_before(patients) ^ keys[3]))


def text_hashes(texts: Sequence[str]) -> Hashes:
    """One hash for every text: (n,)."""
    found = [_of_bytes(text.encode(errors="surrogatepass")) for text in texts]
    return np.array(found, dtype=np.uint64)


def row_hashes(values: NDArray[np.float64] | NDArray[np.uint8], keys: Hashes) -> Hashes:
    """One hash for every row of (n, ...), of its values: (n,)."""
    flat = np.ascontiguousarray(values.reshape(len(values), -1))
    if flat.dtype == np.uint8:
        rows = flat.astype(np.uint8, copy=False)
        return np.array([_of_bytes(row.tobytes()) for row in rows], dtype=np.uint64)
    numbers = np.where(np.isnan(flat), np.nan, flat.astype(np.float64) + 0.0)  # one NaN, one 0
    hashes = np.full(len(numbers), keys[0], dtype=np.uint64)
    for column in numbers.T:
        hashes = mixed(hashes ^ mixed(np.ascontiguousarray(column).view(np.uint64) ^ keys[1]))
    return hashes


def sketch_of(hashes: Hashes) -> Sketch:
    """The summary of a set of patients."""
    places = np.zeros(BUCKETS, dtype=np.uint64)
    np.add.at(places, (hashes % np.uint64(BUCKETS)).astype(np.int64), mixed(hashes))
    return places


def num_differing(one: Sketch, others: NDArray[np.uint64]) -> NDArray[np.int64]:
    """In how many places each of (k, BUCKETS) differs from `one`: (k,)."""
    found: NDArray[np.int64] = (others != one).sum(axis=1)
    return found


def num_shared(one: Sketch, others: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many of `one`'s occupied places each of (k, BUCKETS) has alike: (k,)."""
    found: NDArray[np.int64] = ((others == one) & (one != 0)).sum(axis=1)
    return found


def nearly_same(one: Sketch, others: NDArray[np.uint64], cell: int) -> NDArray[np.bool_]:
    """Which of (k, BUCKETS) may differ from `one` in fewer than a cell of patients: (k,).

    A changed patient changes two places. Sets that have nobody in common are not nearly the same,
    however small they are; a set is the same as itself.
    """
    apart = num_differing(one, others)
    nearly = (apart < 2 * cell) & (num_shared(one, others) > 0)
    found: NDArray[np.bool_] = nearly | (apart == 0)
    return found


def mostly_same(one: Sketch, others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of (k, BUCKETS) have most of the occupied places of both alike: (k,)."""
    occupied = np.maximum((one != 0).sum(), (others != 0).sum(axis=1))
    found: NDArray[np.bool_] = 2 * num_shared(one, others) >= occupied
    return found


def times_before(hashes: Hashes) -> Hashes:
    """Of each (n,), how many equal ones stand before each."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])[: len(ordered)]
    lengths = np.diff(np.r_[starts, len(ordered)])
    counted = np.empty(len(hashes), dtype=np.uint64)
    counted[order] = np.arange(len(hashes)) - np.repeat(starts, lengths)
    return counted


def _of_bytes(row: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little")


def mixed(values: Hashes) -> Hashes:
    """The same hashes, (n,), stirred: splitmix64's finisher: every bit depends on every other."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)
