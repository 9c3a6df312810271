"""`sent.jsonl`: what this hospital sent and when, one line per message, written before it is sent.

Each line holds the SHA-256 of the line before it, so a changed, removed or moved line shows
(`erosion log verify`). Counts, sums, metrics and arrays of a few numbers are logged as sent; of an
update, its norm and hash. What a request says about itself is quoted short and printable. When a
file is full, the chain continues in another (`log_files`).

The observers of a site's agent keep it, and the status file."""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from flwr.app import Message, RecordDict

from erosion_common.aggregation.vectors import norm
from erosion_common.errors import (
    DataError,
    ModelError,
    NotReady,
    Refusal,
    RunOver,
    SiteError,
    StudyError,
    Undecided,
)
from erosion_common.formats.sent_log import (
    FILE_NAME,
    FIRST,
    MOST_VALUES,
    AuditEntry,
    first_number,
    full_files,
    hash_of,
    last_line,
    remove_old,
    set_aside,
)
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import describe
from erosion_common.protocol.flower import read_error
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES
from erosion_common.support.files import (
    is_in_place,
    make_private_folder,
    sync_folder,
    whole_bytes,
)
from erosion_common.support.status import STATUS_NAME, StatusFile, certificate_shown
from erosion_common.support.text import printable

FILE_BYTES = 2**24  # of one log file
KEEP_DAYS = 3650
LONGEST_QUOTE = 200  # characters quoted from a request
MOST_ROUNDS = 2**53


