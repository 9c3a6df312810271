"""An SQLite file that only its owner may read, with durable writes.

Two programs use a site's records at once (the site, and its commands). A transaction is one flush
of the file's log of writes, `-wal`, which lies next to it while a program has it open.
"""

import errno
import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from erosion_common.errors import NotReady, SiteError
from erosion_common.support.files import check_named, file_system_of, make_private_folder, replacing

WAIT_SECONDS = 20.0  # for another program to finish its write
NETWORK = {  # file systems on which two computers would not see each other's `-wal`
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs"),
    *("glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "ocfs2", "gfs2"),
}

# SQLite's messages about a damaged file may quote bytes that Python cannot decode.
_DAMAGED = (sqlite3.Error, UnicodeError)

Values = Sequence[str | int | float | bytes]


class PrivateDatabase:
    """One file; a write is on the disk when it returns. Raises SiteError where it is unusable."""

    def __init__(
        self, path: Path | None, tables: str, *, version: int, holds: str, without: str
    ) -> None:
        """Open `path`, making it with these `tables` (SQL) if need be; None: in memory."""
        self.path, self._holds, self._without = path, holds, without
        try:
            if path is not None:
                if not path.parent.exists():
                    make_private_folder(path.parent)
                if (system := file_system_of(path.parent)) in NETWORK:
                    raise OSError(errno.ENOTSUP, f"it is on a network file system, {system}")
                if not path.exists():
                    if _writes_of(path).exists():
                        raise OSError(errno.ENOENT, "its file -wal is there, and it is not")
                    _make(path, tables, version)
                check_named(path)  # a device would be tried for as long as a lock
            self._file = sqlite3.connect(
                path or ":memory:",
                timeout=WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            weakref.finalize(self, self._file.close)  # where its owner forgot to
            self._file.execute("pragma synchronous = full")
            (found,) = self._file.execute("pragma user_version").fetchone()
            files: tuple[Path, ...] = ()
            if path is None:
                self._file.executescript(tables)
            elif found in (0, version):
                self._check(path, found)
                self._file.execute("pragma journal_mode = wal")  # a copy may have lost it
                self._file.execute("select 1 from sqlite_master")
                files = path, _writes_of(path)
            self._opened = [(file, file.stat()) for file in files]
        except (*_DAMAGED, OSError) as problem:
            raise self.unusable(problem) from None
        if path is not None and found != version:
            raise SiteError(
                f"{path} has version {found}; this program writes {version}",
                remedy="Use the version of erosion that wrote it.",
            )

    def execute(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Execute one statement; return its rows."""
        if not self._file.in_transaction:
            self._check_in_place()
        try:
            return self._file.execute(statement, values).fetchall()
        except _DAMAGED as problem:
            raise self.unusable(problem) from None

    def execute_many(self, statement: str, rows: Iterable[Values]) -> None:
        """Execute one statement for each of the rows."""
        if not self._file.in_transaction:
            self._check_in_place()
        try:
            self._file.executemany(statement, rows)
        except _DAMAGED as problem:
            raise self.unusable(problem) from None

    def _check_in_place(self) -> None:
        """Raise NotReady where the file was removed or replaced, and writes would be lost."""
        try:
            is_in_place = all(os.path.samestat(p.stat(), opened) for p, opened in self._opened)
        except OSError:
            is_in_place = False
        if not is_in_place:
            raise NotReady(
                f"{self.path}, which holds {self._holds}, was moved, removed or replaced while this"
                " program ran",
                remedy=f"{self._without} Put it back, or start this program again.",
            )

    def _check(self, path: Path, version: int) -> None:
        """Raise sqlite3.Error for a damaged file, now and not in the middle of a study."""
        (page_bytes,) = self._file.execute("pragma page_size").fetchone()
        if version == 0 or path.stat().st_size % page_bytes:
            raise sqlite3.DatabaseError("it was emptied or cut off")
        (said,) = self._file.execute("pragma integrity_check(1)").fetchone()
        if said != "ok":
            raise sqlite3.DatabaseError(said.splitlines()[-1])
        columns = self._file.execute(
            "select m.name, c.name, lower(c.type) from sqlite_master m, pragma_table_info(m.name) c"
            " where m.type = 'table' and c.type != ''"  # without SQLite's own tables
        )
        for table, column, kind in columns.fetchall():
            odd = f"select 1 from {table} where typeof({column}) not in (?, 'null') limit 1"
            if self._file.execute(odd, (kind,)).fetchone():
                raise sqlite3.DatabaseError(f"a value of {table}.{column} is no {kind}")

    @contextmanager
    def transaction(self, *, flushed: bool = True) -> Iterator[None]:
        """Commit all or nothing, with exclusive access for one program.

        Without `flushed` a power cut may lose it until another write is; a killed program does not.
        """
        if self._file.in_transaction:
            yield
            return
        if not flushed:
            self.execute("pragma synchronous = normal")
        try:
            self.execute("begin immediate")
            yield
            self._check_in_place()  # a commit to a file that was removed would be lost
            self.execute("commit")
        except BaseException:  # an interrupted program leaves no partial transaction, either
            if self._file.in_transaction:
                self.execute("rollback")
            raise
        finally:
            if not flushed:
                self.execute("pragma synchronous = full")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def unusable(self, problem: object) -> NotReady:
        """Return the error for a file with this problem; a running site signs out for it."""
        code = getattr(problem, "sqlite_errorcode", 0)
        if code & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):  # what it extends
            return NotReady(
                f"it holds {self._holds}, and cannot be written ({problem})",
                where=str(self.path or "the memory"),
                remedy=f"{self._without} Make room, or have the disk checked; the site then"
                " continues.",
            )
        if code == sqlite3.SQLITE_BUSY:
            return NotReady(
                f"{self.path}, which holds {self._holds}, was in use by another program for"
                f" {WAIT_SECONDS:g} s ({problem})",
                remedy=f"{self._without} Let that program end, such as an `erosion review` that"
                " stands still, or a copy that is made of the file.",
            )
        return NotReady(
            f"{self.path or 'The memory'}, which holds {self._holds}, cannot be used ({problem})",
            remedy=f"{self._without} Check the disk and the permissions of its folder"
            " (compute.state in the site file); if the file is damaged, delete its -wal and -shm"
            f" and restore it from a backup: deleting it forgets {self._holds}.",
        )


class RecordsTable:
    """What reads and writes some of a file's tables. Raises SiteError."""

    def __init__(self, file: PrivateDatabase) -> None:
        """`file` is made with these tables."""
        self._file, self.transaction = file, file.transaction


def _make(path: Path, tables: str, version: int) -> None:
    """Create the file complete from the start, also where two programs do."""
    with (
        replacing(path, mode=0o600, first_stays=True) as made,
        closing(sqlite3.connect(made)) as file,
    ):
        file.executescript(f"begin; {tables} pragma user_version = {version}; commit")


def _writes_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
