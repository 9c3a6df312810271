"""`consent.sqlite`: the studies that were put to this site, what was decided, what was answered."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from erosion.common.support.private_database import PrivateDatabase, log_read, note_log_read

VERSION = 1
FILE_NAME = "consent.sqlite"
MOST_PENDING = 100  # studies that wait for a person; beyond, a new one is refused and not kept
FINAL_FIGURES = "evaluate"  # the step of an answer with the final figures

State = Literal["pending", "approved", "declined"]

_TABLES = """
create table if not exists studies (
  digest text primary key,
  name text not null,
  content text not null,
  coordinator text not null,
  asked text not null,
  state text not null,
  decided_by text not null default '',
  decided text not null default ''
);
create table if not exists answers (
  coordinator text not null,
  dataset text not null,
  study text not null,
  run text not null,
  variant text not null,
  arm text not null,
  round integer not null,
  step text not null,
  input text not null,
  answered text not null,
  primary key (coordinator, dataset, study, run, variant, arm, round, step)
);
create index if not exists answers_of_runs
  on answers (coordinator, dataset, run, variant, arm, round, step);
create table if not exists contracts (
  coordinator text not null,
  dataset text not null,
  column_name text not null,
  contract text not null,
  held text not null,
  primary key (coordinator, dataset, column_name, contract)
);
create table if not exists recovered (
  coordinator text not null,
  dataset text not null,
  variant text not null,
  run text not null,
  arm text not null,
  round integer not null,
  step text not null,
  primary key (coordinator, dataset, variant, run, arm, round, step)
);
create table if not exists chosen (
  coordinator text not null,
  dataset text not null,
  study text not null,
  run text not null,
  user text not null,
  variant text not null,
  primary key (coordinator, dataset, study, run, user)
);
create table if not exists kept_since (
  coordinator text not null,
  dataset text not null,
  variant text not null,
  run text not null,
  arm text not null,
  round integer not null,
  exchange integer not null,
  primary key (coordinator, dataset, variant, run, arm)
);
create table if not exists decisions (
  digest text not null,
  state text not null,
  decided_by text not null,
  decided text not null
);
create table if not exists came_of (variant text primary key, study text not null);
create view if not exists given as
  select coordinator, dataset, study, run, variant, arm, round from answers
  union all
  select coordinator, dataset, coalesce(study, variant), run, variant, arm, round
  from recovered left join came_of using (variant);
create table if not exists log_read (log text primary key, line integer not null);
"""


@dataclass(frozen=True, slots=True)
class StudyEntry:
    """One study that was put to this site."""

    digest: str
    name: str
    content: str  # its canonical JSON
    coordinator: str  # who asked first
    asked: str  # when, UTC
    state: State
    decided_by: str  # a person's name, or the rule that decided
    decided: str  # when, UTC; empty while pending


@dataclass(frozen=True, slots=True)
class Answer:
    """What one answer is about. The same question may be answered again, another one may not."""

    study: str  # digest of the approved study
    run: str
    variant: str  # digest of the trial or of the study with its settings chosen; or the study's
    arm: str
    round: int  # 0: for the final figures
    step: str

    @property
    def in_log(self) -> "tuple[LoggedAnswer, LoggedAnswer]":
        """What the log of what was sent knows it by: this program's, and an earlier one's."""
        if self.step == FINAL_FIGURES:
            figures = LoggedAnswer(self.variant, self.run, "", 0, FINAL_FIGURES)
            return figures, figures
        logged = LoggedAnswer(self.variant, self.run, self.arm, self.round, self.step)
        return logged, logged._replace(step=self.step.partition(" ")[0])  # without its place


class LoggedAnswer(NamedTuple):
    """An answer as the log of what was sent knows it, which lacks the question's hash."""

    variant: str
    run: str
    arm: str
    round: int  # 0: final figures, a fold's too
    step: str


@dataclass(frozen=True, slots=True)
class Used:
    """What one coordinator has used up on one data set."""

    studies: int
    runs: int
    rounds: int  # of arms; one counts once, however many messages it takes
    evaluations: int


