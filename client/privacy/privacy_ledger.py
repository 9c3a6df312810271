"""`privacy.sqlite`: every update with noise that left, and what it cost the patients.

An update is paid for before it leaves. Asked for again it is free, but it must be the very same:
other noise on the same sum, or the same noise on another sum, would tell more than was paid for.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from erosion.client.consent.store import now
from erosion.common.errors import Refusal
from erosion.common.support.private_database import PrivateDatabase, log_read, note_log_read

VERSION = 1
FILE_NAME = "privacy.sqlite"
_RECOVERED = "known from the log alone"  # the hash of no reply

_TABLES = """
create table if not exists releases (
  dataset text not null,
  study text not null,
  run text not null,
  arm text not null,
  round integer not null,
  strength real not null,
  reply text not null,
  released text not null,
  primary key (dataset, study, run, arm, round)
);
create table if not exists log_read (log text primary key, line integer not null);
"""


@dataclass(frozen=True, slots=True)
class Release:
    """One update of one hospital, with noise."""

    dataset: str  # that the patients are in
    study: str  # digest
    run: str
    arm: str
    round: int  # from 1
    strength: float  # what it costs; see the accountant


@dataclass(frozen=True, slots=True)
class Spent:
    """Strengths of what has left, each including the ones after it."""

    in_all: float  # by any study on these data
    by_study: float
    by_run: float


class PrivacyLedger:
    """Every write is on the disk when it returns. Raises SiteError where the file cannot be used.

    It knows no coordinator: a patient's loss is the same whoever asks.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder`/privacy.sqlite; None: in memory, which is for simulations."""
        self._file = PrivateDatabase(
            None if folder is None else folder / FILE_NAME,
            _TABLES,
            version=VERSION,
            holds="what this site's patients have paid of their privacy",
            without="No update with noise leaves without it.",
        )

    def transaction(self) -> AbstractContextManager[None]:
        """Of two programs, only one looks and pays at a time."""
        return self._file.transaction()

    def reply_of(self, release: Release) -> str | None:
        """The hash of what left for it; None where nothing did."""
        rows = self._file.execute(
            "select reply from releases where dataset = ? and study = ? and run = ? and arm = ?"
            " and round = ?",
            (release.dataset, release.study, release.run, release.arm, release.round),
        )
        return str(rows[0][0]) if rows else None

    def spent(self, dataset: str, study: str = "", run: str = "") -> Spent:
        """What has left of these data, of it for the study, and of that in the run."""
        ((in_all, by_study, by_run),) = self._file.execute(
            "select coalesce(sum(strength), 0),"
            " coalesce(sum(strength * (study = ?)), 0),"
            " coalesce(sum(strength * (study = ? and run = ?)), 0)"
            " from releases where dataset = ?",
            (study, study, run, dataset),
        )
        return Spent(float(in_all), float(by_study), float(by_run))

    def pay(self, release: Release, reply: str) -> None:
        """Note the release; `reply` is the hash of what is about to leave."""
        self._file.execute(
            "insert into releases values (?,?,?,?,?,?,?,?)",
            (
                release.dataset,
                release.study,
                release.run,
                release.arm,
                release.round,
                release.strength,
                reply,
                now(),
            ),
        )

    def recover(self, releases: Sequence[Release], log: Path, read_to: int) -> int:
        """Count what a log has and this file lacks, and return how many that were.

        The log was read up to the line `read_to`.
        """
        with self._file.transaction():
            lacking = 0
            for release in releases:
                if self.reply_of(release) is None:
                    self.pay(release, _RECOVERED)
                    lacking += 1
            note_log_read(self._file, log, read_to)
        return lacking

    def log_was_read_to(self, log: Path) -> int:
        """The last line of this log that was held against this file; 0: none."""
        return log_read(self._file, log)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def refusal_of_another(name: str, release: Release) -> Refusal:
    """Why an update that differs from the one that left is not given."""
    return Refusal(
        f"{name} gave its update of round {release.round} of {release.arm} in this run already, and"
        " another one would cost its patients more privacy than they were promised: its data or"
        " the request have changed since. Start a new run."
    )
