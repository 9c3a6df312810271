"""`status.json`, by which a process says what it does and that it lives, and `erosion status`."""

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

from erosion_common.errors import ErosionError, RunError, SiteError
from erosion_common.support import expiry
from erosion_common.support.files import check_named, read_named, replacing
from erosion_common.support.text import printable

logger = logging.getLogger("erosion.status")

FORMAT = 1  # raised when a key changes its meaning
BEAT_SECONDS = 2.0
SILENT_SECONDS = 30.0  # a file that is older was left behind by a process that was killed
AHEAD_SECONDS = 5.0  # so was one from further in the future, before the clock was set back


class StatusFile:
    """Writes `path` from a separate thread, so that no round waits for the disk.

    While the process lives it holds a lock on the file, which ends with it however it ends.
    """

    kept: ClassVar[dict[Path, "StatusFile"]] = {}  # this program's; one that ended, until the next

    def __init__(
        self, path: Path, *, live: Callable[[], Mapping[str, Any]] = dict, **values: Any
    ) -> None:
        """Write `values` at once; they must be fit for JSON. `live` is asked at every beat."""
        self._path, self._live = path, live
        self._lock = threading.Lock()
        self._values, self._changed = {"format": FORMAT, **values}, True
        self._held: int | None = None  # a handle of the file, locked
        self._trouble = ""  # why it could not be written last
        self._ended = threading.Event()
        self._write()
        for other in [p for p, file in self.kept.items() if file.has_ended]:
            del self.kept[other]
        self.kept[path] = self
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether it shows a process's last words."""
        return self._ended.is_set()

    @property
    def values(self) -> dict[str, Any]:
        """What it shows, as of the last beat or later."""
        with self._lock:
            return dict(self._values)

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
        with suppress(OSError, ErosionError):  # what cannot be written now stays as it was
            self.show(**self._live())
        with self._lock:
            values, changed, self._changed = dict(self._values), self._changed, False
        try:
            if changed or not self._path.exists():
                self._replace(json.dumps(values, indent=2) + "\n")
            else:
                os.utime(self._path)
        except OSError as problem:  # a full disk must not end the process that this only reports on
            if self._trouble != (trouble := str(problem.strerror)):
                logger.warning("%s cannot be written: %s; it is tried again", self._path, trouble)
            self._trouble = trouble
            with self._lock:
                self._changed = True
        else:
            self._trouble = ""

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
        before, self._held = self._held, handle
        if before is not None:
            os.close(before)


def live_statuses() -> list[tuple[Path, dict[str, Any]]]:
    """Return path and values of each status file that this program keeps."""
    return [(path, file.values) for path, file in list(StatusFile.kept.items())]


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of a status file."""

    values: dict[str, Any]
    seconds_ago: float  # since the process last showed that it lives; below 0: it is in the future
    is_held: bool  # by the process that writes it, or it is unknown

    @property
    def is_alive(self) -> bool:
        """Whether the process can be taken to be running."""
        is_recent = -AHEAD_SECONDS <= self.seconds_ago < SILENT_SECONDS
        return is_recent and self.is_held and not self.values.get("ended")


def certificate_shown(expires: datetime | None) -> dict[str, str]:
    """Return a status file's values about a program's certificate; nothing without one."""
    return {} if expires is None else {"certificate_expires": expires.isoformat()}


@contextmanager
def _right_values(path: Path) -> Iterator[None]:
    """Raise RunError for a file with values that are not what they should be."""
    try:
        yield
    except (AttributeError, OverflowError, TypeError, ValueError) as problem:
        raise RunError(f"{path} was not written by this program, or edited: {problem}.") from None


def seconds_since(path: Path) -> float:
    """Return the age of a file; below 0 where the clock was set back since it was written."""
    return time.time() - path.stat().st_mtime


def seconds_apart(path: Path) -> float:
    """Return how far from now a file was written; infinity where it cannot be looked at."""
    try:
        return abs(seconds_since(path))
    except OSError:  # its folder was removed meanwhile
        return float("inf")


def read_status_file(path: Path) -> Seen | None:
    """Return what `path` holds; None: no such file. Raises RunError, and PermissionError."""
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
            f"{path} cannot be read ({problem})",
            remedy="Delete it: a process that lives writes it again.",
        ) from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != FORMAT or isinstance(found, bool):
        raise RunError(
            f"{path} is not of format {FORMAT}, which this version of the program reads",
            remedy="Use the version that the process runs with.",
        )
    return Seen(values, seconds_ago, is_held)


def left_behind(path: Path) -> Mapping[str, Any]:
    """Return the values of a status file; none where there is no file that can be read."""
    with suppress(ErosionError, OSError):
        if (seen := read_status_file(path)) is not None:
            return seen.values
    return {}


def _is_held(path: Path) -> bool:
    """Return whether a process holds the file's lock; also where the file system has no locks."""
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


