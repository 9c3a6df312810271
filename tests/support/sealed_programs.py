"""Sites that keep their log, that are away in chosen legs of sealed rounds, and that lie."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from erosion_client.connection.agent import Until
from erosion_client.connection.serve import serve
from erosion_client.connection.site_link import SiteLink
from erosion_client.sealed.sealed_site import Greeted, Measured, SealedSite
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import Refusal
from erosion_common.protocol import wire
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.sealed.phases import DISTANCE, MASKED, UNMASK, Hello
from erosion_common.support.logs import configure_logging
from erosion_common.support.status import STATUS_NAME
from tests.support.patience import wait_until

FIVE_SUMMED = "min_summed = 5"  # more than there are
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


def changes_its_limits(site_file: str, leg: str, *, once_sent: bool) -> None:
    """Somebody there asks for sums of five in round 2, as the site answers `leg` or after it."""
    answer, reply = Hospital.answer, SiteLink.reply

    def change(number: int, step: str) -> None:
        text = Path(site_file).read_text()
        if (number, step) == (2, leg) and FIVE_SUMMED not in text:
            Path(site_file).write_text(f"{text}\n[limits]\n{FIVE_SUMMED}\n")

    def answer_and_change(self: Hospital, request: TrainRequest) -> TrainResult | StepResult:
        answered = answer(self, request)
        change(request.round, request.step)
        return answered

    def reply_and_change(self: SiteLink, request: Message, *said: Any) -> None:
        reply(self, request, *said)
        header = wire.header_of(request.content)
        change(header.get("round", 0), header.get("step", ""))

    if once_sent:
        setattr(SiteLink, "reply", reply_and_change)  # noqa: B010 - mypy allows no assignment here
    else:
        setattr(Hospital, "answer", answer_and_change)  # noqa: B010
    serves(site_file)


def waits_for_carol(site_file: str) -> None:
    """The user's site: trains in round 3 until carol has connected anew, and slowly from then on.

    A round that goes on introduces nobody, so it takes a few until carol is asked again.
    """
    status = Path(site_file).parents[1] / "carol" / "records" / "carol" / STATUS_NAME
    answer = Hospital.answer

    def answer_late(self: Hospital, request: TrainRequest) -> TrainResult | StepResult:
        if request.step == TRAIN and request.arm != "local":
            if request.round == 3:
                wait_until(lambda: "limits.min_summed" in status.read_text())
            if request.round > 3:
                time.sleep(0.5)
        return answer(self, request)

    setattr(Hospital, "answer", answer_late)  # noqa: B010 - mypy allows no assignment here
    serves(site_file)


def changes_its_limits_between_two_legs(site_file: str) -> None:
    """Its distance has left; then it waits for the weights."""
    changes_its_limits(site_file, DISTANCE, once_sent=True)


def changes_its_limits_as_it_masks(site_file: str) -> None:
    """Its masked update is made, under the former limits, and has not left."""
    changes_its_limits(site_file, MASKED, once_sent=False)


def changes_its_limits_once_it_masked(site_file: str) -> None:
    """Its masked update has left; then it waits to be asked for shares."""
    changes_its_limits(site_file, MASKED, once_sent=True)


def answers_unmask_twice(site_file: str) -> None:
    """An honest site but for this."""
    reply = SiteLink.reply

    def reply_twice(self: SiteLink, request: Message, *said: Any) -> None:
        reply(self, request, *said)
        if request.metadata.message_type == wire.train_type(UNMASK):
            reply(self, request, *said)

    setattr(SiteLink, "reply", reply_twice)  # noqa: B010 - mypy allows no assignment here
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
