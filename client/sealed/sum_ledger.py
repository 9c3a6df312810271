"""The uses of a site's updates: on disk before anything that depends on one leaves."""

from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from erosion.common.errors import Refusal, RunOver
from erosion.common.support.private_database import PrivateDatabase, log_read, note_log_read

NAME = "sealed-sums.sqlite"

_TABLES = """
create table if not exists uses (what blob primary key, use blob);
create table if not exists answers (
  study text not null,
  run text not null,
  round integer not null,
  step text not null,
  given integer not null default 0,
  in_log integer not null default 0,
  primary key (study, run, round, step)
);
create table if not exists log_read (log text primary key, line integer not null);
"""


class Place(NamedTuple):
    """A round of a run, whatever the attempt."""

    study: str  # digest
    run: str
    round: int


class SumLedger:
    """Remembers for good; two programs on one folder see the same. Not for several threads."""

    def __init__(self, folder: Path | None) -> None:
        """A file in `folder`; None: in memory, which is for simulations. Raises SiteError."""
        self._file = PrivateDatabase(
            None if folder is None else folder / NAME,
            _TABLES,
            version=1,
            holds="which sums this site's updates were in",
            without="It takes no part in sealed rounds without it, because an update might enter a"
            " second sum.",
        )

    def transaction(self) -> AbstractContextManager[None]:
        """All that one answer is noted by, or nothing; on disk when it ends."""
        return self._file.transaction()

    def commit(self, what: bytes, use: bytes, why_not: str) -> None:
        """Note the use of `what`; Refusal with `why_not` where it was used for something else."""
        self._file.execute("insert or ignore into uses values (?, ?)", (what, use))
        ((known,),) = self._file.execute("select use from uses where what = ?", (what,))
        if known != use:
            raise Refusal(why_not)

    def answer(self, place: Place, step: str) -> None:
        """Note that a leg of a round is about to be answered.

        Raises Refusal where the log has more answers than this file: what they were is forgotten.
        """
        forgotten = self._file.execute(
            "select 1 from answers where study = ? and run = ? and round = ? and in_log > given",
            place,
        )
        if forgotten:
            raise RunOver(
                f"This site took part in round {place.round} of this run before its record of sums"
                " was restored or lost, and no longer knows in which sum: start a new run."
            )
        self._file.execute(
            "insert into answers (study, run, round, step, given) values (?, ?, ?, ?, 1)"
            " on conflict do update set given = given + 1",
            (*place, step),
        )

    def recover(self, answers: Counter[tuple[Place, str]], log: Path, read_to: int) -> int:
        """Take in what this log has since it was read last, now up to the line `read_to`.

        Returns of how many rounds this file has forgotten an answer.
        """
        with self._file.transaction():
            self._file.execute_many(
                "insert into answers (study, run, round, step, in_log) values (?, ?, ?, ?, ?)"
                " on conflict do update set in_log = in_log + excluded.in_log",
                [(*place, step, number) for (place, step), number in answers.items()],
            )
            note_log_read(self._file, log, read_to)
        ((forgotten,),) = self._file.execute(
            "select count(*) from (select distinct study, run, round from answers"
            " where in_log > given)"
        )
        return int(forgotten)

    def log_was_read_to(self, log: Path) -> int:
        """The last line of this log that was held against this file; 0: none."""
        return log_read(self._file, log)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
