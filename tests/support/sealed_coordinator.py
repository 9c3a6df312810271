"""A coordinator of sealed rounds in a process of its own, killed or searched at a chosen moment."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erosion_common.sealed.coordinator import Attempt
from erosion_common.sealed.masks import Words
from erosion_common.sealed.phases import View
from erosion_common.study.study import study_from_json
from erosion_server.output.observers import Observers
from erosion_server.run.run_folder import open_run_folder
from tests.support.killed_coordinator import coordinate, die
from tests.support.patience import PATIENCE


def killed_in_leg(study: str, folder: str, address: str, leg: str, number: int) -> None:
    """Killed in that leg of that round, when two hospitals have answered."""
    from erosion_server.coordination.network import NetworkChannel

    ask = NetworkChannel.ask

    def ask_and_die(self: Any, requests: Mapping[int, Any], seconds: float) -> Iterator[Any]:
        request = next(iter(requests.values()))
        is_it = (request.step, request.round) == (leg, number)
        for answered, reply in enumerate(ask(self, requests, seconds), start=1):
            yield reply
            if is_it and answered == 2:
                die()

    setattr(NetworkChannel, "ask", ask_and_die)  # noqa: B010 - mypy allows no assignment here
    coordinate(study, folder, address, None)


def coordinate_and_stand_still(
    study: str, folder: str, address: str, marks: str, updates: Any
) -> None:
    """Stands still in the second round, before and after the masks come off, until told to go on.

    The files in `marks` say when, and what the hospitals were told. What is planted there it takes
    into its memory, so that a search can be seen to find it.
    """
    from erosion_common.support.logs import configure_logging
    from erosion_server.coordination.run_study import Setup, run_study

    unmasked, planted = Attempt.unmasked, list[bytes]()

    def stand(moment: str, view: View) -> None:
        mark = Path(marks) / moment
        told = {"scale": view.scale, **view.weights}
        mark.with_suffix(".new").write_text(json.dumps(told))
        mark.with_suffix(".new").rename(mark)
        deadline = time.monotonic() + PATIENCE
        while not mark.with_suffix(".go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
            if (Path(marks) / "planted").exists() and not planted:
                planted.append((Path(marks) / "planted").read_bytes())
                (Path(marks) / "held").touch()

    def slowly(
        self: Attempt, view: View, total: Words, delivered: Mapping[str, bytes], released: Any
    ) -> NDArray[np.float32]:
        if self.context.round != 2:
            return unmasked(self, view, total, delivered, released)
        stand("masked", view)
        values = unmasked(self, view, total, delivered, released)
        stand("unmasked", view)
        return values

    setattr(Attempt, "unmasked", slowly)  # noqa: B010 - mypy allows no assignment here
    configure_logging(0)
    parsed = study_from_json(study)
    setup = Setup(address, updates=updates)
    run_study(parsed, open_run_folder(Path(folder), parsed), Observers({}), setup)
