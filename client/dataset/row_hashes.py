"""A hash of all source data of each row of a table, or of each image.

It covers all columns, not only those that a study asks for, and pixels as stored. By it a row is
recognised in another study, which uses other columns or another image size.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.text_table import TextColumn, shortened

RowHashes = NDArray[np.uint64]  # (n,)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no column's hash is lost


def hashes_of_rows(columns: Iterable[TextColumn], num_rows: int) -> RowHashes:
    """Return one hash per row of these columns, independent of their order."""
    total = np.zeros(num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            of_texts = np.array([hash_of_text(text) for text in column.texts], dtype=np.uint64)
            total += of_texts[column.codes] * _FACTOR
    return total


def hashes_of_table(columns: Mapping[str, TextColumn], num_rows: int) -> RowHashes:
    """Return the same, distinguishing two columns with the same texts."""
    return hashes_of_rows(
        (
            TextColumn(tuple(f"{name}\0{shortened(text)}" for text in column.texts), column.codes)
            for name, column in columns.items()
        ),
        num_rows,
    )


def hashes_of_arrays(arrays: Iterable[tuple[str, NDArray[Any]]], num_rows: int) -> RowHashes:
    """Return one hash per index of these named arrays (n, ...), independent of their order."""
    total = np.zeros(num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, array in arrays:
            said = hash_of_text(name)
            # Several numbers per index are hashed as bytes; those of a text depend on the longest.
            is_raw = array.ndim > 1 and array.dtype.kind in "biuf"
            total += np.fromiter(
                (
                    hash_of_image(said, [np.ascontiguousarray(value).data])
                    if is_raw
                    else hash_of_text(f"{name}\0{value.tolist()}")
                    for value in array
                ),
                dtype=np.uint64,
                count=num_rows,
            )
    return total


def hash_of_image(said: int, pixels: Iterable[bytes | memoryview]) -> int:
    """Return 64 bits of an image's parts, contiguous pixels, and the hash of its metadata."""
    digest = hashlib.blake2b(said.to_bytes(8, "little"), digest_size=8)
    for part in pixels:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def hash_of_text(text: str) -> int:
    """Return 64 bits of a hash."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
