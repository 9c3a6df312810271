"""The files of a folder that cannot be used: all are named, or left out where that is declared."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.sources.image_targets import SHOWN, faults


class Damaged(str):
    """What is wrong with a file of which nothing can be seen."""


class FaultyFiles:
    """Gathers what is wrong with the files of a folder, to be said at once."""

    def __init__(self, folder: Path, unreadable: Literal["refuse", "leave out"]) -> None:
        """`unreadable`: what becomes of files that are damaged."""
        self._folder, self._unreadable = folder, unreadable
        self._problems: list[str] = []
        self._left_out: dict[int, str] = {}  # index -> what is wrong

    def add(self, index: int, place: str, wrong: str) -> None:
        """A file, by its index and as people find it."""
        if isinstance(wrong, Damaged) and self._unreadable == "leave out":
            self._left_out[index] = f"{place} {wrong}"
        else:
            self.add_problem(f"{place} {wrong}")

    def add_problem(self, problem: str) -> None:
        """Of all files together."""
        self._problems.append(problem)

    def kept(self, num_files: int) -> NDArray[np.int64]:
        """The indices of the other files. Raises DataError with every problem."""
        if self._problems or len(self._left_out) == num_files:
            raise faults(self._folder, self._problems or self.left_out)
        return np.setdiff1d(np.arange(num_files), [*self._left_out])

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is wrong with each of the files that are left out."""
        return tuple(self._left_out.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Of the files that are left out."""
        if not self._left_out:
            return ()
        some = "; ".join(self.left_out[:SHOWN]) + ("; ..." if len(self._left_out) > SHOWN else "")
        return (
            f'{len(self._left_out)} files cannot be read and are left out (unreadable = "leave out"'
            f" under [data]): {some}",
        )
