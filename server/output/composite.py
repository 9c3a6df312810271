"""Several observers as one."""

from collections.abc import Sequence

from erosion.common.rounds.one_round import RoundRecord
from erosion.common.study.study import Study
from erosion.server.output.observer import Observer
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result


class CompositeObserver:
    """Tells each of them, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def listening(self, study: Study, address: str, run_folder: str) -> None:
        """The port is open."""
        for observer in self._observers:
            observer.listening(study, address, run_folder)

    def joined(self, hospital: str, num_samples: int, missing: Sequence[str]) -> None:
        """A hospital came or came back."""
        for observer in self._observers:
            observer.joined(hospital, num_samples, missing)

    def declined(self, hospital: str, reason: str) -> None:
        """A hospital will not or cannot take part."""
        for observer in self._observers:
            observer.declined(hospital, reason)

    def left(self, hospital: str) -> None:
        """A hospital lost its connection."""
        for observer in self._observers:
            observer.left(hospital)

    def arm_started(self, arm: str, rounds: int) -> None:
        """An arm begins."""
        for observer in self._observers:
            observer.arm_started(arm, rounds)

    def round_finished(self, record: RoundRecord) -> None:
        """A round ended, done or skipped."""
        for observer in self._observers:
            observer.round_finished(record)

    def arm_finished(self, arm: str) -> None:
        """An arm ended."""
        for observer in self._observers:
            observer.arm_finished(arm)

    def finished(self, result: Result, run_folder: str) -> None:
        """The study ended with a result."""
        for observer in self._observers:
            observer.finished(result, run_folder)

    def user_failed(self, user: str, reason: str) -> None:
        """A hospital gets no model."""
        for observer in self._observers:
            observer.user_failed(user, reason)

    def every_user_finished(self, overview: Overview, run_folder: str) -> None:
        """The last hospital's part has ended."""
        for observer in self._observers:
            observer.every_user_finished(overview, run_folder)
