"""Sites that keep their log, that are away in chosen legs of sealed rounds, and that lie."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from erosion_client.connection.agent import Until
from erosion_client.connection.serve import serve
from erosion_client.sealed.sealed_site import Greeted, Measured, SealedSite
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.sealed.phases import DISTANCE, MASKED, Hello
from erosion_common.support.logs import configure_logging

AWAY = (("carol", 3, "train"), ("dave", 4, MASKED), ("carol", 5, DISTANCE))


def serves(site_file: str) -> None:
    """What `erosion client` does, with its log."""
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    serve(Path(site_file), Until())


def is_away_now_and_then(site_file: str) -> None:
    """An honest site that answers nothing where AWAY says so."""
    answer = Hospital.answer

    def answer_or_not(self: Hospital, request: TrainRequest) -> TrainResult | StepResult:
        if (self.name, request.round, request.step) in AWAY:
            raise Refusal("Away for the moment.")
        return answer(self, request)

    setattr(Hospital, "answer", answer_or_not)  # noqa: B010 - mypy allows no assignment here
    serves(site_file)


def dies_before_it_masks(site_file: str) -> None:
    """An honest site that is killed when it is asked for its masked update of the second round."""
    answer = Hospital.answer

    def answer_or_die(self: Hospital, request: TrainRequest) -> TrainResult | StepResult:
        if (request.round, request.step) == (2, MASKED):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(self, request)

    setattr(Hospital, "answer", answer_or_die)  # noqa: B010 - mypy allows no assignment here
    serves(site_file)


def lies(site_file: str) -> None:
    """Gives the distance of next to nothing, and sums the opposite of its update, four times."""
    distance = SealedSite.distance

    def claim(self: SealedSite, *asked: Any) -> tuple[int, dict[str, bytes]]:
        greeted = self.phase
        assert isinstance(greeted, Greeted)
        self._phase = replace(greeted, update=np.float32(1 / 16) * greeted.update)
        answered = distance(self, *asked)
        measured = self.phase
        assert isinstance(measured, Measured)
        self._phase = replace(measured, greeted=replace(greeted, update=-4 * greeted.update))
        return answered

    setattr(SealedSite, "distance", claim)  # noqa: B010 - mypy allows no assignment here
    serves(site_file)


def signs_other_keys(site_file: str) -> None:
    """Has a signature of its fresh keys that is none."""
    hello = SealedSite.hello

    def unsigned(self: SealedSite, *asked: Any) -> Hello:
        return replace(hello(self, *asked), signature=bytes(70))

    setattr(SealedSite, "hello", unsigned)  # noqa: B010 - mypy allows no assignment here
    serves(site_file)