STATUS_NAME = "status.json"
LONG_AWAY = timedelta(minutes=10)  # without a connection: until then it may be an outage


def find_status(where: Path) -> tuple[Path, Seen]:
    """Return that of a run, of the newest run in a folder of runs, of a queue, or of a site.

    Raises RunError where there is none, SiteError for a site file that says no folder of records,
    and PermissionError. `where` may also be a site file, of which nothing else is read.
    """
    is_site = where.suffix == ".toml" and not where.is_dir()
    folder = _records_of(where) if is_site else where
    # The nearest to now: one from before the clock was set back is not newer than one that lives.
    runs = sorted(folder.glob(f"*/{STATUS_NAME}"), key=seconds_apart)
    for path in [folder / STATUS_NAME, *([] if is_site else runs)]:
        if (seen := read_status_file(path)) is not None:
            return path, seen
    raise RunError(
        f"No {STATUS_NAME} in {folder}",
        remedy="Give a run's folder, the folder of runs, the folder of studies that a"
        " coordinator serves, or the file of a site that has been started.",
    )


def _records_of(site_file: Path) -> Path:
    from erosion_common.settings.base import read_toml  # as long as all else of it to import

    raw = read_toml(site_file, "site file", SiteError)
    if not raw.keys() & {"name", "records"}:
        raise SiteError(
            "it has no name",
            where=f"Site file {site_file}",
            remedy="Give the file of a site that has been started.",
        )
    records = raw.get("records", f"records/{raw.get('name')}")
    if not isinstance(records, str) or "\0" in records:
        raise SiteError(
            f"records = {records!r}; it must be a folder's path", where=f"Site file {site_file}"
        )
    try:
        return site_file.parent / Path(records).expanduser()
    except RuntimeError:
        raise SiteError(
            f"records = {records!r} begins with ~, and that home folder is not known here",
            where=f"Site file {site_file}",
            remedy="Write the whole path.",
        ) from None


