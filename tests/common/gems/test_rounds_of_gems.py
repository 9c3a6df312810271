"""Rounds of GEMS that go wrong: sites that send nonsense, a coordinator that is killed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from erosion.simulation.simulator import InProcess
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import StepReply, StepResult, TrainRequest
from erosion_common.rounds.channel import Connection, Reply, Request, Result
from erosion_common.rounds.records import RoundRecord
from erosion_common.rounds.study import run_study
from erosion_common.study.study import Study
from tests.support.scripted import Kept, Scripted, context, step_result, study_run, trained
from tests.support.small_study import make_site, make_study, twenty_patients

HOSPITALS = ["a", "b", "c"]
MLP = {"name": "mlp", "hidden": [6]}  # two neurons for each of three


def study(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "hospitals": HOSPITALS,
        "rounds": 1,
        "model": MLP,
        "arms": {"network_gems": {"clusters": 1, "neuron_epsilon": 0.5}},
        "federation": {"quorum": 2, "round_deadline_seconds": 10.0},
        "training": {"steps": 40, "batch_size": 8, "learning_rate": 0.5},
        "scaling": "local",
    }
    return make_study(**{**values, **changes})


# -- Sites that send nonsense --------------------------------------------------------------------

NEURONS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])  # [w, b] of two neurons, two inputs


def network_round(neurons_of_c: Mapping[str, Tensor]) -> tuple[RoundRecord, Tensor]:
    """A scripted round in which c sends those neurons, and the common layer that came of it."""
    transport, kept = Scripted(study()), Kept()
    transport.join(*HOSPITALS)
    common: list[Tensor] = []

    def respond(name: str, request: TrainRequest) -> Result:
        if request.step == "neurons":
            honest = {"neurons": NEURONS + 10 * (name == "b"), "radii": torch.tensor([0.1, 0.1])}
            return step_result(name, request, **(neurons_of_c if name == "c" else honest))
        if request.step == "check":
            found = StepReply(
                hospital=name, arm=request.arm, round=1, step="check", seconds=0.0,
                values={"accuracy": 0.9, "needed": 0.7},
            )  # fmt: skip
            return StepResult(found, {})
        common.append(request.enclosed["hidden_0"])
        return trained(name, request)

    transport.respond = respond
    study_run(transport, kept)
    (record,) = kept.records
    assert all(torch.equal(layer, common[0]) for layer in common)
    return record, common[0]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"neurons": torch.ones(2, 5), "radii": torch.ones(2)}, "shape"),  # other inputs
        ({"neurons": torch.ones(4, 3), "radii": torch.ones(4)}, "shape"),  # more neurons
        ({"neurons": NEURONS}, "radii"),
        ({"neurons": NEURONS, "radii": torch.tensor([1.0, float("inf")])}, "finite"),
        ({"neurons": NEURONS * 1e30, "radii": torch.ones(2)}, "usual"),
    ],
)
def test_a_hospital_of_another_architecture_is_left_out_of_the_round(
    sent: Mapping[str, Tensor], said: str
) -> None:
    record, common = network_round(sent)
    assert record.outcome == "done"
    assert record.hospitals["c"].outcome == "rejected"
    assert said in (record.hospitals["c"].reason or "")
    assert record.hospitals["c"].weight_after is None
    assert len(common) == 4  # the neurons of the other two


@pytest.mark.parametrize("radius", [-1.0, 1e30])
def test_a_neuron_whose_radius_cannot_be_believed_is_merged_with_none(radius: float) -> None:
    far = {"neurons": NEURONS + 5, "radii": torch.tensor([radius, radius])}
    record, common = network_round(far)
    assert record.hospitals["c"].outcome == "accepted"
    assert len(common) == 6
    assert {tuple(row) for row in (NEURONS + 5).tolist()} <= {tuple(row) for row in common.tolist()}


def test_a_radius_that_reaches_everything_moves_nobody_out_of_an_honest_ball() -> None:
    """The largest radius that is believed: c's ball holds all, the others' decide."""
    record, common = network_round(
        {"neurons": NEURONS + 5, "radii": torch.tensor([4000.0, 4000.0])}
    )
    assert record.hospitals["c"].outcome == "accepted"
    assert len(common) == 4  # both of c's and one of the others'
    for neuron in (*NEURONS, *(NEURONS + 10)):
        assert float((common - neuron).norm(dim=1).min()) <= 0.1 + 0.011


# -- A coordinator that ends between two exchanges ------------------------------------------------


class KilledError(BaseException):
    """Nobody catches it, as nobody catches a power cut."""


class UntilKilled(InProcess):
    """Hospitals in this process, and a coordinator that ends before its so many-th exchange."""

    def __init__(self, of: Study, hospitals: Mapping[str, Hospital], exchanges: int) -> None:
        super().__init__(of, hospitals)
        self._left = exchanges

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        if self._left == 0:
            raise KilledError
        self._left -= 1
        return super().ask(requests, seconds)


def hospitals(folder: Path) -> dict[str, Hospital]:
    folder.mkdir()
    return {
        name: Hospital(
            make_site(
                folder,
                twenty_patients(2 * number),
                name=name,
                file=f"{name}.csv",
                limits={"min_patients": 1},
            )
        )
        for number, name in enumerate(HOSPITALS)
    }


def run(transport: InProcess, of: Study, kept: Kept) -> Mapping[str, Tensor]:
    outcome = run_study(context(transport, of, kept))
    return {arm: state.params for arm, state in outcome.finals.items()}


@pytest.mark.parametrize(
    ("model", "arms", "exchanges"),
    [
        pytest.param({"name": "logistic"}, {"gems": {}}, 2, id="gems"),
        pytest.param(MLP, {"network_gems": {"clusters": 3}}, 3, id="network_gems"),
        pytest.param(
            {"name": "logistic"}, {"personal_gems": {"balls": "user"}}, 2, id="personal_gems"
        ),
    ],
)
def test_killed_between_any_two_exchanges_and_resumed_it_is_the_same_model(
    tmp_path: Path, model: Any, arms: Any, exchanges: int
) -> None:
    small = study(model=model, arms=arms)
    (arm,) = arms
    expected = run(InProcess(small, hospitals(tmp_path / "whole")), small, Kept())
    there = hospitals(tmp_path / "killed")  # who remember what they kept of the round cut off
    for number in range(1, exchanges):
        kept = Kept()
        with pytest.raises(KilledError):
            run(UntilKilled(small, there, number), small, kept)
        assert not kept.records
        resumed = run(InProcess(small, there), small, kept)
        assert torch.equal(resumed[arm], expected[arm])
        (record,) = kept.records
        assert record.outcome == "done"
        assert "by their own check" in record.note