NOTHING = Used(studies=0, runs=0, rounds=0, evaluations=0)


class ConsentStore:
    """Reads and writes the file; every write is on the disk when it returns. Raises SiteError."""

    def __init__(self, folder: Path) -> None:
        """Open `folder`/consent.sqlite, making both if need be."""
        self.path = folder / FILE_NAME
        self._file = PrivateDatabase(
            self.path,
            _TABLES,
            version=VERSION,
            holds="what this site approved, what it answered and what is left of its budgets",
            without="Nothing is answered without it.",
        )

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def study(self, digest: str) -> StudyEntry | None:
        """The entry of one study."""
        return next(iter(self._studies("where digest = ?", (digest,))), None)

    def studies(self, state: State | None = None) -> list[StudyEntry]:
        """Every study, or those in one state; the latest first."""
        where, values = ("where state = ?", (state,)) if state else ("", ())
        return self._studies(f"{where} order by asked desc, digest", values)

    def decided(self) -> list[StudyEntry]:
        """Every study that was decided about, the latest decision first whatever the clock said."""
        return self._studies("where state != 'pending' order by rowid desc", ())

    def decided_first(self) -> list[StudyEntry]:
        """The same by when each was decided about for the first time, the earliest in front."""
        return self._studies(
            "where state != 'pending' order by coalesce((select min(d.rowid) from decisions d"
            " where d.digest = studies.digest), 0), asked, digest",
            (),
        )

    def num_decisions(self) -> int:
        """How often anything was decided; it grows with each decision, whoever makes it."""
        ((number,),) = self._file.execute("select count(*) from decisions")
        return int(number)

    def put(self, entry: StudyEntry) -> None:
        """Write an entry, in place of an older one of the same digest."""
        values = (
            entry.digest,
            entry.name,
            entry.content,
            entry.coordinator,
            entry.asked,
            entry.state,
            entry.decided_by,
            entry.decided,
        )
        with self._file.transaction():  # a site that answers meanwhile sees all of it, or nothing
            before = self.study(entry.digest)
            if before is not None and before.decided and not self.decisions(entry.digest):
                self._note_decision(before)  # of a program that kept the last one alone
            if entry.decided:
                self._note_decision(entry)
            self._file.execute("insert or replace into studies values (?,?,?,?,?,?,?,?)", values)

    def _note_decision(self, entry: StudyEntry) -> None:
        self._file.execute(
            "insert into decisions values (?,?,?,?)",
            (entry.digest, entry.state, entry.decided_by, entry.decided),
        )

    def decisions(self, digest: str) -> list[tuple[str, str, str]]:
        """What was decided of a study, by whom and when, in order."""
        rows = self._file.execute(
            "select state, decided_by, decided from decisions where digest = ? order by rowid",
            (digest,),
        )
        return [(str(state), str(by), str(at)) for state, by, at in rows]

    def note(self, coordinator: str, dataset: str, answer: Answer, content: str) -> str | None:
        """Note durably that `answer` is given to a question of this hash.

        Returns None where it may be given: it is new, or was given to the same question. Otherwise
        the hash of the question that it was given to.
        """
        if self.noted(coordinator, dataset, answer) is None:
            self._file.execute(
                "insert or ignore into answers values (?,?,?,?,?,?,?,?,?,?)",
                (*_key(coordinator, dataset, answer), content, now()),
            )
        noted = self.noted(coordinator, dataset, answer)
        return None if noted == content else noted

    def noted(self, coordinator: str, dataset: str, answer: Answer) -> str | None:
        """The hash of the question that `answer` was given to; None where it was not given yet.

        Whichever approved study led to the variant then.
        """
        _, _, _, *which = _key(coordinator, dataset, answer)
        found = self._file.execute(
            "select input from answers where coordinator = ? and dataset = ?"
            " and run = ? and variant = ? and arm = ? and round = ? and step = ?",
            (coordinator, dataset, *which),
        )
        return str(found[0][0]) if found else None

    def choose(self, coordinator: str, dataset: str, answer: Answer, user: str) -> bool:
        """Note durably that a run has the settings of `answer`'s variant for this user.

        Returns whether they are those that it had before, or the first.
        """
        key = coordinator, dataset, answer.study, answer.run, user
        self._file.execute(
            "insert or ignore into chosen values (?,?,?,?,?,?)", (*key, answer.variant)
        )
        ((known,),) = self._file.execute(
            "select variant from chosen where coordinator = ? and dataset = ? and study = ?"
            " and run = ? and user = ?",
            key,
        )
        return bool(known == answer.variant)

    def note_kept(
        self,
        coordinator: str,
        dataset: str,
        variant: str,
        run: str,
        arm: str,
        since: tuple[int, int],
    ) -> None:
        """Note durably that the site keeps something of an arm since that (round, exchange)."""
        key = coordinator, dataset, variant, run, arm
        known = self.kept_since(*key)
        if known is None or since < known:
            self._file.execute(
                "insert or replace into kept_since values (?,?,?,?,?,?,?)", (*key, *since)
            )

    def kept_since(
        self, coordinator: str, dataset: str, variant: str, run: str, arm: str
    ) -> tuple[int, int] | None:
        """Since which exchange of which round it does, as (round, exchange); None: it never did."""
        found = self._file.execute(
            "select round, exchange from kept_since where coordinator = ? and dataset = ?"
            " and variant = ? and run = ? and arm = ?",
            (coordinator, dataset, variant, run, arm),
        )
        return (int(found[0][0]), int(found[0][1])) if found else None

    def steps(self, coordinator: str, dataset: str, answer: Answer) -> list[str]:
        """The steps of `answer`'s round that were answered, also those that the log alone knows."""
        *round_, _ = _key(coordinator, dataset, answer)
        logged = coordinator, dataset, *answer.in_log[0][:-1]
        rows = self._file.execute(
            "select step from answers where coordinator = ? and dataset = ? and study = ?"
            " and run = ? and variant = ? and arm = ? and round = ?"
            " union select step from recovered where coordinator = ? and dataset = ?"
            " and variant = ? and run = ? and arm = ? and round = ?",
            (*round_, *logged),
        )
        return [str(step) for (step,) in rows]

    def logged_answers(self) -> set[LoggedAnswer]:
        """Every answer that was noted, whatever coordinator it went to."""
        rows = self._file.execute("select study, run, variant, arm, round, step from answers")
        return {logged for row in rows for logged in Answer(*row).in_log}

    def recover(
        self,
        coordinator: str,
        dataset: str,
        answers: Collection[LoggedAnswer],
        log: Path,
        read_to: int,
        came_of: Mapping[str, str] | None = None,
    ) -> None:
        """Count answers that this log has and this file lacks; it was read up to this line.

        `came_of`: by a variant's digest, that of the approved study, as far as it is known.
        """
        with self._file.transaction():
            self._file.execute_many(
                "insert or ignore into recovered values (?,?,?,?,?,?,?)",
                [(coordinator, dataset, *answer) for answer in answers],
            )
            self._file.execute_many(
                "insert or ignore into came_of values (?,?)", list((came_of or {}).items())
            )
            note_log_read(self._file, log, read_to)

    def note_origin(self, variant: str, study: str) -> None:
        """Count answers of a variant that the log alone knows as the approved study's."""
        self._file.execute(
            "insert or replace into came_of select ?, ?"
            " where exists (select 1 from recovered where variant = ?)",
            (variant, study, variant),
        )

    def log_was_read_to(self, log: Path) -> int:
        """The last line of this log that was held against this file; 0: none."""
        return log_read(self._file, log)

    def is_recovered(self, coordinator: str, dataset: str, answer: Answer) -> bool:
        """Whether the log alone knows of this answer, and so nobody knows what was asked."""
        return any(
            self._file.execute(
                "select 1 from recovered where coordinator = ? and dataset = ? and variant = ?"
                " and run = ? and arm = ? and round = ? and step = ?",
                (coordinator, dataset, *logged),
            )
            for logged in answer.in_log
        )

    def hold(
        self,
        coordinator: str,
        dataset: str,
        contracts: Mapping[str, str],
        earlier: Mapping[str, str],
        most: int,
    ) -> str | None:
        """Note durably that columns are held against these contracts, by name.

        `earlier`: as an earlier version wrote them; one of those stands for all that it may mean.

        Returns None, or the column that was held against `most` others already; then nothing is
        noted.
        """
        with self._file.transaction():
            new: dict[str, str] = {}
            for name, contract in contracts.items():
                known = self._contracts(coordinator, dataset, name)
                if contract in known or earlier.get(name) in known:
                    continue
                if len(known) >= most:
                    return name
                new[name] = contract
            self._file.execute_many(
                "insert into contracts values (?,?,?,?,?)",
                [(coordinator, dataset, n, c, now()) for n, c in new.items()],
            )
        return None

    def most_variants(self, coordinator: str, dataset: str) -> tuple[str, int]:
        """The column that was held against the most contracts, and against how many."""
        rows = self._file.execute(
            "select column_name, count(*) from contracts where coordinator = ? and dataset = ?"
            " group by column_name order by count(*) desc, column_name limit 1",
            (coordinator, dataset),
        )
        return (str(rows[0][0]), int(rows[0][1])) if rows else ("", 0)

    def _contracts(self, coordinator: str, dataset: str, name: str) -> set[str]:
        rows = self._file.execute(
            "select contract from contracts where coordinator = ? and dataset = ?"
            " and column_name = ?",
            (coordinator, dataset, name),
        )
        return {str(contract) for (contract,) in rows}

    def runs(self, coordinator: str, dataset: str, study: str) -> list[str]:
        """The runs of one study that were answered."""
        rows = self._file.execute(
            "select distinct run from given where coordinator = ? and dataset = ? and study = ?"
            " order by run",
            (coordinator, dataset, study),
        )
        return [str(run) for (run,) in rows]

    def used(self, coordinator: str, dataset: str) -> Used:
        """What one coordinator has used up on one data set."""
        key = coordinator, dataset
        ((studies, runs, evaluations),) = self._file.execute(
            "select count(distinct study), count(distinct study || '/' || run),"
            " coalesce(sum(round = 0), 0) from given where coordinator = ? and dataset = ?",
            key,
        )
        ((rounds,),) = self._file.execute(
            "select count(*) from (select distinct run, variant, arm, round from given"
            " where coordinator = ? and dataset = ? and round > 0)",
            key,
        )
        return Used(studies, runs, rounds, evaluations)

    def pairs(self) -> list[tuple[str, str]]:
        """Every coordinator with every data set that it was answered about."""
        rows = self._file.execute(
            "select coordinator, dataset from answers"
            " union select coordinator, dataset from recovered order by 1, 2"
        )
        return [(str(coordinator), str(dataset)) for coordinator, dataset in rows]

    def _studies(self, clause: str, values: Sequence[str]) -> list[StudyEntry]:
        rows = self._file.execute(f"select * from studies {clause}", values)
        entries = [StudyEntry(*row) for row in rows]
        for entry in entries:
            if entry.state not in get_args(State):
                raise self._file.unusable(
                    f"the state of study {entry.digest:.12} is not as it was written"
                )
            # Who approves a digest must have been shown that study.
            if hashlib.sha256(entry.content.encode()).hexdigest() != entry.digest:
                raise self._file.unusable(f"study {entry.digest:.12} is not as it was written")
        return entries


def _key(coordinator: str, dataset: str, answer: Answer) -> tuple[str | int, ...]:
    return (
        coordinator,
        dataset,
        answer.study,
        answer.run,
        answer.variant,
        answer.arm,
        answer.round,
        answer.step,
    )


def place(step: str, exchange: int) -> str:
    """A step by its place in a round: a method may ask for it at several."""
    return f"{step} ({exchange})"


def now() -> str:
    """The time as it is written: UTC, to the second."""
    return datetime.now(UTC).isoformat("T", "seconds")
