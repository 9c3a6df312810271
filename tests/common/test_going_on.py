"""The driver over a scripted transport: a run that was interrupted goes on where it was."""

import pytest
import torch

from erosion.common.protocol.messages import TrainRequest, TrainResult
from erosion.server.run.absences import absences
from tests.support.open_study import everybody, outcomes, study
from tests.support.scripted import Kept, Scripted, study_run, trained


class KilledError(Exception):
    """The coordinator is gone."""


@pytest.mark.parametrize("killed_in", [1, 2, 4])
def test_a_run_that_was_interrupted_goes_on_where_it_was(killed_in: int) -> None:
    of = study(arms={"weight_erosion": {}, "fedavg": {}}, scaling="none")
    uninterrupted = study_run(everybody(of), Kept()).run()

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (request.arm, request.round, name) == ("fedavg", killed_in, "b"):
            raise KilledError
        return trained(name, request)

    kept = Kept()
    with pytest.raises(KilledError):
        study_run(everybody(of, respond=respond), kept).run()
    resumed = study_run(everybody(of), kept).run()
    for arm, final in uninterrupted.finals.items():
        assert torch.equal(resumed.finals[arm].params, final.params)
        assert resumed.finals[arm].weights == final.weights
    rounds = [(record.arm, record.round) for record in kept.records]
    assert rounds == [(arm, number) for arm in of.arms for number in (1, 2, 3, 4)]


def test_a_run_that_goes_on_keeps_its_scaling_and_its_choices() -> None:
    sums = {"count": [10, 0], "total": [1.0, 0.0], "squares": [1.0, 0.0]}
    of = study(scaling="federated", selection={"folds": 2})
    kept = Kept()
    first = Scripted(of)
    first.join("a", "b", "c", sums=sums)
    study_run(first, kept).run()
    decisions, num_trials = kept.decisions, len(kept.trials)
    second = Scripted(of)
    second.join("a", "b", sums={**sums, "total": [2.0, 0.0]})
    study_run(second, kept).run()
    assert kept.decisions == decisions
    assert len(kept.trials) == num_trials == 2 * 5


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
        study_run(first, kept).run()
    second = everybody(of)  # c, too
    study_run(second, kept).run()
    assert second.clock == 0.0  # a and b are all that it waits for
    assert outcomes(kept, "b") == ["accepted"] * 8
    assert outcomes(kept, "c") == ["absent"] * 8
    assert kept.records[-1].hospitals["c"].reason == "was not there when the study began"
    assert second.turned_away[0][0] == "c"


def test_an_open_run_that_goes_on_takes_newcomers() -> None:
    kept = Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if request.round == 3:
            raise KilledError
        return trained(name, request)

    first = Scripted(study(), respond)
    first.join("a", "b")
    with pytest.raises(KilledError):
        study_run(first, kept).run()
    study_run(everybody(study()), kept).run()
    assert outcomes(kept, "c") == ["absent", "absent", "accepted", "accepted"]
    (absent,) = absences(["a", "b", "c"], "a", {"fedavg": kept.records})
    assert (absent.rounds, absent.everywhere) == ({"fedavg": 2}, False)


def test_the_evaluation_waits_for_the_user_to_come_back() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("c", 4):
            transport.leave("a")
            transport.at(100.0, lambda script: script.join("a"))
        return trained(name, request)

    transport, kept = everybody(study(), respond=respond), Kept()
    outcome = study_run(transport, kept).run()
    assert outcome.evaluation.hospital == "a"
    assert transport.clock >= 100.0
