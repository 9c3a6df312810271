"""Hospitals in this process: a transport without a network, for simulations."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from erosion.client.training.hospital import Hospital
from erosion.common.aggregation.cohort import HospitalName
from erosion.common.errors import ErosionError
from erosion.common.protocol.messages import EvaluateRequest
from erosion.common.rounds.records import Absence
from erosion.common.rounds.transport import (
    Connection,
    Declined,
    Introduced,
    News,
    Reply,
    Request,
    Result,
    too_late,
)
from erosion.common.study.study import Study

logger = logging.getLogger("erosion.simulation")


class InProcess:
    """A `Transport` to hospitals that are called in turn.

    In a deployment they would work side by side, so each has the whole of a request's seconds: one
    that takes longer has answered too late. Nobody comes or goes, so waiting takes no time.
    """

    def __init__(
        self,
        study: Study,
        hospitals: Mapping[HospitalName, Hospital],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Hospitals are known by the study's names for them."""
        self._study, self._clock = study, clock
        self._hospitals = dict(enumerate(hospitals.values(), start=1))
        self._introduced = False
        self._waited = 0.0  # seconds that did not really pass

    def news(self) -> Iterator[News]:
        """Everybody, when this is first asked."""
        if self._introduced:
            return
        self._introduced = True
        for connection, hospital in self._hospitals.items():
            try:
                described = hospital.describe(self._study)
            except ErosionError as problem:
                logger.error("%s: %s", hospital.name, problem)
                yield Declined(connection, hospital.name, problem.public)
            else:
                yield Introduced(connection, described)

    def turn_away(self, connection: Connection, reason: str) -> None:
        """It is asked nothing."""
        logger.error("%s: %s", self._hospitals[connection].name, reason)

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        """One after another, in their order."""
        for connection, request in requests.items():
            started = self._clock()
            content = self._answer(self._hospitals[connection], request)
            took = self._clock() - started
            yield (
                too_late(connection, seconds)
                if took > seconds
                else Reply(connection, content, seconds=took)
            )

    def hears(self, connection: Connection) -> bool:
        """Everybody is here."""
        del connection
        return True

    def wait_for_change(self, seconds: float) -> None:
        """The time has passed."""
        self._waited += seconds

    def now(self) -> float:
        """This machine's clock, and the time that was waited."""
        return self._clock() + self._waited

    @staticmethod
    def _answer(hospital: Hospital, request: Request) -> Result | Absence:
        try:
            if isinstance(request, EvaluateRequest):
                return hospital.evaluate(request)
            return hospital.answer(request)
        except ErosionError as problem:
            logger.error("%s: %s", hospital.name, problem)
            return Absence(problem.public)
