"""Sites are told that a study is over, also where it failed and nobody goes on with it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from erosion.common.errors import DiskError, HopelessError, RunError
from erosion.common.protocol import wire
from erosion.common.rounds.waiting import HospitalsAwayError, UserDeclinedError
from erosion.server.coordination import run_app, run_study
from erosion.server.output.observers import Observers
from erosion.server.run.run_folder import new_run_folder
from tests.support.small_study import make_study


class StubLink:
    """One site, and what it is told."""

    enrolled_only, address, certificate_expires = False, "127.0.0.1:9092", None

    def __init__(self) -> None:
        self.told: list[str] = []
        self.grid = self

    def get_node_ids(self) -> list[int]:
        return [2]

    def send_and_receive(self, messages: Sequence[Message], *, timeout: float) -> Iterator[Message]:
        del timeout
        notices = [wire.decode_notice(message.content) for message in messages]
        self.told += [notice.text for notice in notices if notice.study_ended]
        return iter(())

    def start(self) -> None:
        pass

    def stop(self, *, completed: bool) -> None:
        del completed


@pytest.mark.parametrize(
    ("problem", "in_queue", "is_told"),
    [
        (HopelessError("every round was skipped"), False, True),
        (RunError("put that right, then resume"), False, False),
        (UserDeclinedError("put that right, then resume"), False, False),
        (HopelessError("every round was skipped"), True, True),
        (UserDeclinedError("no study of its own"), True, True),
        (ZeroDivisionError(), True, True),
        (HospitalsAwayError("it has its turn again"), True, False),
        (DiskError("full"), True, False),
        (OSError("full"), True, False),
        (KeyboardInterrupt(), True, False),
    ],
)
def test_a_failure_that_nobody_goes_on_from_is_a_studys_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: BaseException,
    in_queue: bool,
    is_told: bool,
) -> None:
    """With --until-study-ends a site that took part would wait for it for ever."""

    class Fails:
        def __init__(self, *_: object, **__: object) -> None:
            self.waiting_for = list

        def run(self) -> None:
            raise problem

    monkeypatch.setattr(run_study, "Coordinator", Fails)
    study, link = make_study(), StubLink()
    folder = new_run_folder(tmp_path, study)
    untyped: Any = link
    expected = DiskError if isinstance(problem, OSError) else type(problem)
    with Observers({}) as observers, pytest.raises(expected):
        run_study.run_on(untyped, study, folder, observers, run_study.Setup(), others_stay=in_queue)
    assert link.told == ["the study has failed"] * is_told


def test_an_app_that_fails_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    link = StubLink()
    monkeypatch.setattr(run_app, "make_link", lambda *_: link)
    monkeypatch.setattr(run_app, "AppGrid", lambda grid: grid)
    app = ServerApp()

    @app.main()
    def main(_grid: Grid, _context: Context) -> None:
        raise ValueError

    with pytest.raises(RunError, match="The app failed"):
        run_app.run_app(app, {}, None, None)
    assert link.told == ["the study has failed"]