class AuditLog:
    """Appends to one log; a context manager. Only one program at a time may hold it."""

    def __init__(
        self,
        folder: Path,
        *,
        hospital: str = "",
        dataset: Callable[[], str] = str,
        file_bytes: int = FILE_BYTES,
        keep_days: int = KEEP_DAYS,
    ) -> None:
        """Open `folder`/sent.jsonl, creating both if necessary. Raises SiteError.

        `dataset` names the data that answers come from at the time. A file of `file_bytes` is full;
        full ones are kept for `keep_days`.
        """
        self.path = folder / FILE_NAME
        self._hospital, self._dataset = hospital, dataset
        self.num_bytes = 0  # recorded since it was opened
        self._file_bytes, self._keep_days = file_bytes, keep_days
        try:
            if not folder.exists():
                make_private_folder(folder)
            self._file = _opened(self.path)
        except OSError as problem:
            raise SiteError(
                f"The log of what is sent, {self.path}, cannot be opened ({problem.strerror});"
                " without it nothing may be sent",
                remedy="Name another folder with `records` in the site file.",
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._number, self._head = self._continue()
            self._written = self._file.seek(0, os.SEEK_END)  # bytes that it must have
            self._first = first_number(self.path) or self._number + 1
            remove_old(self.path, now=datetime.now(UTC), keep_days=keep_days)
        except BlockingIOError:
            self._file.close()
            raise SiteError(
                f"Another program writes to {self.path}: this site runs already",
                remedy="Stop it first.",
            ) from None
        except OSError as problem:
            self._file.close()
            raise SiteError(
                f"The log of what is sent, {self.path}, cannot be read ({problem.strerror})",
                remedy="Move it away to begin another, and keep it.",
            ) from None
        except BaseException:  # nobody else has the file yet
            self._file.close()
            raise

    def __enter__(self) -> Self:
        """Ready to record."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    @property
    def head(self) -> str:
        """The hash of the last line, by which missing later lines can be noticed."""
        return self._head

    def record(self, request: Message, reply: Message, study: str | None = None) -> None:
        """Log what `reply` is about to send. Raises NotReady; then it must not be sent."""
        line = _line(self._number + 1, self._head, request, reply, study).model_copy(
            update={"hospital": self._hospital, "dataset": self._dataset()}
        )
        text = line.text.encode() + b"\n"
        try:
            self._replace_dead()
            before = self._file.seek(0, os.SEEK_END)
        except OSError as problem:
            raise self._not_written(problem) from None
        if before < self._written or not is_in_place(self.path, self._file):
            raise NotReady(
                f"{self.path} was moved, removed, replaced or cut off while this site ran, so"
                " nothing was sent",
                remedy="Put it back, and the site continues; or start it again. A full file is"
                " set aside by the site (log.file_megabytes).",
            )
        try:
            if self._file.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._file.fileno())
        except OSError as problem:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise self._not_written(problem) from None
        self._number, self._head = line.number, hash_of(line.text)
        self._written = before + len(text)
        self.num_bytes += line.bytes

    def _not_written(self, problem: OSError) -> NotReady:
        said = f"{self.path} cannot be written ({problem.strerror}), so nothing was sent"
        return NotReady(said, remedy="Make room; the site then continues.")

    def _replace_dead(self) -> None:
        if self._file.seek(0, os.SEEK_END) < self._file_bytes:
            return
        # Where it is not, another could not be opened when this was last tried.
        if is_in_place(self.path, self._file):
            set_aside(self.path, self._first)
        file = _opened(self.path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.close()
        self._file = file
        self._first, self._written = self._number + 1, 0
        remove_old(self.path, now=datetime.now(UTC), keep_days=self._keep_days)

    def _continue(self) -> tuple[int, str]:
        """Return number and hash of the last line, removing a line that a crash cut off."""
        path, text = self.path, last_line(self.path)
        # The cut-off message was never sent, so its line is written again first.
        self._file.truncate(whole_bytes(self.path))
        if not text and (before := full_files(self.path)):
            path = before[-1]
            text = last_line(path)
        if not text:
            return 0, FIRST
        last = text.decode(errors="replace")
        try:
            entry = AuditEntry.model_validate_json(last)
        except ValueError:
            raise SiteError(
                f"The last line of {path} is damaged",
                remedy=f"Examine it with `erosion log verify {self.path}`, keep the file, and"
                " move it away to begin another.",
            ) from None
        if self._hospital and entry.hospital not in ("", self._hospital):
            raise SiteError(
                f"{self.path} is the log of {entry.hospital}, and this is {self._hospital}",
                remedy=f"Name another folder with `records` in the site file of {self._hospital}.",
            )
        return entry.number, hash_of(last)


def _opened(path: Path) -> FileIO:
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+")
    sync_folder(path.parent)
    return file


def _line(
    number: int, previous: str, request: Message, reply: Message, study: str | None
) -> AuditEntry:
    # Only quoted: whether the request makes sense is the app's decision.
    asked = wire.header_of(request.content)
    line = AuditEntry(
        number=number,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        kind=printable(request.metadata.message_type, at_most=LONGEST_QUOTE),
        study=study,
        digest=_quoted(asked, "digest", str),
        run=_quoted(asked, "run", str),
        arm=_quoted(asked, "arm", str),
        round=_quoted(asked, "round", int),
        exchange=_quoted(asked, "exchange", int),
        bytes=0,
        sha256=hash_of(""),
        previous=previous,
    )
    if reply.has_error():
        text = reply.error.reason or ""
        content = {"bytes": len(text.encode()), "sha256": hash_of(text), "error": text}
        return line.model_copy(update=content)
    text = wire.header_text(reply.content)
    if not text:  # an app that the site installed itself
        return line.model_copy(update=_figures_of(reply.content))
    header = text.encode()
    digest, num_bytes = hashlib.sha256(header), len(header)
    shapes: dict[str, tuple[int, ...]] = {}
    values: dict[str, tuple[float | None, ...]] = {}
    length: float | None = None
    for name, shape, kind, buffer in wire.arrays_of(reply.content):
        shapes[name] = shape
        digest.update(buffer)  # as sent: what was just encoded is not decoded again
        num_bytes += buffer.nbytes
        if math.prod(shape) <= MOST_VALUES:
            values[name] = _values(buffer, kind)
        if name == wire.UPDATE:
            length = norm(np.frombuffer(buffer, dtype="<f4"))
    if length is None and (update := wire.compressed_update(reply.content)) is not None:
        length = norm(update)
    return line.model_copy(
        update={
            "bytes": num_bytes,
            "sha256": digest.hexdigest(),
            "figures": _figures(text),
            "arrays": shapes,
            "values": values,
            "norm": length if length is not None and math.isfinite(length) else None,
        }
    )


def _figures_of(content: RecordDict) -> dict[str, Any]:
    """Return any Flower content's description as JSON, then its arrays as sent."""
    records, buffers = describe(content)
    text = json.dumps(records, separators=(",", ":")).encode()
    digest = hashlib.sha256(text)
    for buffer in buffers:
        digest.update(buffer)
    arrays = {
        f"{name}/{key}": tuple(array.shape)
        for name, record in content.array_records.items()
        for key, array in record.items()
    }
    num_bytes = len(text) + sum(buffer.nbytes for buffer in buffers)
    return {
        "bytes": num_bytes,
        "sha256": digest.hexdigest(),
        "arrays": arrays,
        "figures": _figures(text.decode()),
    }


def _quoted(values: dict[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if kind is str:
        return printable(value, at_most=LONGEST_QUOTE) if isinstance(value, str) else None
    return value if type(value) is int and abs(value) <= MOST_ROUNDS else None


def _figures(header: str) -> Any:
    """Return what is sent with arrays. Raises SiteError where no message may have it."""
    if len(header) > LARGEST_HEAD_BYTES:
        raise SiteError(
            f"An answer has {len(header) / 2**20:.1f} MiB besides its arrays, and"
            f" {LARGEST_HEAD_BYTES // 2**20} MiB are the most that a message may have, so nothing"
            " was sent",
            remedy="Ask the coordinator for a study of fewer columns or categories.",
        )
    return json.loads(header)


def _values(buffer: memoryview, kind: str) -> tuple[float | None, ...]:
    numbers = np.frombuffer(buffer, dtype=np.dtype(kind).newbyteorder("<")).tolist()
    return tuple(float(number) if math.isfinite(number) else None for number in numbers)


BUDGETS_SECONDS = 5.0  # between two checks of the budgets
_ERRORS = (DataError, ModelError, Refusal, RunOver, SiteError, StudyError, Undecided)
_OUTCOMES = ("answered", *(kind.__name__ for kind in _ERRORS))


class SiteObservers:
    """Follows the agent. Use within the audit log's context."""

    def __init__(
        self,
        folder: Path,
        audit_log: AuditLog,
        *,
        name: str,
        coordinator: str,
        budgets: Callable[[], Mapping[str, Any]] = dict,
        site_file: Callable[[], str] = lambda: "",
        study_named: Callable[[str], str | None] = lambda _digest: None,
        certificate_expires: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """Keep `folder`/status.json.

        `budgets` returns what is used up, as values of the file; `site_file` what changed in it;
        `study_named` the name of the approved study with a digest;
        `certificate_expires` when the site's certificate ends, None where it has none.
        """
        self._study_named = study_named
        self._audit_log, self._budgets, self._site_file = audit_log, budgets, site_file
        self._looked = float("-inf")  # when the budgets were last checked
        self._sign = StatusFile(
            folder / STATUS_NAME,
            live=lambda: certificate_shown(certificate_expires()),
            site=name,
            coordinator=coordinator,
            connected=False,
            trouble="not connected yet",
            disconnected_since=_now(),
            sent=0,
            last_sent=None,
            log_head=audit_log.head,
            answers={},
            received_bytes=0,
            sent_bytes=0,
            **budgets(),
        )
        self._answers: Counter[str] = Counter()  # by "answered" or the kind of the refusal
        self._received_bytes = 0
        self._is_connected = False

    def connected(self, clock: str = "") -> None:
        """Note that the coordinator admitted this site; `clock`: if one of the two is wrong."""
        self._is_connected = True
        self._looked = time.monotonic()
        self._sign.show(
            connected=True,
            trouble=None,
            disconnected_since=None,
            clock=clock,
            site_file=self._site_file(),
            **self._budgets(),
        )

    def disconnected(self, why: str) -> None:
        """Note that the connection is down."""
        values: dict[str, Any] = {"connected": False, "trouble": why}
        if self._is_connected:
            values["disconnected_since"] = _now()
        self._is_connected = False
        self._sign.show(**values)

    def sending(self, request: Message, reply: Message) -> str:
        """Log the reply before it is sent; return the hash of its line, which is sent with it."""
        digest = wire.header_of(request.content).get("digest")
        name = self._study_named(digest) if isinstance(digest, str) else None
        self._audit_log.record(request, reply, name)
        code = read_error(reply.error).code if reply.has_error() else "answered"
        self._answers[code if code in _OUTCOMES else "fault"] += 1
        self._received_bytes += wire.num_bytes(request.content)
        self._sign.show(
            sent=self._answers.total(),
            last_sent=_now(),
            log_head=self._audit_log.head,
            answers=dict(self._answers),
            received_bytes=self._received_bytes,
            sent_bytes=self._audit_log.num_bytes,
        )
        if time.monotonic() >= self._looked + BUDGETS_SECONDS:
            self._looked = time.monotonic()
            self._sign.show(**self._budgets())
        return self._audit_log.head

    def end(self, why: str) -> None:
        """Note that the program ends."""
        self._sign.show(**self._budgets())
        self._sign.end(connected=False, trouble=why, ended=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
