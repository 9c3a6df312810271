"""Progress as lines of JSON, for programs that collect logs."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self, TextIO

from erosion.common.rounds.one_round import RoundRecord
from erosion.common.study.study import Study
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result


class JsonProgress:
    """One object a line: time, event, and what belongs to it."""

    def __init__(self, stream: TextIO) -> None:
        """Lines go to `stream`, each flushed at once."""
        self._stream = stream

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_problem: object) -> None:
        """Nothing to put back."""

    def listening(self, study: Study, address: str, run_folder: str) -> None:
        """The hospitals may come."""
        self._say(
            "listening",
            study=study.name,
            user=study.user,
            address=address,
            run_folder=run_folder,
        )

    def joined(self, hospital: str, num_samples: int, missing: Sequence[str]) -> None:
        """A hospital came."""
        self._say("joined", hospital=hospital, num_samples=num_samples, missing=list(missing))

    def declined(self, hospital: str, reason: str) -> None:
        """A hospital does not take part, or a stranger was turned away."""
        self._say("declined", hospital=hospital, reason=reason)

    def left(self, hospital: str) -> None:
        """A hospital went."""
        self._say("left", hospital=hospital)

    def arm_started(self, arm: str, rounds: int) -> None:
        """An arm begins."""
        self._say("arm_started", arm=arm, rounds=rounds)

    def round_finished(self, record: RoundRecord) -> None:
        """A round ended; the journal holds the rest of it."""
        self._say(
            "round_finished",
            arm=record.arm,
            round=record.round,
            outcome=record.outcome,
            note=record.note,
            seconds=round(record.seconds, 3),
            weights={name: entry.weight_after for name, entry in record.hospitals.items()},
            absent={
                name: entry.reason
                for name, entry in record.hospitals.items()
                if entry.outcome in ("absent", "rejected")
            },
        )

    def arm_finished(self, arm: str) -> None:
        """An arm ended."""
        self._say("arm_finished", arm=arm)

    def finished(self, result: Result, run_folder: str) -> None:
        """The study has a result."""
        self._say("finished", verdict=result.verdict.text, run_folder=run_folder)

    def user_failed(self, user: str, reason: str) -> None:
        """A hospital gets no model."""
        self._say("user_failed", user=user, reason=reason)

    def every_user_finished(self, overview: Overview, run_folder: str) -> None:
        """All hospitals have had their turn."""
        self._say("every_user_finished", verdict=overview.verdict, run_folder=run_folder)

    def _say(self, event: str, **values: Any) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "event": event, **values}
        print(json.dumps(line), file=self._stream, flush=True)  # ASCII: safe on any stream
