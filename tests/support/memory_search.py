"""Looks for what nobody may see: in another process's memory, in files, in captured traffic.

A needle is a few values in a row as bytes. They are looked for wherever they may begin.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

REGION = 1 << 24  # bytes read at a time
WIDTH = 4  # values of a needle: 16 bytes of float32, which nothing else happens to be
PLACES = 12  # needles of one update

Needles = Mapping[str, bytes]  # by what they are


def needles(update: NDArray[np.float32], name: str, times: Mapping[str, float]) -> dict[str, bytes]:
    """Pieces of an update as float32 and float64, and as whole numbers after each of `times`."""
    forms: dict[str, NDArray[np.generic]] = {
        "float32": update.astype("<f4"),
        "float64": update.astype("<f8"),
        **{
            f"whole numbers {by}": np.rint(update.astype(np.float64) * factor).astype("<i4")
            for by, factor in times.items()
        },
    }
    usable = [
        place for place in range(len(update) - WIDTH + 1) if np.all(update[place : place + WIDTH])
    ]
    chosen = usable[:: max(1, len(usable) // PLACES)][:PLACES]
    assert chosen, f"{name}'s update is almost all zeros"
    return {
        f"{name}'s update from {place} as {form}": values[place : place + WIDTH].tobytes()
        for form, values in forms.items()
        for place in chosen
    }


def in_memory(pid: int, sought: Needles) -> set[str]:
    """Which needles are anywhere in a process's memory: of this one's descendants, or root's."""
    return _found(_memory(pid, max(map(len, sought.values()))), sought)


def in_files(folder: Path, sought: Needles) -> set[str]:
    """Which are in files below `folder`."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return _found((path.read_bytes() for path in files), sought)


class _Index:
    """Finds many needles at once: by two bytes, then by four, then whole."""

    def __init__(self, sought: Needles) -> None:
        self._by_anchor: dict[int, list[tuple[str, bytes, int]]] = {}
        for what, needle in sought.items():
            # Four bytes of it; a float64 made of a float32 begins with zeros, as much memory does.
            offset = next(o for o in range(len(needle) - 3) if needle[o] and needle[o + 1])
            anchor = int.from_bytes(needle[offset : offset + 4], "little")
            self._by_anchor.setdefault(anchor, []).append((what, needle, offset))
        self._anchors = np.array(list(self._by_anchor), np.uint32)
        self._low = np.zeros(1 << 16, bool)
        self._low[self._anchors & 0xFFFF] = True

    def found_in(self, content: bytes) -> set[str]:
        """What is in `content`, at any byte."""
        found = set()
        for shift in (0, 1):
            halves = np.frombuffer(content, "<u2", (len(content) - shift) // 2, shift)
            hits = np.flatnonzero(self._low[halves[:-1]])
            anchors = halves[hits].astype(np.uint32) | halves[hits + 1].astype(np.uint32) << 16
            same = np.isin(anchors, self._anchors)
            for hit, anchor in zip(hits[same].tolist(), anchors[same].tolist(), strict=True):
                for what, needle, offset in self._by_anchor[anchor]:
                    begin = shift + 2 * hit - offset
                    if begin >= 0 and content[begin : begin + len(needle)] == needle:
                        found.add(what)
        return found


def _found(contents: Iterator[bytes], sought: Needles) -> set[str]:
    index = _Index(sought)
    return {what for content in contents if len(content) > 3 for what in index.found_in(content)}


def _memory(pid: int, longest: int) -> Iterator[bytes]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - beyond 2^63
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if not rights.startswith("rw") or "[v" in line:
                continue
            start, end = (int(number, 16) for number in place.split("-"))
            for begin in range(start, end, REGION):
                try:
                    memory.seek(begin)
                    yield memory.read(min(REGION + longest, end - begin))
                except (OSError, ValueError, OverflowError):
                    continue  # given back in the meantime
