"""GEMS as methods of a study: their parts by hand, and whole rounds in a simulation."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from erosion.simulation.simulator import InProcess, simulate
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.aggregation.cohort import Update
from erosion_common.algorithms.base import RoundStart, SiteAnswer, Step
from erosion_common.algorithms.gems.balls import Layer, hidden_features, split_layers
from erosion_common.algorithms.gems.network import NetworkGems, padded
from erosion_common.algorithms.gems.personal import PersonalGems
from erosion_common.algorithms.gems.rounds import BALL, Gems, GemsState, SentBall
from erosion_common.learning.models import Mlp, build_model
from erosion_common.protocol.messages import StepReply, StepResult, TrainRequest, TrainResult
from erosion_common.rounds.channel import Connection, Reply, Request, Result
from erosion_common.rounds.records import Rejection, RoundRecord
from erosion_common.rounds.screening import reject_outsized
from erosion_common.rounds.study import run_study
from erosion_common.study.study import Study
from tests.support.close import assert_close
from tests.support.hand_sized import cohort
from tests.support.local_works import along, work
from tests.support.refusals import refused
from tests.support.scripted import Kept, Scripted, context, step_result, study_run, trained
from tests.support.small_study import make_site, make_study, twenty_patients
from tests.support.tasks import classes_of

MLP = {"name": "mlp", "hidden": [12]}


def update(agent: str, *delta: float, radius: float = 1.0) -> Update:
    ball = SentBall(agent, radius, 0.9, 0.7, 8)
    values = torch.tensor(delta, dtype=torch.float32)
    return Update(agent, 1, values, 10, 10, {BALL: ball.tensor})


def test_a_mean_in_all_balls_is_taken() -> None:
    step = Gems().update(GemsState(0), cohort(update("a", 0, 0), update("b", 1, 0)))
    assert step.delta.tolist() == [0.5, 0]
    assert step.weights == {"a": 1.0, "b": 1.0}
    assert step.state.round == 1


def test_balls_that_do_not_meet_are_named_with_what_is_missing() -> None:
    step = Gems().update(GemsState(0), cohort(update("a", 0, 0), update("b", 4, 0)))
    assert step.delta.tolist() == pytest.approx([2, 0])
    assert re.findall(r"(\w)'s by (\d)", step.note) == [("a", "1"), ("b", "1")]


@pytest.mark.parametrize("radius", [-1.0, 1e30])
def test_a_radius_that_cannot_be_believed_leaves_its_hospital_out(radius: float) -> None:
    far = update("c", 100, 100, radius=radius)
    step = Gems().update(GemsState(0), cohort(update("a", 0, 0), update("b", 1, 0), far))
    assert step.delta.tolist() == [0.5, 0]
    assert step.weights["c"] == 0
    assert step.note.startswith("c ")
    own = Gems().update(GemsState(0), cohort(update("a", 1, 2, radius=-1.0)))
    assert own.delta.tolist() == [1, 2]  # the user's own model counts in any case


def test_a_peer_in_another_direction_does_not_count() -> None:
    """Directions 0, 30, 60 and 180 degrees: distances .518, 1 and 2; beyond .776 is 0."""
    turned = [update(n, c, s) for n, c, s in [("b", 0.866, 0.5), ("c", 0.5, 0.866), ("d", -9, 0)]]
    step = PersonalGems().update(GemsState(0), cohort(update("a", 1, 0), *turned))
    assert step.weights == pytest.approx({"a": 1, "b": 1, "c": 0, "d": 0})
    assert step.delta.tolist() == pytest.approx([0.933, 0.25], abs=1e-3)
    near = PersonalGems().update(GemsState(0), cohort(update("a", 1, 0), update("b", 10, 0.1)))
    assert near.weights["b"] == 1  # not by its length


@pytest.mark.parametrize("own", [(0.0, 0.0), (1.0, 0.0)])
def test_an_update_without_a_direction_gets_no_weight(own: tuple[float, float]) -> None:
    nothing = cohort(update("a", *own), update("b", 0, 0), update("c", 1, 0.1))
    step = PersonalGems().update(GemsState(0), nothing)
    assert step.weights["b"] == (0 if any(own) else 1)  # all are equally far from nothing
    assert bool(torch.isfinite(step.delta).all())


def test_with_balls_the_model_stays_in_the_users() -> None:
    near = cohort(update("a", 1, 0, radius=0.1), update("b", 2, 0.1, radius=0.2))
    step = PersonalGems(balls="user").update(GemsState(0), near)
    assert float((step.delta - torch.tensor([1.0, 0.0])).norm()) == pytest.approx(0.1, abs=1e-5)
    assert "b's" in step.note


def test_a_padded_perceptron_predicts_what_the_narrow_one_does() -> None:
    inputs = torch.randn(9, 4)
    narrow = (Layer(torch.randn(3, 4), torch.randn(3)), Layer(torch.randn(2, 3), torch.randn(2)))
    wide = split_layers(padded(narrow, (4, 7, 2)), (4, 7, 2))
    assert_close(
        wide[1](hidden_features(wide[:1], inputs)), narrow[1](hidden_features(narrow[:1], inputs))
    )


@pytest.mark.parametrize(
    ("arm", "model", "said"),
    [
        ("gems", MLP, "network_gems"),
        ("network_gems", {"name": "logistic"}, "hidden"),
        ({"algorithm": "personal_gems", "balls": "user"}, MLP, "balls = 'off'"),
        ({"algorithm": "gems", "local_rounds": 10_000}, {"name": "logistic"}, "local_rounds"),
    ],
)
def test_what_a_study_cannot_have_is_said_with_the_remedy(arm: Any, model: Any, said: str) -> None:
    training = {"steps": 50, "batch_size": 4}
    with refused(ValueError, said):
        make_study(arms={"x": {"algorithm": arm} if isinstance(arm, str) else arm}, model=model,
                   training=training)  # fmt: skip


NAMES = ("a", "b", "c")


def simulated(
    folder: Path, texts: Sequence[str] | None = None, **changes: Any
) -> tuple[Mapping[str, list[RoundRecord]], Mapping[str, Tensor], Mapping[str, float]]:
    """Records, final parameters and accuracies by arm of a study of three hospitals."""
    study = make_study(**{"hospitals": NAMES, "rounds": 1, "training": TRAINING, "scaling": "local",
                          **changes})  # fmt: skip
    given = texts or [twenty_patients(older) for older in (0, 2, 4)]
    sites = zip(study.hospitals, given, strict=True)
    hospitals = {name: Hospital(small_site(folder, name, text)) for name, text in sites}
    outcome = simulate(study, hospitals)
    finals = {arm: state.params for arm, state in outcome.finals.items()}
    return outcome.records, finals, {a: m["accuracy"] for a, m in outcome.evaluation.arms.items()}


def small_site(folder: Path, name: str, text: str) -> Site:
    """A site without a smallest cell, which no site file can have: these are two patients."""
    site = make_site(folder, text, name=name, file=f"{name}.csv", limits={"min_patients": 1})
    return site.model_copy(update={"limits": site.limits.model_copy(update={"min_cell": 1})})


TRAINING = {"steps": 60, "batch_size": 8, "learning_rate": 0.5}


def test_a_hospital_that_contradicts_the_others_is_named(tmp_path: Path) -> None:
    wrong = twenty_patients().replace(",0\n", ",x\n").replace(",1\n", ",0\n")
    wrong = wrong.replace(",2\n", ",0\n").replace(",x\n", ",1\n")
    texts = [twenty_patients(), twenty_patients(2), wrong]
    records, finals, accuracies = simulated(
        tmp_path, texts, arms={"gems": {"epsilon": 0.9}, "personal_gems": {}, "fedavg": {}}
    )
    note = records["gems"][0].note
    assert re.search("c has .* with a or b ", note)
    (personal,) = records["personal_gems"]
    assert personal.hospitals["c"].weight_after == 0
    assert personal.hospitals["b"].weight_after == 1
    assert accuracies["personal_gems"] >= accuracies["fedavg"]
    assert not torch.equal(finals["personal_gems"], finals["fedavg"])


def test_an_accuracy_that_no_model_reaches_is_said_with_what_was_reached(tmp_path: Path) -> None:
    header, *rows = twenty_patients().splitlines()
    # The same patients once more, with the other diagnosis: half of them are always wrong.
    twice = [row[:-1] + ("0" if row[-1] != "0" else "1") for row in rows]
    torn = "\n".join([header, *rows, *twice, ""])
    records, _, _ = simulated(tmp_path, [torn] * 3, arms={"gems": {"epsilon": 0.95}})
    assert re.search(r"a asks .*0\.95.* reaches 0\.", records["gems"][0].note)


def test_a_hospital_too_small_to_hold_anybody_out_takes_part(tmp_path: Path) -> None:
    tiny = "age,sex,ill\n40,f,0\n70,m,1\n"  # nobody of a class of one is held out
    texts = [twenty_patients(), twenty_patients(2), tiny]
    for number, (model, arm) in enumerate([({"name": "logistic"}, "gems"), (MLP, "network_gems")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        records, _, _ = simulated(folder, texts, model=model, arms={arm: {}})
        assert records[arm][0].hospitals["c"].outcome == "accepted"


@pytest.mark.parametrize("hidden", [[12], [12, 9], [2]])
def test_a_network_is_merged_layer_by_layer(tmp_path: Path, hidden: list[int]) -> None:
    records, finals, accuracies = simulated(
        tmp_path, model={"name": "mlp", "hidden": hidden}, arms={"network_gems": {"clusters": 4}}
    )
    (record,) = records["network_gems"]
    assert record.outcome == "done"
    assert [step.step for step in record.steps] == ["neurons"] * len(hidden) + ["output", "check"]
    layers = split_layers(finals["network_gems"], (2, *hidden, 2))
    for layer in layers[:-1]:
        used = int((layer.neurons.abs().sum(dim=1) > 0).sum())
        assert 1 <= used <= layer.weight.shape[0]
    assert accuracies["network_gems"] > 0.6  # of six patients


HALF_OF_EACH_CLASS = (0, 1) * 16


def test_the_neurons_of_every_layer_tell_who_did_harm(tmp_path: Path) -> None:
    study = make_study(
        hospitals=NAMES,
        rounds=1,
        training=TRAINING,
        scaling="local",
        model={"name": "mlp", "hidden": [12, 9]},
        arms={"network_gems": {}},
    )
    sites = {n: Hospital(small_site(tmp_path, n, twenty_patients())) for n in NAMES}
    lengths = simulate(study, sites).finals["network_gems"].lengths
    assert [sorted(lengths[name]) for name in NAMES] == 3 * [["", "neurons 1", "neurons 2"]]


def test_class_weights_count_in_the_layer_above_merged_neurons() -> None:
    """24 patients are not held out, and are one mini-batch; every feature is 1."""
    found = {}
    for weights in ("none", (1.0, 9.0)):
        of = work(
            labels=HALF_OF_EACH_CLASS,
            task=classes_of(2, class_weights=weights),
            model=build_model(Mlp(hidden=(1,)), (1,), 2),
            received=torch.zeros(6),
            enclosed={"hidden_0": torch.tensor([[1.0, 0.0]])},
        )
        found[weights] = along(NetworkGems().train(of).delta[2:])
    t = 0.0
    for _ in range(3):  # passes at a learning rate of 0.1: half of the patients count nine times
        s = 1 / (1 + math.exp(4 * t))
        t += 0.1 * (9 * s - (1 - s)) / 2
    assert found == {"none": 0.0, (1.0, 9.0): pytest.approx(t)}


def test_public_data_tune_the_output_layer_and_take_no_other_part(tmp_path: Path) -> None:
    for number, (model, arm) in enumerate([({"name": "logistic"}, "gems"), (MLP, "network_gems")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        records, finals, _ = simulated(
            folder, model=model, arms={"x": {"algorithm": arm, "public_hospital": "c"},
                                       "y": {"algorithm": arm}},
        )  # fmt: skip
        (record,) = records["x"]
        assert "fine-tuned by" in record.note
        assert record.hospitals["c"].weight_after is None
        asked = {step.step: set(step.hospitals) for step in record.steps}
        assert asked["tune"] == {"c"}
        last = "train" if arm == "gems" else "output"
        assert asked[last] == asked["check"] == {"a", "b"}
        assert not torch.equal(finals["x"], finals["y"])


class Countertuning(Hospital):
    """What it has tuned is wrong, and as long as screening lets pass."""

    times = -15.0

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        result = super().answer(request)
        if isinstance(result, TrainResult) or request.step != "tune":
            return result
        return replace(result, tensors={n: self.times * t for n, t in result.tensors.items()})


class Overtuning(Countertuning):
    """What it has tuned is a million times as long as it should be."""

    times = 1e6


class Contrary(Hospital):
    """Its update is wrong, as long as screening lets pass, and in the smallest ball."""

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        result = super().answer(request)
        if not isinstance(result, TrainResult) or request.round > 1:
            return result
        ball = result.attachments["ball"].clone()
        ball[0] = 1e-3
        attachments = {**result.attachments, "ball": ball}
        return replace(result, sent=-18 * result.delta, attachments=attachments)


def test_an_output_layer_out_of_all_proportion_does_not_become_the_models(tmp_path: Path) -> None:
    study = make_study(
        hospitals=NAMES,
        rounds=1,
        model=MLP,
        training=TRAINING,
        scaling="local",
        arms={"network_gems": {"public_hospital": "c"}},
    )
    kinds = {"a": Hospital, "b": Hospital, "c": Overtuning}
    sites = {n: kinds[n](small_site(tmp_path, n, twenty_patients())) for n in study.hospitals}
    outcome = simulate(study, sites)
    (record,) = outcome.records["network_gems"]
    assert "not fine-tuned" in record.note
    assert record.hospitals["c"].outcome == "rejected"
    assert float(outcome.finals["network_gems"].params.norm()) < 100


@pytest.mark.parametrize(
    ("culprit", "kinds"), [("b", {"b": Contrary}), ("c", {"c": Countertuning}), ("", {})]
)
def test_a_public_hospital_is_named_for_its_own_harm_alone(
    tmp_path: Path, culprit: str, kinds: dict[str, type[Hospital]]
) -> None:
    study = make_study(
        hospitals=NAMES,
        rounds=3,
        training={**TRAINING, "learning_rate": 5.0},
        scaling="local",
        arms={"gems": {"gems_rounds": 2, "public_hospital": "c"}},
    )
    sites = {
        name: kinds.get(name, Hospital)(small_site(tmp_path, name, twenty_patients()))
        for name in NAMES
    }
    outcome = simulate(study, sites)
    assert outcome.records["gems"][0].hospitals["c"].outcome == "accepted"
    assert outcome.records["gems"][1].undoes == (1 if culprit else None)
    assert "".join(outcome.finals["gems"].distrusted) == culprit


@pytest.mark.parametrize(
    ("sent", "tuned", "said"),
    [
        (0.0, 2.0, ""),
        (0.001, 2.0, ""),
        (0.5, 21.0, "norm 42, more than 20 times what is usual (2)"),
        (30.0, 60.0, ""),
        (30.0, 6000.0, "norm 1.2e+04, more than 20 times what is usual (60)"),
    ],
)
def test_a_tuned_layer_is_measured_by_the_one_that_was_sent_and_by_weights_of_one(
    sent: float, tuned: float, said: str
) -> None:
    begun = RoundStart(1, "a", ("a", "b", "c"), torch.full((4,), 1e-3))
    step = Step(torch.full((4,), sent - 1e-3), {}, GemsState(1))
    ask = next(Gems(public_hospital="c").after_meeting(begun, step, (1, 2)))
    assert ask.baseline is not None
    answer = SiteAnswer({"output": torch.full((4,), tuned)}, norm=2 * tuned)
    (screened,) = reject_outsized({"c": answer}, "a", ask.baseline, 4).values()
    assert screened == (Rejection(said) if said else answer)


# -- Rounds of GEMS that go wrong: sites that send nonsense, a coordinator that is killed ----------

HOSPITALS = ["a", "b", "c"]
SMALL_MLP = {"name": "mlp", "hidden": [6]}  # two neurons for each of three


def small_network(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "hospitals": HOSPITALS,
        "rounds": 1,
        "model": SMALL_MLP,
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
    transport, kept = Scripted(small_network()), Kept()
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
        pytest.param(SMALL_MLP, {"network_gems": {"clusters": 3}}, 3, id="network_gems"),
        pytest.param(
            {"name": "logistic"}, {"personal_gems": {"balls": "user"}}, 2, id="personal_gems"
        ),
    ],
)
def test_killed_between_any_two_exchanges_and_resumed_it_is_the_same_model(
    tmp_path: Path, model: Any, arms: Any, exchanges: int
) -> None:
    small = small_network(model=model, arms=arms)
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
