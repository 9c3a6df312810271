"""Sites that keep their log, and that are away in chosen legs of sealed rounds."""

import os
import signal
from pathlib import Path

from erosion.client.connection.agent import Until
from erosion.client.connection.serve import serve
from erosion.client.site_file import load_site
from erosion.client.training.hospital import Hospital
from erosion.common.errors import Refusal
from erosion.common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion.common.sealed.legs import DISTANCE, MASKED
from erosion.common.support.logs import configure_logging

AWAY = (("carol", 3, "train"), ("dave", 4, MASKED), ("carol", 5, DISTANCE))


def serves(site_file: str) -> None:
    """What `erosion client` does, with its log."""
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    serve(load_site(Path(site_file)), Until())


def is_away_now_and_then(site_file: str) -> None:
    """An honest site that answers nothing where AWAY says so."""
    answer = Hospital.answer

    def answer_or_not(self: Hospital, request: TrainRequest) -> TrainResult | StepResult:
        if (self.name, request.round, request.step) in AWAY:
            raise Refusal("Away for the moment.")
        return answer(self, request)

    setattr(Hospital, "answer", answer_or_not)  # noqa: B010 - mypy allows no assignment here
    serves(site_file)
