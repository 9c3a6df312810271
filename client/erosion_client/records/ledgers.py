"""The privacy cost of updates with noise, and the sealed sums that updates were in."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import NamedTuple

from erosion_client.records.answers import now
from erosion_client.records.private_database import RecordsTable
from erosion_common.errors import Refusal, RunOver

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
