"""`privacy.sqlite`: every update with noise that left, and what it cost the patients.

An update is paid for before it leaves. Asked for again it is free, but it must be the very same:
other noise on the same sum, or the same noise on another sum, would tell more than was paid for.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from erosion.client.consent.store import now
from erosion.common.errors import Refusal, SiteError
from erosion.common.support.private_files import make_private_folder

VERSION = 1
FILE_NAME = "privacy.sqlite"
WAIT_SECONDS = 20.0  # for another program to finish its write

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
        self.path = None if folder is None else folder / FILE_NAME
        with self._explained():
            if folder is not None and not folder.exists():
                make_private_folder(folder)
            is_new = self.path is not None and not self.path.exists()
            self._db = sqlite3.connect(
                self.path or ":memory:",
                timeout=WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            if is_new and self.path is not None:
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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Of two programs, only one looks and pays at a time."""
        with self._explained():
            self._db.execute("begin immediate")
            try:
                yield
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def reply_of(self, release: Release) -> str | None:
        """The hash of what left for it; None where nothing did."""
        with self._explained():
            row = self._db.execute(
                "select reply from releases where dataset = ? and study = ? and run = ?"
                " and arm = ? and round = ?",
                (release.dataset, release.study, release.run, release.arm, release.round),
            ).fetchone()
        return None if row is None else str(row[0])

    def spent(self, dataset: str, study: str = "", run: str = "") -> Spent:
        """What has left of these data, of it for the study, and of that in the run."""
        with self._explained():
            row = self._db.execute(
                "select coalesce(sum(strength), 0),"
                " coalesce(sum(strength * (study = ?)), 0),"
                " coalesce(sum(strength * (study = ? and run = ?)), 0)"
                " from releases where dataset = ?",
                (study, study, run, dataset),
            ).fetchone()
        return Spent(*map(float, row))

    def pay(self, release: Release, reply: str) -> None:
        """Note the release, within `locked`; `reply` is the hash of what is about to leave."""
        self._db.execute(
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

    def studies(self, dataset: str) -> list[str]:
        """The digests of the studies that updates left for."""
        with self._explained():
            rows = self._db.execute(
                "select study from releases where dataset = ? group by study order by min(rowid)",
                (dataset,),
            ).fetchall()
        return [str(study) for (study,) in rows]

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            raise SiteError(
                f"{self.path or 'The privacy ledger'}, which holds what this site's patients have"
                f" paid of their privacy, cannot be used ({problem}). No update with noise leaves"
                " without it. Check the disk and the permissions of its folder (compute.state in"
                " the site file); if the file is damaged, restore it from a backup: deleting it"
                " forgets what was spent."
            ) from None


def refusal_of_another(name: str, release: Release) -> Refusal:
    """Why an update that differs from the one that left is not given."""
    return Refusal(
        f"{name} gave its update of round {release.round} of {release.arm} in this run already, and"
        " another one would cost its patients more privacy than they were promised: its data or"
        " the request have changed since. Start a new run."
    )
