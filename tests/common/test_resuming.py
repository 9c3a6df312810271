"""The driver over a scripted transport: a run that was interrupted goes on where it was."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from erosion_common.errors import RunError
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds.presence import BackOff, too_slow
from erosion_common.rounds.records import Absence
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.run.run_folder import open_run_folder
from tests.support.open_study import everybody, outcomes, played, study
from tests.support.scripted import Kept, Scripted, step_result, study_run, trained


class KilledError(Exception):
    """The coordinator is gone."""


@pytest.mark.parametrize("killed_in", [1, 2, 4])
def test_a_run_that_was_interrupted_goes_on_where_it_was(killed_in: int) -> None:
    of = study(arms={"weight_erosion": {}, "fedavg": {}}, scaling="none")
    uninterrupted = study_run(everybody(of), Kept())

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (request.arm, request.round, name) == ("fedavg", killed_in, "b"):
            raise KilledError
        return trained(name, request)

    kept = Kept()
    with pytest.raises(KilledError):
        study_run(everybody(of, respond=respond), kept)
    resumed = study_run(everybody(of), kept)
    for arm, final in uninterrupted.finals.items():
        assert torch.equal(resumed.finals[arm].params, final.params)
        assert resumed.finals[arm].weights == final.weights
    rounds = [(record.arm, record.round) for record in kept.records]
    assert rounds == [(arm, number) for arm in of.arms for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("killed", [False, True])
def test_skipped_rounds_at_the_end_of_an_arm_end_a_run_alike_if_it_was_interrupted(
    killed: bool,
) -> None:
    """Nothing is left to be given up; before, one that went on had figures and the other none."""
    of, kept = study(federation={"max_skipped_rounds": 2}), Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "a" and request.round > 2 else trained(name, request)

    whole = everybody(of, respond=respond)
    if killed:

        def dies(name: str, request: TrainRequest) -> TrainResult | None:
            if request.round == 4:
                raise KilledError
            return respond(name, request)

        with pytest.raises(KilledError):
            study_run(everybody(of, respond=dies), kept)
    found = study_run(whole, kept)
    assert [r.outcome for r in kept.records] == ["done", "done", "skipped", "skipped"]
    assert found.finals["fedavg"].round == 4


def test_an_arm_whose_rounds_were_all_skipped_has_no_figures_however_often_it_goes_on() -> None:
    of, kept = study(federation={"max_skipped_rounds": 4}), Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "a" else trained(name, request)

    for _ in range(2):
        with pytest.raises(RunError, match="Every round of fedavg was skipped"):
            study_run(everybody(of, respond=respond), kept)
    assert len(kept.records) == 4


@pytest.mark.parametrize("killed_in", [3, 8])
def test_a_selection_that_goes_on_asks_for_no_round_with_other_parameters(
    tmp_path: Path, killed_in: int
) -> None:
    """Sites answer a round of a run once; c was away from one that is over."""
    of = study(selection={"folds": 2}, scaling="federated")
    asked: dict[tuple[object, ...], tuple[object, ...]] = {}

    def respond(name: str, request: TrainRequest) -> TrainResult | Absence:
        place = name, request.study.digest, request.arm, request.round
        is_new = place not in asked
        assert request.parameters is not None
        content = tuple(request.parameters.tolist()), request.scaling
        assert asked.setdefault(place, content) == content
        if name == "a" and is_new and len({key[1:] for key in asked}) == killed_in:
            raise KilledError
        is_away = name == "c" and request.round == 2 and len(asked) < 8
        return Absence("was away") if is_away else trained(name, request)

    folder, sums = open_run_folder(tmp_path, of), {"count": [10, 0], "squares": [1.0, 0.0]}
    for total in (1.0, 2.0):
        transport = Scripted(of, respond)
        transport.join("a", "b", "c", sums={**sums, "total": [total, 0.0]})
        expected = pytest.raises(KilledError) if total == 1.0 else nullcontext()
        with FolderStore(folder) as keeper, expected:
            study_run(transport, Kept(), store=keeper)
    assert [(r.round, r.hospitals["c"].outcome) for r in FolderStore(folder).rounds_in_folds()] == [
        (number, "absent" if (trial, number) == (1, 2) else "accepted")
        for trial in (1, 2)
        for number in (1, 2, 3, 4, 5)
    ]


def test_a_run_that_goes_on_keeps_its_hospitals_and_takes_no_newcomer() -> None:
    of = study(federation={"join": "at_start"}, arms={"fedavg": {}, "weight_erosion": {}})
    kept = Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if request.arm == "weight_erosion":
            raise KilledError
        return trained(name, request)

    first = Scripted(of, respond)
    first.join("a", "b")
    with pytest.raises(KilledError):
        study_run(first, kept)
    second = everybody(of)  # c, too
    study_run(second, kept)
    assert second.clock == 0.0  # a and b are all that it waits for
    assert outcomes(kept, "b") == ["accepted"] * 8
    assert outcomes(kept, "c") == ["absent"] * 8
    assert kept.records[-1].hospitals["c"].reason == "was not there when the study began"
    assert second.turned_away[0][0] == "c"


# -- Hospitals that live and do not answer: rounds wait for them less and less often -------------


def test_who_never_answers_is_asked_in_ever_fewer_rounds() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "b" else trained(name, request)

    transport, kept = played(study(rounds=20), respond=respond)
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

    transport, kept = played(study(rounds=11), respond=respond)
    absent = [r.round for r in kept.records if r.hospitals["b"].outcome == "absent"]
    assert absent == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert transport.clock == len(late_in) * 10.0


@pytest.mark.parametrize(("late", "quorum"), [("b", 2), ("b", 3), ("a", 2)])
def test_the_user_and_whom_a_quorum_needs_are_asked_in_every_round(late: str, quorum: int) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == late and request.round < 5 else trained(name, request)

    federation = {"quorum": quorum, "max_skipped_rounds": 5}
    transport, kept = played(study(rounds=6, federation=federation), respond=respond)
    spared = (late, quorum) == ("b", 2)
    asked = [number for name, number, _ in transport.log if name == late]
    assert asked == ([1, 2, 3, 5, 6] if spared else [1, 2, 3, 4, 5, 6])
    skipped = [record.round for record in kept.records if record.outcome == "skipped"]
    assert skipped == ([] if spared else [1, 2, 3, 4])


def test_after_a_skipped_round_everybody_is_asked() -> None:
    """`c` fails while `b` pauses: who was late may be what the next round needs."""

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        late = (name == "b" and request.round in (1, 2, 3, 5)) or (name, request.round) == ("c", 6)
        return None if late else trained(name, request)

    _, kept = played(study(rounds=7), respond=respond)
    assert [r.round for r in kept.records if r.outcome == "skipped"] == [6]
    assert outcomes(kept, "b") == ["absent"] * 6 + ["accepted"]


def test_who_answers_the_first_exchange_and_not_the_second_is_late_too() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | StepResult | None:
        if request.step == "gradient":
            assert request.parameters is not None
            found = step_result(name, request, gradient=torch.ones_like(request.parameters))
            values = {"num_samples": 10}
            return replace(found, header=found.header.model_copy(update={"values": values}))
        return None if name == "b" else trained(name, request)

    transport, _ = played(study(rounds=8, arms={"fedlin": {}}), respond=respond)
    asked = [number for name, number, step in transport.log if (name, step) == ("b", "train")]
    assert asked == [1, 2, 3, 5, 8]


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
