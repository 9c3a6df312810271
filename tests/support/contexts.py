"""Contexts for building algorithms under test."""

from erosion_common.algorithms.base import BuildContext


def context(rounds: int = 10, num_hospitals: int = 4, **layers: int) -> BuildContext:
    """A study of `rounds`; `layers` gives each named parameter's length, in order."""
    layout: dict[str, slice] = {}
    offset = 0
    for name, length in layers.items():
        layout[name] = slice(offset, offset + length)
        offset += length
    return BuildContext(rounds, num_hospitals, lambda: layout)


CONTEXT = context()
