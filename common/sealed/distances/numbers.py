"""Whole numbers of thousands of bits as rows of bytes."""

from collections.abc import Sequence

import torch
from gmpy2 import mpz
from torch import Tensor


def to_rows(numbers: Sequence[mpz], num_bytes: int) -> Tensor:
    """(len(numbers), num_bytes) uint8, the most significant byte first."""
    content = b"".join(int(number).to_bytes(num_bytes) for number in numbers)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, num_bytes)


def from_rows(rows: Tensor) -> list[mpz]:
    """The numbers of (n, num_bytes) uint8."""
    return [mpz(int.from_bytes(row.numpy().tobytes())) for row in rows]
