"""The studies that a hospital was asked about, its decisions, and one answer per question."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from erosion_client.records.private_database import RecordsTable

MOST_PENDING = 100  # studies that wait for a person; beyond, a new one is refused and not kept

State = Literal["pending", "approved", "declined"]


_LATEST = """
select s.digest, s.name, s.content, s.coordinator, s.asked,
  coalesce(d.state, 'pending'), coalesce(d.decided_by, ''), coalesce(d.decided, '')
from studies s left join decisions d
  on d.rowid = (select max(rowid) from decisions where digest = s.digest)
"""


@dataclass(frozen=True, slots=True)
class StudyEntry:
    """One study that this site was asked about, with the latest decision about it."""

    digest: str
    name: str
    content: str  # its canonical JSON
    coordinator: str  # that asked first
    asked: str  # when, UTC
    state: State
    decided_by: str  # a person's name, or the rule that decided; while pending, who approved first
    decided: str  # when, UTC; empty while nobody has said anything


class StudyTable(RecordsTable):
    """Studies and decisions in a hospital's records."""

    def get(self, digest: str) -> StudyEntry | None:
        """Return the entry of one study."""
        return next(iter(self._select("where s.digest = ?", digest)), None)

    def all(self, state: State | None = None) -> list[StudyEntry]:
        """Return every study, or those in one state; the latest first."""
        entries = self._select("order by s.asked desc, s.digest")
        return [entry for entry in entries if state in (None, entry.state)]

    def decided(self) -> list[StudyEntry]:
        """Return every study with a decision, the latest decision first."""
        return self._select("where d.state <> 'pending' order by d.rowid desc")

    def decided_first(self) -> list[StudyEntry]:
        """Return the same, with the study first that was decided about first."""
        return self._select(
            "where d.state <> 'pending' order by (select min(rowid) from decisions"
            " where digest = s.digest and state <> 'pending')"
        )

    def num_decisions(self) -> int:
        """Return the number of decisions."""
        ((number,),) = self._file.execute("select coalesce(max(rowid), 0) from decisions")
        return int(number)

    def put(self, entry: StudyEntry) -> None:
        """Write a new study, and the decision that the entry has."""
        with self._file.transaction():
            self._file.execute(
                "insert or ignore into studies values (?,?,?,?,?)",
                (entry.digest, entry.name, entry.content, entry.coordinator, entry.asked),
            )
            if entry.decided:
                self._file.execute(
                    "insert into decisions values (?,?,?,?)",
                    (entry.digest, entry.state, entry.decided_by, entry.decided),
                )

    def decisions(self, digest: str) -> list[tuple[str, str, str]]:
        """Return the decisions about a study in order: state, person or rule, and time."""
        return self._file.execute(
            "select state, decided_by, decided from decisions where digest = ? order by rowid",
            (digest,),
        )

    def _select(self, clause: str, *values: str) -> list[StudyEntry]:
        entries = [StudyEntry(*row) for row in self._file.execute(f"{_LATEST} {clause}", values)]
        for entry in entries:
            content = hashlib.sha256(entry.content.encode()).hexdigest()
            # A person approves what was shown, and the digest identifies it.
            if entry.state not in get_args(State) or content != entry.digest:
                raise self._file.unusable(f"study {entry.digest:.12} is not as it was written")
        return entries


def now() -> str:
    """Return the current time as it is written: UTC, to the second."""
    return datetime.now(UTC).isoformat("T", "seconds")


FINAL_FIGURES = "evaluate"  # the step of an answer with the final figures


_CHOSEN = "coordinator = ? and dataset = ? and study = ? and run = ? and user = ?"
_THIS = (
    "coordinator = ? and dataset = ? and run = ? and variant = ? and arm = ? and round = ?"
    " and step = ?"
)


Key = tuple[str, str]  # a coordinator, and the data set that it was answered about


