"""The interface of everything that follows a run: a terminal, a test, or nothing."""

from collections.abc import Sequence
from typing import Protocol

from erosion.common.rounds.one_round import RoundRecord
from erosion.common.study.study import Study
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result


class Observer(Protocol):
    """Called by the coordinator, in this order, from one thread."""

    def listening(self, study: Study, address: str, run_folder: str) -> None:
        """The port is open; the hospitals may come."""

    def joined(self, hospital: str, num_samples: int, missing: Sequence[str]) -> None:
        """A hospital came or came back; `missing` are the ones still waited for."""

    def declined(self, hospital: str, reason: str) -> None:
        """A hospital will not or cannot take part."""

    def left(self, hospital: str) -> None:
        """A hospital lost its connection."""

    def arm_started(self, arm: str, rounds: int) -> None:
        """An arm begins."""

    def round_finished(self, record: RoundRecord) -> None:
        """A round ended, done or skipped."""

    def arm_finished(self, arm: str) -> None:
        """An arm ended."""

    def finished(self, result: Result, run_folder: str) -> None:
        """The study ended with a result for its user.

        Where every hospital is the user, all of this comes again for the next one.
        """

    def user_failed(self, user: str, reason: str) -> None:
        """Where every hospital is the user: this one gets no model."""

    def every_user_finished(self, overview: Overview, run_folder: str) -> None:
        """Where every hospital is the user: the last one's part has ended too."""
