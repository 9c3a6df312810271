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
from erosion.common.study.study import Study
from erosion.server.coordination import run_app, run_study
from erosion.server.output.observers import Observers
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result
from erosion.server.run.run_folder import new_run_folder
from tests.support.small_study import make_study
from tests.support.synthetic_run import make_run


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


@pytest.mark.parametrize("user", ["a", "all"])
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
    user: str,
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
    study, link = make_study(user=user), StubLink()
    folder = new_run_folder(tmp_path, study)
    untyped: Any = link
    expected = DiskError if isinstance(problem, OSError) else type(problem)
    if user == "all" and expected in (UserDeclinedError, ZeroDivisionError):
        expected = RunError  # of the whole, with the first one's reason
    with Observers({}) as observers, pytest.raises(expected):
        run_study.run_on(untyped, study, folder, observers, run_study.Setup(), others_stay=in_queue)
    assert link.told == ["the study has failed"] * is_told


def test_a_part_that_nobody_goes_on_from_keeps_no_study_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_run(("fedavg", "local"), ("a", "b"), rounds=2).result

    class FailsForA:
        def __init__(self, study: Study, *_: object, **__: object) -> None:
            self.waiting_for, self.user = list, study.user

        def run(self) -> Result:
            if self.user == "a":
                raise HopelessError("every round was skipped")
            return result.model_copy(update={"user": self.user})

    monkeypatch.setattr(run_study, "Coordinator", FailsForA)
    study, link = make_study(user="all"), StubLink()
    folder = new_run_folder(tmp_path, study)
    untyped: Any = link
    with Observers({}) as observers:
        found = run_study.run_on(untyped, study, folder, observers, run_study.Setup())
    assert isinstance(found, Overview)
    assert list(found.users) == ["b"]
    assert found.without_model == {"a": "every round was skipped"}
    assert "every round was skipped" in folder.report.read_text()
    assert folder.has_ended
    assert link.told == ["the study has ended"]


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
