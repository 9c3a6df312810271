"""Hospitals that live and do not answer: rounds wait for them less and less often."""

from dataclasses import replace

import pytest
import torch

from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds.presence import BackOff, too_slow
from tests.support.open_study import everybody, outcomes, study
from tests.support.scripted import Kept, step_result, study_run, trained


def test_who_never_answers_is_asked_in_ever_fewer_rounds() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "b" else trained(name, request)

    transport, kept = everybody(study(rounds=20), respond=respond), Kept()
    study_run(transport, kept)
    asked = [number for name, number, _ in transport.log if name == "b"]
    assert asked == [1, 2, 3, 5, 8, 13]
    assert transport.clock == len(asked) * 10.0
    assert outcomes(kept, "b") == ["absent"] * 20
    assert outcomes(kept, "c") == ["accepted"] * 20
    assert kept.records[4].hospitals["b"].reason == "did not answer within 10 s"
    assert kept.records[5].hospitals["b"].reason == (
        "was late 4 times in a row, and is asked again in round 8"
    )


def test_an_answer_in_time_makes_up_for_all_that_came_late() -> None:
    late_in = {1, 2, 3, 5, 9, 10}

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "b" and request.round in late_in else trained(name, request)

    transport, kept = everybody(study(rounds=11), respond=respond), Kept()
    study_run(transport, kept)
    absent = [r.round for r in kept.records if r.hospitals["b"].outcome == "absent"]
    assert absent == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert transport.clock == len(late_in) * 10.0


@pytest.mark.parametrize("quorum", [2, 3])
def test_whom_a_quorum_needs_is_asked_in_every_round(quorum: int) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "b" and request.round < 5 else trained(name, request)

    federation = {"quorum": quorum, "max_skipped_rounds": 5}
    transport, kept = everybody(study(rounds=6, federation=federation), respond=respond), Kept()
    study_run(transport, kept)
    asked = [number for name, number, _ in transport.log if name == "b"]
    assert asked == ([1, 2, 3, 5, 6] if quorum == 2 else [1, 2, 3, 4, 5, 6])
    skipped = [record.round for record in kept.records if record.outcome == "skipped"]
    assert skipped == ([] if quorum == 2 else [1, 2, 3, 4])


def test_after_a_skipped_round_everybody_is_asked() -> None:
    """`c` fails while `b` pauses: who was late may be what the next round needs."""

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        late = (name == "b" and request.round in (1, 2, 3, 5)) or (name, request.round) == ("c", 6)
        return None if late else trained(name, request)

    transport, kept = everybody(study(rounds=7), respond=respond), Kept()
    study_run(transport, kept)
    assert [r.round for r in kept.records if r.outcome == "skipped"] == [6]
    assert outcomes(kept, "b") == ["absent"] * 6 + ["accepted"]


def test_the_user_is_always_asked() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "a" and request.round < 5 else trained(name, request)

    slow_user = study(rounds=6, federation={"max_skipped_rounds": 5})
    transport, kept = everybody(slow_user, respond=respond), Kept()
    study_run(transport, kept)
    assert [number for name, number, _ in transport.log if name == "a"] == [1, 2, 3, 4, 5, 6]


def test_who_answers_the_first_exchange_and_not_the_second_is_late_too() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | StepResult | None:
        if request.step == "gradient":
            assert request.parameters is not None
            found = step_result(name, request, gradient=torch.ones_like(request.parameters))
            values = {"num_samples": 10}
            return replace(found, header=found.header.model_copy(update={"values": values}))
        return None if name == "b" else trained(name, request)

    transport, kept = everybody(study(rounds=8, arms={"fedlin": {}}), respond=respond), Kept()
    study_run(transport, kept)
    asked = [number for name, number, step in transport.log if (name, step) == ("b", "train")]
    assert asked == [1, 2, 3, 5, 8]


def test_a_pause_doubles_with_every_time() -> None:
    back_off, asked = BackOff(), []
    for number in range(1, 101):
        if back_off.why_paused("b", number) is None:
            asked.append(number)
            back_off.round_ended(number, {"b"}, set())
        else:
            back_off.round_ended(number, set(), {"a"})
    assert asked == [1, 2, 3, 5, 8, 13, 22, 39, 72]
    assert back_off.why_paused("a", 101) is None


def test_who_always_answers_just_before_the_deadline_is_left_out_for_longer_and_longer() -> None:
    back_off, asked = BackOff(), []
    for number in range(1, 101):
        seconds = {"a": 1.0, "c": 2.0}
        if back_off.why_paused("b", number) is None:
            asked.append(number)
            seconds["b"] = 119.0
        slow = too_slow(seconds, 120.0)
        back_off.round_ended(number, set(), seconds.keys(), slow)
    assert len(asked) == 9
    paused = back_off.why_paused("b", 101)
    assert paused is not None
    assert paused.left_out == "slow"
    assert back_off.why_paused("a", 101) is None


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({"a": 1.0, "b": 59.0, "c": 1.0}, set()),  # less than half of the deadline
        ({"a": 100.0, "b": 110.0, "c": 90.0}, set()),  # all are slow
        ({"a": 1.0, "b": 60.0, "c": 1.0}, {"b"}),
        ({"a": 1.0, "b": 60.0, "c": 70.0}, set()),  # of three, two are
        ({"a": 1.0, "b": 80.0, "c": 70.0, "d": 2.0, "e": 1.0}, {"b", "c"}),
        ({"b": 110.0}, set()),
    ],
)
def test_slow_is_who_takes_most_of_the_deadline_and_much_longer_than_the_others(
    seconds: dict[str, float], slow: set[str]
) -> None:
    assert too_slow(seconds, 120.0) == slow
