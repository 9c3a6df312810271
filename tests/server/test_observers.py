"""Observers are isolated from the run and from each other."""

import logging
import re
import threading
from typing import cast

import pytest

from erosion_common.rounds.events import HospitalLeft, StudyBegunWithout
from erosion_server.output.events import ObserverDropped, RunEvent
from erosion_server.output.observers import InBackground, Observers
from tests.support.patience import PATIENCE


class Listener:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[RunEvent] = []
        self.num_closed = 0

    def notify(self, event: RunEvent) -> None:
        self.heard.append(event)

    def close(self) -> None:
        self.num_closed += 1


class Failing(Listener):
    """Fails whatever it is told, and when it is closed."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.problem = problem

    def notify(self, event: RunEvent) -> None:
        super().notify(event)
        raise self.problem

    def close(self) -> None:
        super().close()
        raise self.problem


class Hanging(Listener):
    """Waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def notify(self, event: RunEvent) -> None:
        self.let_go.wait(PATIENCE)
        super().notify(event)


LEFT = [HospitalLeft("alike"), HospitalLeft("miscoded")]


@pytest.mark.parametrize("problem", [OSError("disk full"), KeyError("x"), AssertionError()])
@pytest.mark.parametrize("place", [0, 1])
def test_an_observer_that_fails_is_reported_once_and_told_nothing_more(
    problem: Exception, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = Failing(problem), Listener()
    pair = [("bad", failing), ("good", other)]
    with Observers(dict(pair if place == 0 else pair[::-1])) as observers:
        for event in LEFT:
            observers.notify(event)
    assert failing.heard == LEFT[:1]
    assert [event for event in other.heard if event in LEFT] == LEFT
    (dropped,) = [event for event in other.heard if isinstance(event, ObserverDropped)]
    assert dropped.name == "bad"
    assert type(problem).__name__ in dropped.reason
    (line,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert " bad " in line.getMessage()
    assert failing.num_closed == 1


def test_nobody_waits_for_an_observer_in_the_background() -> None:
    slow = Hanging()
    with Observers({"slow": InBackground(slow)}) as observers:
        for event in LEFT:
            observers.notify(event)  # would hang here
        assert slow.heard == []
        slow.let_go.set()
    assert slow.heard == LEFT
    assert slow.num_closed == 1


def test_an_observer_in_the_background_changes_no_record_of_the_run() -> None:
    class Greedy(Listener):
        def notify(self, event: RunEvent) -> None:
            assert isinstance(event, StudyBegunWithout)
            cast("dict[str, str]", event.absent).clear()

    event = StudyBegunWithout({"a": "why"})
    with Observers({"greedy": InBackground(Greedy())}) as observers:
        observers.notify(event)
    assert event.absent == {"a": "why"}


def test_a_failure_in_the_background_drops_the_observer(caplog: pytest.LogCaptureFixture) -> None:
    with Observers({"bad": InBackground(Failing(OSError("unreachable")))}) as observers:
        observers.notify(LEFT[0])
    assert re.search(" bad .*OSError: unreachable", caplog.text, re.DOTALL)


def test_the_end_waits_for_a_hanging_observer_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("erosion_server.output.observers.CLOSE_SECONDS", 0.1)
    slow = Hanging()
    with Observers({"slow": InBackground(slow)}) as observers:
        observers.notify(LEFT[0])
    slow.let_go.set()
    assert "0.1 s" in caplog.text


def test_an_observer_that_is_far_behind_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("erosion_server.output.observers.MOST_EVENTS", 3)
    slow = Hanging()
    with Observers({"slow": InBackground(slow)}) as observers:
        for _ in range(10):
            observers.notify(LEFT[0])
    slow.let_go.set()
    assert "3 events" in caplog.text