@dataclass(frozen=True, slots=True)
class Answer:
    """The identity of one answer. The same question may be answered again, another one may not."""

    study: str  # digest of the approved study
    run: str
    variant: str  # digest of the trial or of the study with its settings chosen; or the study's
    arm: str  # "" for final figures
    round: int  # 0 for final figures
    step: str
    is_fold: bool = False  # predictions of a fold stay here, and count as a round

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What identifies it; several approved studies may lead to one variant."""
        return self.run, self.variant, self.arm, self.round, self.step


@dataclass(frozen=True, slots=True)
class Used:
    """What one coordinator has used up on one data set."""

    studies: int
    runs: int
    rounds: int  # of arms; one counts once, regardless of its number of messages
    evaluations: int


class AnswerTable(RecordsTable):
    """Answers, column contracts and choices in a hospital's records."""

    def note(self, key: Key, answer: Answer, question: str) -> bool:
        """Note durably that `answer` is given to the question of this hash.

        Returns False where it was given to another one.
        """
        self._file.execute(
            "insert or ignore into answers values (?,?,?,?,?,?,?,?,?,?,?)",
            (*key, *answer.key, answer.study, answer.is_fold, question, now()),
        )
        return self.question(key, answer) == question

    def question(self, key: Key, answer: Answer) -> str | None:
        """Return the hash of the question that `answer` was given to; None: not given, or lost."""
        asked = f"select question from answers where {_THIS}"
        found = self._file.execute(asked, (*key, *answer.key))
        return found[0][0] if found else None

    def is_recovered(self, key: Key, answer: Answer) -> bool:
        """Return whether the log alone has the answer, so that its question is not known."""
        lost = f"select 1 from answers where question is null and {_THIS}"
        return bool(self._file.execute(lost, (*key, *answer.key)))

    def num_recovered(self) -> int:
        """Return how many answers the log alone has."""
        ((number,),) = self._file.execute("select count(*) from answers where question is null")
        return int(number)

    def steps(self, key: Key, answer: Answer) -> list[str]:
        """Return the steps answered in `answer`'s round."""
        which = _THIS.removesuffix(" and step = ?")
        rows = self._file.execute(
            f"select step from answers where {which} order by step", (*key, *answer.key[:-1])
        )
        return [str(step) for (step,) in rows]

    def recover(self, key: Key, answers: Iterable[Answer]) -> None:
        """Add answers that only the log has."""
        self._file.execute_many(
            "insert or ignore into answers values (?,?,?,?,?,?,?,?,?,null,?)",
            [(*key, *each.key, each.study, False, now()) for each in answers],
        )

    def note_origin(self, variant: str, study: str) -> None:
        """Count recovered answers of a variant as the approved study's."""
        which = "variant = ? and question is null and study != ?"
        with self._file.transaction():
            known = f"select 1 from answers where {which} limit 1"
            if not self._file.execute(known, (variant, study)):
                return
            self._file.execute(
                f"update answers set study = ? where {which}", (study, variant, study)
            )
            self._file.execute("delete from totals")
            self._file.execute("delete from used")
            self._file.execute(
                "insert into used select coordinator, dataset, study, run,"
                " sum(step_number = 1 and (round > 0 or is_fold)), sum(round = 0 and not is_fold)"
                " from (select *, row_number() over (partition by coordinator, dataset, run,"
                " variant, arm, round order by rowid) as step_number from answers)"
                " group by 1, 2, 3, 4"
            )

    def keys(self) -> set[tuple[str, str, str, int, str]]:
        """Return the keys of all answers, to every coordinator."""
        return {*self._file.execute("select run, variant, arm, round, step from answers")}

    def choose(self, key: Key, answer: Answer, user: str, *, is_part: bool) -> bool:
        """Note durably that a run is answered for this user, with the settings of the variant.

        Returns whether they are those that it had before, or the first. `is_part`: it has none.
        """
        which, variant = (*key, answer.study, answer.run, user), "" if is_part else answer.variant
        found = self._file.execute(f"select variant from chosen where {_CHOSEN}", which)
        known = found[0][0] if found else ""
        if not known and (variant or not found):
            # What answers chose that the log alone has is not known: their run goes on with that.
            others = (
                "select 1 from answers where question is null and coordinator = ? and dataset = ?"
                " and study = ? and run = ? and variant not in (?, study)"
            )
            if variant and self._file.execute(others, (*which[:4], variant)):
                return False
            self._file.execute(
                "insert or replace into chosen values (?,?,?,?,?,?)", (*which, variant)
            )
        return is_part or known in ("", variant)

    def is_answered_for(self, key: Key, study: str, run: str, user: str) -> bool:
        """Return whether that run of the study was answered for this user."""
        asked = f"select 1 from chosen where {_CHOSEN}"
        return bool(self._file.execute(asked, (*key, study, run, user)))

    def num_runs_for(self, key: Key, study: str, user: str) -> int:
        """Return how many runs of one study were answered for this user."""
        ((number,),) = self._file.execute(
            "select count(*) from chosen where coordinator = ? and dataset = ? and study = ?"
            " and user = ?",
            (*key, study, user),
        )
        return int(number)

    def note_kept(self, key: Key, variant: str, run: str, arm: str, to: tuple[int, int]) -> None:
        """Note that the site keeps state of an arm up to that (round, exchange).

        The first of them is on the disk when this returns; a power cut may lose another one.
        """
        known = self.kept(key, variant, run, arm)
        since = to if known is None else min(known[:2], to)
        if known != (*since, *to):
            with self.transaction(flushed=known is None or since != known[:2]):
                self._file.execute(
                    "insert or replace into kept values (?,?,?,?,?,?,?,?,?)",
                    (*key, variant, run, arm, *since, *to),
                )

    def kept(self, key: Key, variant: str, run: str, arm: str) -> tuple[int, int, int, int] | None:
        """Return (round, exchange) since which, then to which state is kept; None: never."""
        found = self._file.execute(
            "select since_round, since_exchange, round, exchange from kept where coordinator = ?"
            " and dataset = ? and variant = ? and run = ? and arm = ?",
            (*key, variant, run, arm),
        )
        return found[0] if found else None

    def hold(self, key: Key, contracts: Mapping[str, str], most: int) -> str | None:
        """Note durably that columns are checked by these contracts, by name.

        Returns None, or the column already checked by `most` others; then nothing is noted.
        """
        new = []
        with self._file.transaction():
            for name, contract in contracts.items():
                rows = self._file.execute(
                    "select contract from contracts where coordinator = ? and dataset = ?"
                    " and column_name = ?",
                    (*key, name),
                )
                if (contract,) in rows:
                    continue
                if len(rows) >= most:
                    return name
                new.append((*key, name, contract, now()))
            self._file.execute_many("insert into contracts values (?,?,?,?,?)", new)
        return None

    def most_variants(self, key: Key) -> tuple[str, int]:
        """Return the column checked by the most contracts, and their number."""
        rows = self._file.execute(
            "select column_name, count(*) from contracts where coordinator = ? and dataset = ?"
            " group by column_name order by count(*) desc, column_name limit 1",
            key,
        )
        return rows[0] if rows else ("", 0)

    def runs(self, key: Key, study: str) -> list[str]:
        """Return the runs of one study that were answered."""
        rows = self._file.execute(
            "select run from used where coordinator = ? and dataset = ? and study = ? order by run",
            (*key, study),
        )
        return [str(run) for (run,) in rows]

    def has_run(self, key: Key, study: str, run: str) -> bool:
        """Return whether that run of the study was answered."""
        found = self._file.execute(
            "select 1 from used where coordinator = ? and dataset = ? and study = ? and run = ?",
            (*key, study, run),
        )
        return bool(found)

    def used(self, key: Key) -> Used:
        """Return what one coordinator has used up on one data set."""
        found = self._file.execute(
            "select studies, runs, rounds, evaluations from totals where coordinator = ?"
            " and dataset = ?",
            key,
        )
        return Used(*found[0]) if found else Used(0, 0, 0, 0)

    def pairs(self) -> list[tuple[str, str]]:
        """Return every coordinator with every data set that it received answers about."""
        return self._file.execute("select coordinator, dataset from totals order by 1, 2")


def place(step: str, exchange: int) -> str:
    """Name a step by its place in a round: a method may ask for it at several."""
    return f"{step} ({exchange})"
