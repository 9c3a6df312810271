"""`status.json`: the coordinator's progress, for `erosion status` and a container's health."""

from collections.abc import Callable, Sequence
from pathlib import Path

from erosion.common.rounds.one_round import RoundRecord
from erosion.common.study.study import Study
from erosion.common.support.status_file import StatusFile
from erosion.server.output.plain_text import printable
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result


class CoordinatorStatus:
    """An observer that keeps the file; `waiting_for` is asked for whom the round waits."""

    def __init__(self, path: Path, study: Study) -> None:
        """Begin the file."""
        self.waiting_for: Callable[[], Sequence[str]] = tuple
        self._sign = StatusFile(
            path,
            live=lambda: {"waiting_for": list(self.waiting_for())},
            study=study.name,
            user=study.user,
            phase="starting",
            rounds=study.rounds,
        )
        self._connected: set[str] = set()
        self._without_model: dict[str, str] = {}
        self._turned_away: dict[str, str] = {}  # the latest reason, by whom

    def listening(self, study: Study, address: str, run_folder: str) -> None:
        """The hospitals may come."""
        self._sign.show(
            user=study.user,
            phase="waiting for hospitals",
            address=address,
            missing=list(study.hospitals),
        )

    def joined(self, hospital: str, num_samples: int, missing: Sequence[str]) -> None:
        """A hospital came."""
        del num_samples
        self._connected.add(hospital)
        self._turned_away.pop(hospital, None)
        self._show_hospitals()
        self._sign.show(missing=list(missing))

    def declined(self, hospital: str, reason: str) -> None:
        """A hospital does not take part, or a stranger was turned away."""
        self._connected.discard(hospital)
        self._turned_away[printable(hospital, at_most=80)] = printable(reason)
        while len(self._turned_away) > 50:
            del self._turned_away[next(iter(self._turned_away))]
        self._show_hospitals()

    def left(self, hospital: str) -> None:
        """A hospital went."""
        self._connected.discard(hospital)
        self._show_hospitals()

    def arm_started(self, arm: str, rounds: int) -> None:
        """An arm begins."""
        del rounds
        self._sign.show(phase="training", arm=arm, round=0, weights={})

    def round_finished(self, record: RoundRecord) -> None:
        """A round ended."""
        self._sign.show(
            round=record.round,
            weights={
                name: entry.weight_after
                for name, entry in record.hospitals.items()
                if entry.weight_after is not None
            },
            last_round={"outcome": record.outcome, "seconds": round(record.seconds, 3)},
        )

    def arm_finished(self, arm: str) -> None:
        """An arm ended; if it was the last, the user's site measures the models now."""
        del arm
        self._sign.show(phase="between arms, or measuring the final models")

    def finished(self, result: Result, run_folder: str) -> None:
        """There is a result for the user."""
        del run_folder
        self._sign.show(phase="closing", verdict=result.verdict.text)

    def user_failed(self, user: str, reason: str) -> None:
        """A hospital gets no model."""
        self._without_model[user] = printable(reason)
        self._sign.show(without_model=dict(self._without_model))

    def every_user_finished(self, overview: Overview, run_folder: str) -> None:
        """There is a result for every user."""
        del run_folder
        self._sign.show(user=", ".join(overview.users), verdict=overview.verdict)

    def ended(self) -> None:
        """The study has ended with a result."""
        self._sign.end(phase="finished", ended=True)

    def failed(self, reason: str) -> None:
        """The study ended without a result."""
        self._sign.end(phase="failed", reason=printable(reason), ended=True)

    def _show_hospitals(self) -> None:
        self._sign.show(connected=sorted(self._connected), turned_away=dict(self._turned_away))
