"""What answers have cost patients: privacy, sealed sums, and figures about sets of patients.

A question about patients who are nearly those of an earlier one gets the earlier one's figures: so
two answers are either equal, or about sets that differ in at least a cell of patients, and their
difference is about no fewer. Disjoint sets are never nearly the same. Nothing is removed; of the
patients only keyed hashes are kept: sums of them, and one for each row that was trained on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from erosion_client.disclosure.patient_sets import (
    BUCKETS,
    Hashes,
    PatientCohort,
    Sketch,
    mostly_same,
    nearly_same,
    num_differing,
    sketch_of,
)
from erosion_client.records.answers import now
from erosion_client.records.private_database import RecordsTable
from erosion_common.errors import Refusal, RunOver, SiteError

_RECOVERED = "known from the log alone"  # not the hash of any reply


@dataclass(frozen=True, slots=True)
class Release:
    """One update of one hospital, with noise."""

    dataset: str  # data set of the patients
    study: str  # digest
    run: str
    arm: str
    round: int  # from 1
    strength: float  # its cost; see the accountant


@dataclass(frozen=True, slots=True)
class Spent:
    """Strengths of past updates, each including the following ones."""

    in_all: float  # by any study on these data
    by_study: float
    by_run: float


class PrivacyTable(RecordsTable):
    """Updates with noise in a hospital's records; a patient's loss counts all coordinators.

    An update is paid for before it leaves. A repeated request is free, but its update must be the
    same: other noise on the same sum, or the same noise on another one, discloses more than was
    paid for.
    """

    def reply_of(self, release: Release) -> str | None:
        """Return the hash of the reply that left for it; None where none did."""
        rows = self._file.execute(
            "select reply from releases where dataset = ? and study = ? and run = ? and arm = ?"
            " and round = ?",
            (release.dataset, release.study, release.run, release.arm, release.round),
        )
        return str(rows[0][0]) if rows else None

    def spent(self, dataset: str, study: str = "", run: str = "") -> Spent:
        """Return what has left of these data, of it for the study, and of that in the run."""
        ((in_all, by_study, by_run),) = self._file.execute(
            "select coalesce(sum(strength), 0),"
            " coalesce(sum(strength * (study = ?)), 0),"
            " coalesce(sum(strength * (study = ? and run = ?)), 0)"
            " from releases where dataset = ?",
            (study, study, run, dataset),
        )
        return Spent(float(in_all), float(by_study), float(by_run))

    def pay(self, release: Release, reply: str) -> None:
        """Note the release; `reply` is the hash of the reply about to leave."""
        self._file.execute(
            "insert into releases values (?,?,?,?,?,?,?,?)", (*astuple(release), reply, now())
        )

    def recover(self, releases: Iterable[Release]) -> int:
        """Add those that only the log has, and return their number."""
        lacking = 0
        for release in releases:
            if self.reply_of(release) is None:
                self.pay(release, _RECOVERED)
                lacking += 1
        return lacking


class RoundPlace(NamedTuple):
    """A round of a run, in every attempt."""

    study: str  # digest
    run: str
    round: int


class SumTable(RecordsTable):
    """The sealed sums that updates were in, on the disk before an answer leaves."""

    def commit(self, what: bytes, use: bytes, why_not: str) -> None:
        """Note the use of `what`; Refusal with `why_not` where it was used for something else."""
        self._file.execute("insert or ignore into update_uses values (?, ?)", (what, use))
        ((known,),) = self._file.execute("select use from update_uses where what = ?", (what,))
        if known != use:
            raise Refusal(why_not)

    def answer(self, place: RoundPlace, step: str) -> None:
        """Note that a phase of a round is about to be answered."""
        lost = self._file.execute(
            "select 1 from sealed_answers where study = ? and run = ? and round = ?"
            " and in_log > given",
            place,
        )
        if lost:
            raise RunOver(
                f"This site took part in round {place.round} of this run before its records were"
                " restored or lost, and no longer knows in which sum: start a new run."
            )
        self._file.execute(
            "insert into sealed_answers (study, run, round, step, given) values (?, ?, ?, ?, 1)"
            " on conflict do update set given = given + 1",
            (*place, step),
        )

    def recover(self, answers: Counter[tuple[RoundPlace, str]]) -> int:
        """Add the log's new answers; return in how many rounds these records lack one."""
        self._file.execute_many(
            "insert into sealed_answers (study, run, round, step, in_log) values (?, ?, ?, ?, ?)"
            " on conflict do update set in_log = in_log + excluded.in_log",
            [(*place, step, number) for (place, step), number in answers.items()],
        )
        ((lost,),) = self._file.execute(
            "select count(*) from (select distinct study, run, round from sealed_answers"
            " where in_log > given)"
        )
        return int(lost)


_Told = tuple[list[str], NDArray[np.uint64], list[str]]  # labels, sketches (k, BUCKETS), figures


@dataclass(frozen=True, slots=True)
class _Near:
    """Disclosures about nearly the same patients."""

    figures: str
    is_same: bool  # about just these