class Level(IntEnum):
    """How well a program is: the exit codes of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


def health(path: Path, seen: Seen) -> tuple[Level, list[str]]:
    """Return the worst of what is wrong, and all of it. Raises RunError for wrong values."""
    with _right_values(path):
        found = sorted(_problems(seen), key=lambda problem: -problem[0])
    return (found[0][0] if found else Level.OK), [text for _, text in found]


def _problems(seen: Seen) -> Iterator[tuple[Level, str]]:
    values = seen.values
    if seen.values.get("phase") == "finished":
        return
    if not seen.is_alive:
        reason = values.get("reason") or values.get("trouble") if values.get("ended") else None
        yield Level.CRITICAL, f"not running{f': {reason}' if reason else ''}"
    elif "site" in values and not values.get("connected"):
        since = values.get("disconnected_since")
        gone = expiry.now() - datetime.fromisoformat(since) if since else timedelta(0)
        level = Level.CRITICAL if gone > LONG_AWAY else Level.WARNING
        yield level, f"not connected to {values.get('coordinator')}: {values.get('trouble')}"
    if values.get("connected") and values.get("clock"):
        yield Level.WARNING, str(values["clock"])
    if values.get("certificate_expires"):
        expires = datetime.fromisoformat(values["certificate_expires"])
        if expiry.ends_soon(expires):
            level = Level.CRITICAL if expiry.has_ended(expires) else Level.WARNING
            yield level, f"the certificate is {expiry.in_words(expires)}"
    if seen.is_alive and values.get("stands_still_for"):
        yield Level.WARNING, f"waiting for {_names(values['stands_still_for'])}"
    for name, why in values.get("outputs_dropped", {}).items():
        yield Level.WARNING, f"output {name} dropped: {why}"


def in_words(path: Path, seen: Seen) -> str:
    """Return the state for people. Raises RunError for wrong values in the file."""
    values = seen.values
    level, problems = health(path, seen)
    with _right_values(path):
        lines = [(level.name, "; ".join(problems)), *lines_of_status(values)]
    if not seen.is_alive and not values.get("ended"):
        minutes = f"{abs(seen.seconds_ago) / 60:.0f} min"
        state = f"not running any more; its status file is {minutes} old"
        if seen.seconds_ago < 0:
            state = f"not known to run; its status file is {minutes} ahead of a clock set back"
        lines.append(("state", state))
    width = max(len(label) for label, _ in lines)
    lines.append(("file", str(path)))
    words = (f"{label:<{width}}  {printable(t, at_most=4000)}" for label, t in lines)
    # What follows this sign is performance data to a monitoring system.
    return "\n".join(words).replace("|", "/")


def lines_of_status(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the values for people, as label and text."""
    if "site" in values:
        return _site(values)
    return [*(_queue(values) if "queue" in values else _coordinator(values)), *_certificate(values)]


def _coordinator(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    called: Mapping[str, str] = values.get("names") or {}
    lines = [("study", f"{values.get('study')} for {_names([values.get('user')], called)}")]
    lines.append(("phase", str(values.get("phase"))))
    if values.get("arm"):
        lines.append(("round", f"{values.get('round')} of {values.get('rounds')}, {values['arm']}"))
    if not values.get("ended"):
        lines.append(("connected", _names(values.get("connected"), called)))
        for label, key, of in (
            ("missing", "missing", ""),
            ("waiting for", "stands_still_for", ""),
            ("waiting for", "waiting_for", "answers of "),
        ):
            if values.get(key):
                lines.append((label, of + _names(values[key], called)))
    if weights := values.get("weights"):
        each = (f"{called.get(name, name)} {weight:.2f}" for name, weight in weights.items())
        lines.append(("weights", ", ".join(each)))
    dropped = values.get("outputs_dropped", {})
    lines += [("dropped", f"output {name}: {why}") for name, why in dropped.items()]
    for label, key in (("no model", "without_model"), ("denied", "denied")):
        lines += [(label, f"{who}: {why}") for who, why in values.get(key, {}).items()]
    return lines + [(key, str(values[key])) for key in ("verdict", "reason") if key in values]


def _queue(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [("queue", str(values.get("queue"))), ("phase", str(values.get("phase")))]
    if not values.get("ended"):
        lines.append(("run", str(values.get("run") or "none; it waits for studies")))
    lines.append(("studies", _names(values.get("studies"), nobody="none")))
    return [*lines, *([("reason", str(values["reason"]))] if "reason" in values else [])]


def _certificate(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    if values.get("phase") == "finished" or not values.get("certificate_expires"):
        return []
    return [("certificate", expiry.in_words(datetime.fromisoformat(values["certificate_expires"])))]


def _site(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [("site", str(values.get("site")))]
    state = f"connected to {values.get('coordinator')}"
    if not values.get("connected"):
        state = f"not connected to {values.get('coordinator')}: {values.get('trouble')}"
    lines.append(("state", state))
    lines += _certificate(values) or [("certificate", "none: this connection needs none")]
    lines.append(("sent", f"{values.get('sent')} messages, last {values.get('last_sent')}"))
    lines.append(("log head", str(values.get("log_head"))))
    if values.get("site_file"):
        lines.append(("site file", str(values["site_file"])))
    lines += [("used up", str(line)) for line in values.get("budgets") or ()]
    return lines


def _names(names: Any, called: Mapping[str, str] | None = None, *, nobody: str = "nobody") -> str:
    return ", ".join(str((called or {}).get(name, name)) for name in names or ()) or nobody
