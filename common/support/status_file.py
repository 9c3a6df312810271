"""A small file that says what a process is doing and, by its age, that the process lives.

A container's health check and `erosion status` read it, so that neither needs a port.
"""

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from erosion.common.errors import ErosionError, RunError
from erosion.common.support.files import check_named, read_named, replacing

logger = logging.getLogger("erosion.status")

FORMAT = 1  # raised when a key changes its meaning
BEAT_SECONDS = 2.0
SILENT_SECONDS = 30.0  # a file that is older was left behind by a process that was killed
AHEAD_SECONDS = 5.0  # so was one from further in the future, before the clock was set back


class StatusFile:
    """Writes `path` from a thread of its own, so that no round waits for the disk.

    While the process lives it holds a lock on the file, which ends with it however it ends.
    """

    def __init__(
        self, path: Path, *, live: Callable[[], Mapping[str, Any]] = dict, **values: Any
    ) -> None:
        """Write `values` at once; they must be fit for JSON. `live` is asked at every beat."""
        self._path, self._live = path, live
        self._lock = threading.Lock()
        self._values, self._changed = {"format": FORMAT, **values}, True
        self._held: int | None = None  # a handle of the file, locked
        self._ended = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def show(self, **values: Any) -> None:
        """Replace some of the values; the file follows within BEAT_SECONDS."""
        with self._lock:
            changed = {**self._values, **values}
            self._changed = self._changed or changed != self._values
            self._values = changed

    def end(self, **values: Any) -> None:
        """Write the last words; the file is not touched after that."""
        self.show(**values)
        self._ended.set()
        self._thread.join(5)
        self._write()
        self._hold(None)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._write()

    def _write(self) -> None:
        with suppress(OSError, ErosionError):  # what cannot be told now stays as it was
            self.show(**self._live())
        with self._lock:
            values, changed, self._changed = dict(self._values), self._changed, False
        try:
            if changed or not self._path.exists():
                self._replace(json.dumps(values, indent=2) + "\n")
            else:
                os.utime(self._path)
        except OSError as problem:  # a full disk must not end the process that this only reports on
            logger.warning("%s cannot be written: %s", self._path, problem)
            with self._lock:
                self._changed = True

    def _replace(self, text: str) -> None:
        """Put the file in place, locked from its first moment. Raises OSError."""
        with ExitStack() as opened:
            with replacing(self._path) as temporary:
                temporary.write_text(text)
                held = os.open(temporary, os.O_RDONLY)
                opened.callback(os.close, held)
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened.pop_all()
        self._hold(held)

    def _hold(self, handle: int | None) -> None:
        """Hold this file instead of the one before."""
        before, self._held = self._held, handle
        if before is not None:
            os.close(before)


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of a status file."""

    values: dict[str, Any]
    seconds_ago: float  # since the process last showed that it lives; below 0: it is in the future
    is_held: bool  # by the process that writes it, or nobody can tell

    @property
    def is_alive(self) -> bool:
        """Whether the process can be taken to be running."""
        is_recent = -AHEAD_SECONDS <= self.seconds_ago < SILENT_SECONDS
        return is_recent and self.is_held and not self.values.get("ended")


def certificate_shown(expires: datetime | None) -> dict[str, str]:
    """What a status file says of a program's certificate; nothing where there is none."""
    return {} if expires is None else {"certificate_expires": expires.isoformat()}


def seconds_since(path: Path) -> float:
    """The age of a file; below 0 where the clock was set back since it was written."""
    return time.time() - path.stat().st_mtime


def read_status_file(path: Path) -> Seen | None:
    """The status file at `path`; None if there is none.

    Raises RunError for one that is damaged or of another version, and PermissionError.
    """
    try:
        is_held = _is_held(path)
        values = json.loads(read_named(path).decode())
        seconds_ago = seconds_since(path)
    except PermissionError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise RunError(
            f"{path} cannot be read ({problem}). Delete it: a process that lives writes it again."
        ) from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT or isinstance(found, bool):
        raise RunError(
            f"{path} is not of format {FORMAT}, which this version of the program reads. Use the"
            " version that the process runs with."
        )
    return Seen(values, seconds_ago, is_held)


def _is_held(path: Path) -> bool:
    """Whether a process holds the file's lock; also where the file system has no locks."""
    for _try in range(10):  # it may be replaced while it is looked at
        check_named(path)
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return False
    return True
