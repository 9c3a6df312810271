"""Turns what the driver tells its listener into the run's events."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.records import RoundRecord
from erosion.server.output.events import (
    ArmFinished,
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    HospitalsCompared,
    RoundFinished,
    RunEvent,
    StudyBegunWithout,
    WaitsFor,
)


class EventListener:
    """A driver's `Listener`."""

    def __init__(self, notify: Callable[[RunEvent], None]) -> None:
        self._notify = notify
        self._waits_since: datetime | None = None  # for people to read

    def joined(
        self, hospital: str, num_samples: int, missing: Sequence[str], software: str
    ) -> None:
        """A hospital came or came back."""
        self._notify(HospitalJoined(hospital, num_samples, tuple(missing), software))

    def declined(self, hospital: str, reason: str) -> None:
        """A hospital will not or cannot take part."""
        self._notify(HospitalDeclined(hospital, reason))

    def left(self, hospital: str) -> None:
        """A hospital lost its connection."""
        self._notify(HospitalLeft(hospital))

    def waits_for(self, hospitals: Sequence[str]) -> None:
        """The study stands still until these are here; none: it goes on."""
        if self._waits_since is None or not hospitals:
            self._waits_since = datetime.now(UTC)
        self._notify(WaitsFor(tuple(hospitals), self._waits_since))
        if not hospitals:
            self._waits_since = None

    def begun_without(self, absent: Mapping[str, str]) -> None:
        """The study begins without hospitals."""
        self._notify(StudyBegunWithout(dict(absent)))

    def checked(self, found: DataCheck) -> None:
        """The hospitals' figures were compared."""
        self._notify(HospitalsCompared(found))

    def arm_started(
        self, arm: str, rounds: int, *, is_trial: bool = False, title: str = ""
    ) -> None:
        """An arm begins, or a trial of it."""
        self._notify(ArmStarted(arm, rounds, is_trial=is_trial, trial=title))

    def round_finished(self, record: RoundRecord, *, is_trial: bool = False) -> None:
        """A round ended."""
        self._notify(RoundFinished(record, is_trial=is_trial))

    def arm_finished(self, arm: str) -> None:
        """An arm ended."""
        self._notify(ArmFinished(arm))
