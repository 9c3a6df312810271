"""`cells.sqlite`: the figures that left this site, and of which patients they were.

A question about patients who are nearly those of an earlier one gets the earlier one's figures: so
two answers are either the same, or about sets that differ in at least a cell of patients, and their
difference is about no fewer. Sets that have nobody in common are never nearly the same. Nothing is
removed; of the patients only keyed sums of hashes are kept.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.cells.sketch import (
    BUCKETS,
    Hashes,
    Sketch,
    mostly_same,
    nearly_same,
    num_differing,
    sketch_of,
)
from erosion.client.cells.trained_sets import TrainedSet
from erosion.common.errors import Refusal, SiteError
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
create table if not exists made_with (one integer primary key, secret text not null);
create table if not exists trained (
  number integer primary key,
  hashes blob not null,
  whole_rows blob not null,
  patients blob not null
);
"""


_Told = tuple[list[str], NDArray[np.uint64], list[str]]  # labels, sketches (k, BUCKETS), figures


@dataclass(frozen=True, slots=True)
class _Near:
    """What was told of nearly the same patients."""

    figures: str
    is_same: bool  # of just these


def _nearest(sketch: Sketch, label: str, told: _Told, cell: int) -> _Near | None:
    """Of the nearest set, and of those the same label's; None where none is near."""
    labels, sketches, figures = told
    others = np.array([found != label for found in labels], dtype=bool)
    near = nearly_same(sketch, sketches, cell)
    # Another column's values may agree by chance with a few of a small set.
    near &= ~others | mostly_same(sketch, sketches)
    if not near.any():
        return None
    apart = num_differing(sketch, sketches)
    place = int(np.lexsort((others, apart, ~near))[0])
    return _Near(figures[place], bool(apart[place] == 0))


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

    def check_secret(self, name: str) -> None:
        """Raise SiteError where the patients were noted down by another secret than that of `name`.

        `name`: a hash of the site's secret, without which no patient would be known again.
        """
        with self.locked():
            self._file.execute("insert or ignore into made_with values (1, ?)", (name,))
            ((known,),) = self._file.execute("select secret from made_with")
        if known != name:
            raise SiteError(
                f"{self._file.path}, which holds the figures that left this site, was made with"
                " another secret.key than lies beside it, and would know no patient again. Restore"
                " both from one backup. Where the secret is lost, move the whole folder away: the"
                " site begins anew, and its approvals and budgets with it."
            )

    def is_nearly_told(
        self, kinds: Mapping[str, Hashes], label: str, cell: int, *, is_noted: bool
    ) -> bool:
        """Whether figures of nearly the same patients have left, but none of just these.

        `kinds`: the patients by each kind of hash; by any of these may they be nearly the same.
        Where they are not and are to be noted, they count as having left from now on, and those
        that are known by their values by the other kinds, too.
        """
        sketches = {kind: sketch_of(patients) for kind, patients in kinds.items()}
        with self.locked():
            told = {kind: self._rows(kind)[1] for kind in sketches}
            same = {kind: (told[kind] == sketch).all(1) for kind, sketch in sketches.items()}
            near = {
                kind: bool((nearly_same(sketch, told[kind], cell) & ~same[kind]).any())
                for kind, sketch in sketches.items()
            }
            is_told = bool(same[next(iter(kinds))].any())  # figures of the very same values
            if any(near.values()) and not is_told:
                return True
            for kind, sketch in sketches.items():
                if is_noted and not (near[kind] or same[kind].any()):
                    self._add(kind, label, sketch, "")
        return False

    def tell(
        self,
        kinds: Mapping[str, Hashes],
        label: str,
        cell: int,
        most: int,
        compute: Callable[[], str],
    ) -> str:
        """The figures of a set of patients: an earlier set's where the two nearly agree.

        `kinds`: the patients by each kind of hash, the first before the next; they and `label` say
        what the figures are of. Raises Refusal where `most` sets were told of under this label
        already.
        """
        sketches = {kind: sketch_of(patients) for kind, patients in kinds.items()}
        with self.locked():
            told = {kind: self._rows(kind) for kind in kinds}
            near = {
                kind: found
                for kind, sketch in sketches.items()
                if (found := _nearest(sketch, label, told[kind], cell)) is not None
            }
            if near:
                figures = next(iter(near.values())).figures
            elif max(labels.count(label) for labels, _, _ in told.values()) >= most:
                raise Refusal(
                    f"Figures of {label} have left for {most} different sets of patients;"
                    f" budget.sets = {most}. Ask the hospital to raise it in its site file."
                )
            else:
                figures = compute()
            # Just these patients are known by one kind of hash: so they are by the others, too.
            if not near or any(found.is_same for found in near.values()):
                for kind, sketch in sketches.items():
                    if kind not in near:
                        self._add(kind, label, sketch, figures)
        return figures

    def num_told(self, kind: str) -> dict[str, int]:
        """Of how many different sets of patients figures have left, by label."""
        rows = self._file.execute(
            "select label, count(*) from told where kind = ? group by label", (kind,)
        )
        return {str(label): int(count) for label, count in rows}

    def num_trained_sets(self) -> int:
        """How many different sets of patients updates were computed of."""
        ((count,),) = self._file.execute("select count(*) from trained")
        return int(count)

    def damaged(self, what: str) -> SiteError:
        """The error for a file in which `what` is not as it was written."""
        return self._file.unusable(f"{what} is not as it was written")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _add(self, kind: str, label: str, sketch: Sketch, figures: str) -> None:
        self._file.execute(
            "insert into told (kind, label, sketch, figures) values (?,?,?,?)",
            (kind, label, sketch.tobytes(), figures),
        )

    def _rows(self, kind: str) -> _Told:
        rows = self._file.execute(
            "select label, sketch, figures from told where kind = ? order by number", (kind,)
        )
        if any(len(row[1]) != 8 * BUCKETS for row in rows):
            raise self.damaged("a sketch of patients")
        sketches = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.uint64)
        return [row[0] for row in rows], sketches.reshape(-1, BUCKETS), [row[2] for row in rows]

    def trained_sets(self) -> list[TrainedSet]:
        """The sets of patients that updates were computed of, the oldest first."""
        rows = self._file.execute(
            "select hashes, whole_rows, patients from trained order by number"
        )
        if any(len(kept) % 8 for row in rows for kept in row):
            raise self.damaged("a set of patients")
        return [
            TrainedSet(
                tuple(np.frombuffer(kind, dtype=np.uint64) for kind in (values, whole) if kind),
                np.frombuffer(patients, dtype=np.int64),
            )
            for values, whole, patients in rows
        ]

    def add_trained_set(self, trained: TrainedSet) -> None:
        """Keep another one, within `locked`."""
        values, *whole = (hashes.tobytes() for hashes in trained.hashes)
        self._file.execute(
            "insert into trained (hashes, whole_rows, patients) values (?,?,?)",
            (values, b"".join(whole), trained.patients.astype(np.int64).tobytes()),
        )

    def locked(self) -> AbstractContextManager[None]:
        """Of two programs, only one looks and tells at a time. Raises SiteError."""
        return self._file.transaction()
