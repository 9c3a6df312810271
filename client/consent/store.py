"""`consent.sqlite`: the studies that were put to this site, what was decided, what was answered.

SQLite because two programs use it at once (the site, and `erosion review`), and because an answer
must be noted durably before it leaves, whatever happens to the machine.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from erosion.common.errors import SiteError
from erosion.common.support.private_files import make_private_folder

VERSION = 1
FILE_NAME = "consent.sqlite"
MOST_PENDING = 100  # studies that wait for a person; beyond, a new one is refused and not kept
WAIT_SECONDS = 20.0  # for the other program to finish its write

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
create table if not exists contracts (
  coordinator text not null,
  dataset text not null,
  column_name text not null,
  contract text not null,
  held text not null,
  primary key (coordinator, dataset, column_name, contract)
);
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


@dataclass(frozen=True, slots=True)
class Used:
    """What one coordinator has used up on one data set."""

    studies: int
    runs: int
    rounds: int  # answers to steps of rounds
    evaluations: int


class ConsentStore:
    """Reads and writes the file; every write is on the disk when it returns. Raises SiteError."""

    def __init__(self, folder: Path) -> None:
        """Open `folder`/consent.sqlite, making both if need be."""
        self.path = folder / FILE_NAME
        with self._explained():
            if not folder.exists():
                make_private_folder(folder)
            is_new = not self.path.exists()
            self._db = sqlite3.connect(
                self.path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            if is_new:
                self.path.chmod(0o600)
            self._db.execute("pragma synchronous = full")
            (version,) = self._db.execute("pragma user_version").fetchone()
            if version not in (0, VERSION):
                raise SiteError(
                    f"{self.path} has version {version}; this program writes {VERSION}. Use the"
                    " version of erosion that wrote it."
                )
            self._db.executescript(_TABLES)
            self._db.execute(f"pragma user_version = {VERSION}")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def study(self, digest: str) -> StudyEntry | None:
        """The entry of one study."""
        return next(iter(self._studies("where digest = ?", (digest,))), None)

    def studies(self, state: State | None = None) -> list[StudyEntry]:
        """Every study, or those in one state; the latest first."""
        where, values = ("where state = ?", (state,)) if state else ("", ())
        return self._studies(f"{where} order by asked desc, digest", values)

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
        with self._explained():
            self._db.execute("insert or replace into studies values (?,?,?,?,?,?,?,?)", values)

    def note(self, coordinator: str, dataset: str, answer: Answer, content: str) -> str | None:
        """Note durably that `answer` is given to a question of this hash.

        Returns None where it may be given: it is new, or was given to the same question. Otherwise
        the hash of the question that it was given to.
        """
        with self._explained():
            self._db.execute(
                "insert or ignore into answers values (?,?,?,?,?,?,?,?,?,?)",
                (*_key(coordinator, dataset, answer), content, now()),
            )
        noted = self.noted(coordinator, dataset, answer)
        return None if noted == content else noted

    def noted(self, coordinator: str, dataset: str, answer: Answer) -> str | None:
        """The hash of the question that `answer` was given to; None where it was not given yet."""
        with self._explained():
            found = self._db.execute(
                "select input from answers where coordinator = ? and dataset = ? and study = ?"
                " and run = ? and variant = ? and arm = ? and round = ? and step = ?",
                _key(coordinator, dataset, answer),
            ).fetchone()
        return None if found is None else str(found[0])

    def hold(
        self, coordinator: str, dataset: str, contracts: Mapping[str, str], most: int
    ) -> str | None:
        """Note durably that columns are held against these contracts, by name.

        Returns None, or the column that was held against `most` others already; then nothing is
        noted.
        """
        with self._explained():
            self._db.execute("begin immediate")
            try:
                full = None
                for name, contract in contracts.items():
                    known = self._contracts(coordinator, dataset, name)
                    if contract not in known and len(known) >= most:
                        full = name
                        break
                if full is None:
                    self._db.executemany(
                        "insert or ignore into contracts values (?,?,?,?,?)",
                        [(coordinator, dataset, n, c, now()) for n, c in contracts.items()],
                    )
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
        return full

    def most_variants(self, coordinator: str, dataset: str) -> tuple[str, int]:
        """The column that was held against the most contracts, and against how many."""
        with self._explained():
            row = self._db.execute(
                "select column_name, count(*) from contracts where coordinator = ? and dataset = ?"
                " group by column_name order by count(*) desc, column_name limit 1",
                (coordinator, dataset),
            ).fetchone()
        return ("", 0) if row is None else (str(row[0]), int(row[1]))

    def _contracts(self, coordinator: str, dataset: str, name: str) -> set[str]:
        rows = self._db.execute(
            "select contract from contracts where coordinator = ? and dataset = ?"
            " and column_name = ?",
            (coordinator, dataset, name),
        ).fetchall()
        return {str(contract) for (contract,) in rows}

    def runs(self, coordinator: str, dataset: str, study: str) -> list[str]:
        """The runs of one study that were answered."""
        with self._explained():
            rows = self._db.execute(
                "select distinct run from answers where coordinator = ? and dataset = ?"
                " and study = ? order by run",
                (coordinator, dataset, study),
            ).fetchall()
        return [str(run) for (run,) in rows]

    def used(self, coordinator: str, dataset: str) -> Used:
        """What one coordinator has used up on one data set."""
        with self._explained():
            row = self._db.execute(
                "select count(distinct study), count(distinct study || '/' || run),"
                " coalesce(sum(round > 0), 0), coalesce(sum(round = 0), 0)"
                " from answers where coordinator = ? and dataset = ?",
                (coordinator, dataset),
            ).fetchone()
        return Used(*row)

    def pairs(self) -> list[tuple[str, str]]:
        """Every coordinator with every data set that it was answered about."""
        with self._explained():
            rows = self._db.execute(
                "select distinct coordinator, dataset from answers order by 1, 2"
            ).fetchall()
        return [(str(coordinator), str(dataset)) for coordinator, dataset in rows]

    def _studies(self, clause: str, values: Sequence[str]) -> list[StudyEntry]:
        with self._explained():
            rows = self._db.execute(f"select * from studies {clause}", tuple(values)).fetchall()
        return [StudyEntry(*row) for row in rows]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            raise SiteError(
                f"{self.path}, which holds what this site approved and answered, cannot be used"
                f" ({problem}). Nothing is answered without it. Check the disk and the permissions"
                " of its folder (compute.state in the site file); if the file is damaged, restore"
                " it from a backup: deleting it forgets every approval and every budget."
            ) from None


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


def now() -> str:
    """The time as it is written: UTC, to the second."""
    return datetime.now(UTC).isoformat("T", "seconds")
