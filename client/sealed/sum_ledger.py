"""The uses of a site's updates: on disk before anything that depends on one leaves."""

import sqlite3
from pathlib import Path

from erosion.common.errors import Refusal, SiteError
from erosion.common.support.private_files import make_private_folder

MOST_DISTANCES = 3  # of one update
NAME = "sealed-sums.sqlite"


class SumLedger:
    """Remembers for good; two programs on one folder see the same. Not for several threads."""

    def __init__(self, folder: Path | None) -> None:
        """A file in `folder`; None: in memory, which is for simulations. Raises SiteError."""
        self._path = None if folder is None else folder / NAME
        try:
            if folder is not None:
                make_private_folder(folder)
            self._file = sqlite3.connect(
                ":memory:" if self._path is None else self._path,
                isolation_level=None,
                check_same_thread=False,
                timeout=10,
            )
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("CREATE TABLE IF NOT EXISTS uses (what BLOB PRIMARY KEY, use BLOB)")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS distances (of_update BLOB PRIMARY KEY, given INTEGER)"
            )
            if self._path is not None:
                self._path.chmod(0o600)
        except (OSError, sqlite3.Error) as problem:
            raise self._error(problem) from None

    def check(self, what: bytes, use: bytes, why_not: str) -> None:
        """Raises Refusal with `why_not` where `what` was used for something else."""
        try:
            known = self._file.execute("SELECT use FROM uses WHERE what = ?", (what,)).fetchone()
        except sqlite3.Error as problem:
            raise self._error(problem) from None
        if known is not None and known[0] != use:
            raise Refusal(why_not)

    def commit(self, what: bytes, use: bytes, why_not: str) -> None:
        """Note the use; on disk when this returns. Raises Refusal as `check` does."""
        try:
            self._file.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (what, use))
        except sqlite3.Error as problem:
            raise self._error(problem) from None
        self.check(what, use, why_not)

    def count_distance(self, of_update: bytes) -> None:
        """Note one more answer; on disk when this returns. Raises Refusal beyond the last."""
        try:
            given = self._file.execute(
                "INSERT INTO distances VALUES (?, 1)"
                " ON CONFLICT (of_update) DO UPDATE SET given = given + 1 RETURNING given",
                (of_update,),
            ).fetchone()[0]
        except sqlite3.Error as problem:
            raise self._error(problem) from None
        if given > MOST_DISTANCES:
            raise Refusal(
                f"{MOST_DISTANCES} distances of this update were given already; it takes no more."
            )

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _error(self, problem: Exception) -> SiteError:
        where = "memory" if self._path is None else self._path
        return SiteError(
            f"The record of sealed sums cannot be used ({where}: {problem}). Without it this site"
            " takes no part in sealed rounds, because an update might enter a second sum. Make the"
            " folder writable (compute.state in the site file), or restore the file from a backup."
        )
