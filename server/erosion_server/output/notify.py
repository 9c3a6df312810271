"""Notifies a program or a web address, in JSON, when a run ends, fails, or waits for hospitals.

The message has no patient's figure and no verdict, and only names that are waited for.
"""

import json
import shutil
import subprocess
import urllib.request
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from erosion_common.errors import RunError
from erosion_common.rounds.events import WaitsFor
from erosion_common.study.study import EVERY_USER
from erosion_server.output.events import (
    EveryUserFinished,
    RunEvent,
    RunFinished,
    StudyFailed,
    StudyStarted,
)
from erosion_server.output.observers import Observer
from erosion_server.output.words import printable

SECONDS = 10.0  # for an answer


def open_output(where: str) -> Observer:
    """Return the output; `where` is a program or an address. Raises ValueError."""
    address = urlsplit(where)
    if address.scheme in ("http", "https"):
        if not address.hostname or address.port == 0:  # a port that is no number is a ValueError
            raise ValueError("takes a whole address, such as notify=https://example.org/hook")
        return Notify(url=where)
    program = shutil.which(where) if where else None
    if program is None:
        raise ValueError(
            f"takes a program that can be run, or an address that begins with https://; {where!r}"
            " is neither"
        )
    return Notify(program=str(Path(program).absolute()))


class Notify:
    """Sends one message for each event; a failure or a wait beyond SECONDS drops the output."""

    def __init__(self, *, url: str = "", program: str = "") -> None:
        """Give one of the two."""
        self._url, self._program = url, program
        self._study, self._user, self._waits = "", "", False

    def notify(self, event: RunEvent) -> None:
        """Send what a person should know. Raises RunError."""
        match event:
            case StudyStarted(study):
                self._study, self._user = study.name, study.user
            case EveryUserFinished(_, run_folder):
                self._user = EVERY_USER
                self._send("finished", f"The report is in {run_folder}.")
            case RunFinished(_, run_folder):
                self._send("finished", f"The report is in {run_folder}.")
            case StudyFailed(reason):
                self._send("failed", reason)
            case WaitsFor(hospitals):
                if hospitals:
                    self._send("waiting", f"The study waits for {', '.join(hospitals)}.")
                elif self._waits:
                    self._send("continues", "The hospitals are back.")
                self._waits = bool(hospitals)

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, event: str, words: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"study": self._study, "user": self._user, "time": now}
        body = json.dumps({"event": event, **about, "words": printable(words)}).encode()
        try:
            if self._program:
                nowhere = subprocess.DEVNULL  # a pipe could be held open beyond the time limit
                subprocess.run(
                    [self._program],
                    input=body,
                    stdout=nowhere,
                    stderr=nowhere,
                    check=True,
                    timeout=SECONDS,
                )
                return
            kind = {"Content-Type": "application/json"}
            request = urllib.request.Request(self._url, data=body, headers=kind)
            with urllib.request.urlopen(request, timeout=SECONDS):
                pass
        except (OSError, HTTPException, subprocess.SubprocessError) as problem:
            place = self._program or urlsplit(self._url).hostname
            raise RunError(
                f"{place} did not take the message ({printable(str(problem))})",
                remedy="Correct it for the next run: this one notifies nobody any more.",
            ) from None
