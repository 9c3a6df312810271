"""A hash for each row of a table, of all its columns and not only of those that a study asks for.

By it a row is known again in another study, which asks for other columns.
"""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from erosion.client.dataset.text_table import TextColumn, text_column

RowHashes = NDArray[np.uint64]  # (n,)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no column's hash is lost


def hashes_of_rows(columns: Iterable[TextColumn], num_rows: int) -> RowHashes:
    """One hash for every row of these columns, whatever their order."""
    total = np.zeros(num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            of_texts = np.array([hash_of_text(text) for text in column.texts], dtype=np.uint64)
            total += of_texts[column.codes] * _FACTOR
    return total


def hashes_of_table(columns: Mapping[str, "pa.ChunkedArray"], num_rows: int) -> RowHashes:
    """The same of columns as they were read; those without a text, such as lists, do not count."""

    def readable() -> Iterable[TextColumn]:
        for name, column in columns.items():
            try:
                found = text_column(name, column)
            except pa.ArrowException:
                continue
            # Two columns with the same texts must not be taken for each other.
            yield TextColumn(tuple(f"{name}\0{text}" for text in found.texts), found.codes)

    return hashes_of_rows(readable(), num_rows)


def hash_of_text(text: str) -> int:
    """64 bits."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
