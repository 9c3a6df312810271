"""`cells.sqlite`: the figures that left this site, and of which patients they were.

A question about patients who are nearly those of an earlier one gets the earlier one's figures: so
two answers are either the same, or about sets that differ in at least a cell of patients, and their
difference is about no fewer. Nothing is removed; of the patients only keyed sums of hashes are
kept.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.cells.sketch import BUCKETS, Hashes, Sketch, num_differing, sketch_of
from erosion.common.errors import Refusal
from erosion.common.support.private_database import PrivateDatabase

FILE_NAME = "cells.sqlite"
VERSION = 1

_TABLES = """
create table if not exists told (
  number integer primary key,
  kind text not null,
  label text not null,
  sketch blob not null,
  figures text not null
);
"""


class CellBook:
    """What was told, and of whom. Raises SiteError where the file cannot be used."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`/cells.sqlite; None: in memory, and lost with the program."""
        self._file = PrivateDatabase(
            None if folder is None else folder / FILE_NAME,
            _TABLES,
            version=VERSION,
            holds="the figures that left this site",
            without="Nothing is told without it.",
        )

    def is_nearly_told(self, kind: str, label: str, patients: Hashes, cell: int) -> bool:
        """Whether figures were told of nearly the same patients, but not of just these.

        Where not, these are told of from now on.
        """
        sketch = sketch_of(patients)
        with self._file.transaction():
            _, sketches, told = self._rows(kind)
            apart = num_differing(sketch, sketches) if told else np.array([BUCKETS])
            if ((apart > 0) & (apart < 2 * cell)).any():
                return True
            if (apart > 0).all():
                self._add(kind, label, sketch, "")
        return False

    def tell(
        self,
        kind: str,
        label: str,
        patients: Hashes,
        cell: int,
        most: int,
        compute: Callable[[], str],
    ) -> str:
        """The figures of a set of patients: an earlier set's where the two nearly agree.

        `kind` and `label` say what the figures are of. Raises Refusal where `most` sets were told
        of under this label already.
        """
        sketch = sketch_of(patients)
        with self._file.transaction():
            labels, sketches, told = self._rows(kind)
            if told:
                apart = num_differing(sketch, sketches)
                # The nearest, and of those the same label's. A patient may change two places.
                other = np.array([found != label for found in labels])
                nearest = int(np.lexsort((other, apart))[0])
                if apart[nearest] < 2 * cell:
                    return told[nearest]
            if sum(found == label for found in labels) >= most:
                raise Refusal(
                    f"Figures of {most} different sets of patients were told of {label};"
                    f" budget.sets = {most}. Ask the hospital to raise it in its site file."
                )
            figures = compute()
            self._add(kind, label, sketch, figures)
        return figures

    def num_told(self, kind: str) -> dict[str, int]:
        """How many different sets of patients were told of, by label."""
        rows = self._file.execute(
            "select label, count(*) from told where kind = ? group by label", (kind,)
        )
        return {str(label): int(count) for label, count in rows}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _add(self, kind: str, label: str, sketch: Sketch, figures: str) -> None:
        self._file.execute(
            "insert into told (kind, label, sketch, figures) values (?,?,?,?)",
            (kind, label, sketch.tobytes(), figures),
        )

    def _rows(self, kind: str) -> tuple[list[str], NDArray[np.uint64], list[str]]:
        rows = self._file.execute(
            "select label, sketch, figures from told where kind = ? order by number", (kind,)
        )
        sketches = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.uint64)
        return [row[0] for row in rows], sketches.reshape(-1, BUCKETS), [row[2] for row in rows]