def _nearest(sketch: Sketch, label: str, told: _Told, cell: int) -> _Near | None:
    """Return those of the nearest set, and the same label's; None where none is near."""
    labels, sketches, figures = told
    others = np.array([found != label for found in labels], dtype=bool)
    near = nearly_same(sketch, sketches, cell)
    # Another column's values may by chance agree with some of a small set.
    near &= ~others | mostly_same(sketch, sketches)
    if not near.any():
        return None
    apart = num_differing(sketch, sketches)
    place = int(np.lexsort((others, apart, ~near))[0])
    return _Near(figures[place], bool(apart[place] == 0))


class DisclosureTable(RecordsTable):
    """Disclosures, and their patients. Raises SiteError."""

    def is_nearly_disclosed(
        self, kinds: Mapping[str, Hashes], label: str, cell: int, *, is_noted: bool
    ) -> bool:
        """Return whether figures of nearly the same patients have left, but none of just these.

        `kinds`: the patients by each kind of hash, any of which may make them nearly the same. If
        they are not and are noted, they count as having left from now on, and so do the other kinds
        of those that are known by their values.
        """
        sketches = {kind: sketch_of(patients) for kind, patients in kinds.items()}
        with self.transaction():
            told = {kind: self._rows(kind)[1] for kind in sketches}
            same = {kind: (told[kind] == sketch).all(1) for kind, sketch in sketches.items()}
            near = {
                kind: bool((nearly_same(sketch, told[kind], cell) & ~same[kind]).any())
                for kind, sketch in sketches.items()
            }
            is_disclosed = bool(same[next(iter(kinds))].any())  # figures of exactly these values
            if any(near.values()) and not is_disclosed:
                return True
            for kind, sketch in sketches.items():
                if is_noted and not (near[kind] or same[kind].any()):
                    self._add(kind, label, sketch, "")
        return False

    def disclose(
        self,
        kinds: Mapping[str, Hashes],
        label: str,
        cell: int,
        most: int,
        compute: Callable[[], str],
        *,
        called: str = "",
    ) -> str:
        """Return the figures of a set of patients: an earlier set's where the two nearly agree.

        `kinds`: the patients by each kind of hash, the first before the next; with `label` they
        identify the figures. Raises Refusal where `most` sets were disclosed under this label
        already; `called`: what the study calls it.
        """
        sketches = {kind: sketch_of(patients) for kind, patients in kinds.items()}
        with self.transaction():
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
                    f"Figures of {called} have left for {most} different sets of patients;"
                    f" budget.sets = {most}",
                    remedy="Ask the hospital to raise it in its site file.",
                )
            else:
                figures = compute()
            # Just these patients are known by one kind of hash, and so by the others, too.
            if not near or any(found.is_same for found in near.values()):
                for kind, sketch in sketches.items():
                    if kind not in near:
                        self._add(kind, label, sketch, figures)
        return figures

    def num_disclosed(self, kind: str) -> dict[str, int]:
        """Return of how many different sets of patients figures have left, by label."""
        rows = self._file.execute(
            "select label, count(*) from disclosures where kind = ? group by label", (kind,)
        )
        return {str(label): int(count) for label, count in rows}

    def num_cohorts(self) -> int:
        """Return from how many different sets of patients updates were computed."""
        ((count,),) = self._file.execute("select count(*) from cohorts")
        return int(count)

    def damaged(self, what: str) -> SiteError:
        """Return the error for a file in which `what` is not as it was written."""
        return self._file.unusable(f"{what} is not as it was written")

    def _add(self, kind: str, label: str, sketch: Sketch, figures: str) -> None:
        self._file.execute(
            "insert into disclosures (kind, label, sketch, figures) values (?,?,?,?)",
            (kind, label, sketch.tobytes(), figures),
        )

    def _rows(self, kind: str) -> _Told:
        rows = self._file.execute(
            "select label, sketch, figures from disclosures where kind = ? order by number", (kind,)
        )
        if any(len(row[1]) != 8 * BUCKETS for row in rows):
            raise self.damaged("a sketch of patients")
        sketches = np.frombuffer(b"".join(row[1] for row in rows), dtype=np.uint64)
        return [row[0] for row in rows], sketches.reshape(-1, BUCKETS), [row[2] for row in rows]

    def cohorts(self) -> list[PatientCohort]:
        """Return the sets of patients that updates were computed from, the oldest first."""
        rows = self._file.execute(
            "select hashes, whole_rows, patients from cohorts order by number"
        )
        if any(len(kept) % 8 for row in rows for kept in row):
            raise self.damaged("a set of patients")
        return [
            PatientCohort(
                tuple(np.frombuffer(kind, dtype=np.uint64) for kind in (values, whole) if kind),
                np.frombuffer(patients, dtype=np.int64),
            )
            for values, whole, patients in rows
        ]

    def add_cohort(self, trained: PatientCohort) -> None:
        """Add another set, within a transaction."""
        values, *whole = (hashes.tobytes() for hashes in trained.hashes)
        self._file.execute(
            "insert into cohorts (hashes, whole_rows, patients) values (?,?,?)",
            (values, b"".join(whole), trained.patients.astype(np.int64).tobytes()),
        )
