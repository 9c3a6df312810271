"""Differential privacy of local training: its accountant, its noise, its cut gradients."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import ArmBase, BuildContext
from erosion_common.algorithms.weight_erosion import ExpectedNoise, measure, noise_in
from erosion_common.errors import ModelError, StudyError
from erosion_common.learning.local_sgd import gradient
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.learning.models import (
    Mlp,
    MnistCnn,
    Resnet18,
    build_model,
    flat_parameters,
    model_of_shapes,
)
from erosion_common.learning.networks import ModelBase
from erosion_common.learning.private_step import (
    PatientRows,
    PrivateStep,
    clipped_sum,
    gaussian,
    problem_with_layers,
    with_noise,
)
from erosion_common.settings.base import validate
from erosion_common.study.privacy import delta_of, epsilon_of, noise_multiplier, strength_of
from erosion_common.study.study import Study
from tests.support.close import assert_close
from tests.support.contexts import context
from tests.support.local_works import along, layout, local_round, work
from tests.support.refusals import refused
from tests.support.small_study import TASK, make_study, with_missing

PRIVACY = {"epsilon": 3.0, "learning_rate": 1.0}
STEP = PrivateStep(
    clip_norm=1.0, noise_multiplier=0.0, learning_rate=1.0, weight_decay=0.0, patients=1.0, key=b"k"
)


@pytest.mark.parametrize(
    ("releases", "noise", "epsilon"),
    [  # dp-accounting 0.6.0, PLDAccountant with value_discretization_interval=1e-4, delta 1e-5
        (10, 1.91, 7.9397815397),
        (10, 4.40, 2.9980212697),
        (10, 11.8, 0.9997481093),
        (30, 3.29, 7.9929193770),
        (30, 7.62, 2.9984782848),
        (30, 20.4, 1.0018040821),
    ],
)
def test_epsilons_are_those_of_another_accountant(
    releases: int, noise: float, epsilon: float
) -> None:
    assert epsilon_of(releases * strength_of(noise), 1e-5) == pytest.approx(epsilon, abs=1e-6)


def test_releases_with_different_noise_add_up_as_in_another_accountant() -> None:
    strength = 3 * strength_of(2.0) + 20 * strength_of(7.0)
    assert epsilon_of(strength, 1e-6) == pytest.approx(5.3135011848, abs=1e-6)  # dp-accounting


@pytest.mark.parametrize(
    ("releases", "epsilon", "noise"),
    [(10, 8, 1.90), (10, 3, 4.40), (10, 1, 11.80), (30, 8, 3.29), (30, 3, 7.62), (30, 1, 20.43)],
)
def test_the_noise_is_the_least_that_keeps_the_promise(
    releases: int, epsilon: float, noise: float
) -> None:
    found = noise_multiplier(epsilon, 1e-5, releases)
    assert found == pytest.approx(noise, abs=0.005)  # as docs/privacy.md rounds it
    assert epsilon_of(releases * strength_of(found), 1e-5) <= epsilon
    assert epsilon_of(releases * strength_of(found - 2e-4), 1e-5) > epsilon


def test_without_noise_nothing_is_promised() -> None:
    assert epsilon_of(strength_of(0.0), 1e-5) == inf
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert delta_of(0.0, 0.1) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-9, 1e-12), (100.0, 1e-3), (0.1, 1e-10)])
def test_extreme_promises_have_a_noise(epsilon: float, delta: float) -> None:
    noise = noise_multiplier(epsilon, delta, 100_000)
    assert delta_of(100_000 * strength_of(noise), epsilon) <= delta


def test_noise_is_normal_and_belongs_to_its_key() -> None:
    drawn = gaussian(b"a" * 32, 200_001)
    assert np.array_equal(drawn, gaussian(b"a" * 32, 200_001))
    assert np.array_equal(drawn[:7], gaussian(b"a" * 32, 7))
    other = gaussian(b"b" * 32, 200_001)
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.01
    assert abs(np.corrcoef(drawn[0::2][:100_000], drawn[1::2])[0, 1]) < 0.01
    assert abs(drawn.mean()) < 0.01
    assert drawn.std() == pytest.approx(1.0, abs=0.01)
    assert np.mean(drawn < -1.6448536) == pytest.approx(0.05, abs=0.003)
    assert np.mean(drawn < 1.0) == pytest.approx(0.8413447, abs=0.004)


def test_a_noised_sum_lies_on_a_grid_that_hides_its_last_bits() -> None:
    total = np.array([0.1, -7.3, 0.0])
    noised = with_noise(total, 3.0, b"a" * 32)
    grid = 2.0 ** (1 - 20)
    assert np.array_equal(noised / grid, np.rint(noised / grid))
    assert noised == pytest.approx(total + 3.0 * gaussian(b"a" * 32, 3), abs=grid)


def cut_sum(of: LocalWork, clip_norm: float, patients: tuple[int, ...] | None = None) -> Tensor:
    numbers = torch.tensor(patients or range(len(of.targets)))
    rows = PatientRows(of.inputs, of.targets, numbers)
    loss = of.task.training_loss(of.targets)
    return clipped_sum(of.model, of.received, rows, loss, clip_norm=clip_norm, seed=0).float()


def test_noise_depends_on_the_sum_at_a_site_and_in_a_simulation_does_not() -> None:
    def noise(labels: tuple[int, ...], *, repeats: bool) -> list[float]:
        of = work(labels=labels)
        rows = PatientRows(of.inputs, of.targets, torch.arange(len(labels)))
        loss = of.task.training_loss(of.targets)
        silent, noised = (
            replace(STEP, noise_multiplier=much, repeats=repeats).take(
                of.model, of.received, rows, loss, 0
            )
            for much in (0.0, 2.0)
        )
        found: list[float] = (noised - silent).tolist()
        return found

    alike = noise((1, 1), repeats=True)
    assert alike == pytest.approx(noise((1, 0), repeats=True), abs=1e-4)
    assert noise((1, 1), repeats=False) != pytest.approx(noise((1, 0), repeats=False), abs=0.1)


def test_each_patients_gradient_is_cut_by_hand() -> None:
    # At 0 a patient of class 1 has the gradient -U / 2, whose length is 1; class 0 has U / 2.
    assert along(cut_sum(work(labels=(1,)), 2.0)) == pytest.approx(-0.5)
    assert along(cut_sum(work(labels=(1,)), 0.5)) == pytest.approx(-0.25)
    assert along(cut_sum(work(labels=(1, 1, 1)), 0.5)) == pytest.approx(-0.75)
    assert along(cut_sum(work(labels=(1, 0)), 0.5)) == pytest.approx(0.0, abs=1e-7)
    # At U s is 1 / (1 + e^4): the patient of class 0, who is wrongly predicted, is cut alone.
    s = 1 / (1 + np.exp(4.0))
    assert along(cut_sum(work(1.0, labels=(1, 0)), 1.0)) == pytest.approx(0.5 - s, abs=1e-6)


def test_the_rows_of_one_patient_are_cut_together() -> None:
    three = work(labels=(1, 1, 1, 0))
    assert along(cut_sum(three, 1.0, (5, 5, 5, 2))) == pytest.approx(-0.5 + 0.5, abs=1e-7)
    assert along(cut_sum(three, 9.0, (5, 5, 5, 2))) == pytest.approx(-1.5 + 0.5)


def test_a_patient_whose_gradient_is_not_finite_counts_as_nobody() -> None:
    of = work(labels=(1, 1))
    of.inputs[0] = torch.inf
    assert along(cut_sum(of, 1.0)) == pytest.approx(-0.5)


@pytest.mark.parametrize("patients", [None, (3, 0, 3, 1, 1, 3, 2, 0)])
def test_without_a_cut_it_is_the_gradient_of_the_mean_loss(
    patients: tuple[int, ...] | None,
) -> None:
    draws = torch.Generator().manual_seed(2)
    of = work(0.3, (0, 1, 1, 0, 0, 1, 1, 0), inputs=torch.randn(8, 1, generator=draws))
    loss = of.task.training_loss(of.targets)
    whole = gradient(of.model, of.received, of.inputs, of.targets, loss)
    assert_close(cut_sum(of, 1e6, patients) / 8, whole, rtol=1e-5, atol=1e-7)


def test_a_network_of_images_goes_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erosion_common.learning.private_step._NUMBERS_AT_ONCE", 3 * 400_000)
    model = build_model(MnistCnn(), (1, 28, 28), 10)
    start = flat_parameters(model)
    draws = torch.Generator().manual_seed(2)
    inputs = torch.randn(5, 1, 28, 28, generator=draws)
    targets = torch.randint(10, (5,), generator=draws)
    rows = PatientRows(inputs, targets, torch.arange(5))
    loss = nn.functional.cross_entropy
    total = clipped_sum(model, start, rows, loss, clip_norm=1e6, seed=0)
    model.eval()
    expected = gradient(model, start, inputs, targets, loss)
    is_random = any(isinstance(m, nn.Dropout) for m in model.modules())
    assert not is_random
    assert_close(total.float() / 5, expected, rtol=1e-3, atol=1e-5)


def test_layers_that_mix_patients_are_refused() -> None:
    mixing = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))
    assert problem_with_layers(mixing)
    assert problem_with_layers(nn.Sequential(nn.GroupNorm(1, 3), nn.BatchNorm1d(3))) is None


def test_a_model_that_cannot_be_taken_apart_says_so() -> None:
    class Peeks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.linear(inputs)
            return outputs if float(inputs.sum()) > 0 else outputs * 2

    model = Peeks()
    rows = PatientRows(torch.ones(2, 1), torch.tensor([0, 1]), torch.arange(2))
    with refused(ModelError, "patient"):
        clipped_sum(
            model, flat_parameters(model), rows, nn.functional.cross_entropy, clip_norm=1.0, seed=0
        )


def taken(of: LocalWork, step: PrivateStep) -> Tensor:
    return replace(of, privacy=step, is_user=False).update(of.received).delta


def test_a_step_is_the_mean_of_the_cut_gradients_and_noise_by_hand() -> None:
    of = work(labels=(1, 1, 1))
    step = replace(STEP, clip_norm=0.5, learning_rate=2.0, patients=6.0)
    assert along(taken(of, step)) == pytest.approx(2.0 * 0.75 / 6)  # against the gradient -.75 U
    noised = [
        taken(of, replace(step, noise_multiplier=3.0, key=bytes([number]))) - taken(of, step)
        for number in range(200)
    ]
    # 2 (learning rate) x 3 x .5 (noise multiplier and clip norm) / 6 patients = .5
    assert torch.stack(noised).std() == pytest.approx(0.5, rel=0.1)
    assert torch.stack(noised).mean(dim=0).abs().max() < 0.15


def test_decay_pulls_the_step_as_in_local_training() -> None:
    of = work(2.0, labels=(1,))
    plain = along(taken(of, STEP))
    assert along(taken(of, replace(STEP, weight_decay=0.1))) == pytest.approx(plain - 0.1 * 2.0)


def test_local_training_without_noise_is_a_fault_at_a_peer_and_not_at_the_user() -> None:
    private = replace(work(), privacy=STEP)
    assert private.sgd(private.received).steps == 1
    with refused(TypeError, "noise"):
        replace(private, is_user=False).sgd(private.received)


def patients(seed: int, **changes: Any) -> LocalWork:
    """Twelve patients of the hospital b, whom the seed decides."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(12, 1, generator=draws)
    labels = tuple((torch.rand(12, generator=draws) > 0.4).long().tolist())
    training = {"steps": 3, "batch_size": 4, "learning_rate": 0.5}
    values = {"agent": "b", "is_user": False, "privacy": replace(STEP, patients=12.0)}
    return work(0.1, labels, inputs=inputs, training=training, **{**values, **changes})


private_methods = pytest.mark.parametrize(
    "name", [n for n, arm in sorted(REGISTRY.items()) if arm(algorithm=n).private_updates]
)


@private_methods
@pytest.mark.parametrize("own", [(), ("output_bias",)])
def test_what_a_peer_sends_and_keeps_depends_on_its_patients_through_noised_steps_alone(
    name: str, own: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(step: PrivateStep, _model: nn.Module, start: Tensor, *_: object) -> Tensor:
        draws = torch.Generator().manual_seed(int(step.patients * 1000))
        return torch.randn(start.shape, generator=draws)

    monkeypatch.setattr(PrivateStep, "take", told)
    arm = REGISTRY[name].model_validate({"algorithm": name, "own_parameters": own})
    assert set(arm.site_steps()) == {"train"}

    def two_rounds(seed: int) -> list[LocalOutcome]:
        first = local_round(arm, patients(seed), layout)
        return [first, local_round(arm, patients(seed, round=2, kept=first.keep), layout)]

    for one, other in zip(two_rounds(1), two_rounds(2), strict=True):
        assert torch.equal(one.delta, other.delta)
        assert one.samples_seen == other.samples_seen
        for left, right in ((one.attachments, other.attachments), (one.keep, other.keep)):
            assert left.keys() == right.keys()
            assert all(torch.equal(left[key], right[key]) for key in left)


def test_every_other_method_says_why_it_cannot() -> None:
    said = {
        name: arm(algorithm=name).problem_with_privacy()
        for name, arm in REGISTRY.items()
        if not arm(algorithm=name).private_updates
    }
    assert said.pop("local") is None
    assert {"scaffold", "fedlin", "gems", "apfl"} <= set(said)
    assert all(said.values())


def test_halves_keep_a_patients_rows_together_and_have_noise_of_their_own() -> None:
    of = patients(1, patients=torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]))
    ((first, second),) = of.halvings()
    assert first.patients is not None
    assert second.patients is not None
    assert not set(first.patients.tolist()) & set(second.patients.tolist())
    assert len(first.targets) + len(second.targets) == 12
    assert first.privacy is not None
    assert second.privacy is not None
    assert first.privacy.key != second.privacy.key
    # Half of the 12 that are divided by, whatever coins fell: how many did is not told.
    assert (first.privacy.patients, second.privacy.patients) == (6.0, 6.0)
    # The user's are three of the six patients each, whatever rows they have.
    of = replace(of, is_user=True)
    (halves,) = of.halvings()
    assert [len(torch.unique(half.patients)) for half in halves] == [3, 3]


def test_one_patient_more_moves_one_half_by_a_cut_and_the_other_by_nothing() -> None:
    of = patients(1)
    before = [cut_sum(half, 1.0) for half in of.only(torch.arange(11)).halvings()[0]]
    after = [cut_sum(half, 1.0) for half in of.halvings()[0]]
    moved = sorted(float((one - other).norm()) for one, other in zip(before, after, strict=True))
    assert moved[0] == pytest.approx(0.0, abs=1e-6)
    assert 0.01 < moved[1] <= 1.0 + 1e-6


def test_a_half_that_chance_left_empty_is_noise_alone() -> None:
    of = patients(1)
    rounds = [
        replace(of, round=number).only(torch.arange(2)).halvings()[0] for number in range(1, 9)
    ]
    empty = [half for halves in rounds for half in halves if not len(half.targets)]
    assert empty
    assert all(half.update(half.received).delta.norm() == 0 for half in empty)  # STEP has none


def update(agent: str, *values: float, patients: int = 100) -> Update:
    return Update(agent, 1, torch.tensor(values), num_samples=patients, samples_seen=patients)


def test_noise_is_taken_off_a_distance_by_hand() -> None:
    cohort = MemoryCohort(update("a", 3.0, 4.0), {"b": update("b", 8.0, 4.0)})  # 5 apart, d = 1
    assert measure(cohort, "euclidean", []).to_own == [1.0]
    corrected = measure(cohort, "euclidean", [], noise=[9.0]).to_own  # sqrt(25 - 9) / 5
    assert corrected == pytest.approx([0.8])
    assert measure(cohort, "euclidean", [], noise=[26.0]).to_own == [0.0]
    halved = [(slice(0, 1), 0.5)]  # (.5 x 25 - 4.5) / (.5 x 9 + 16)
    found = measure(cohort, "euclidean", halved, noise=[4.5]).to_own
    assert found == pytest.approx([sqrt(8.0 / 20.5)])
    angle = measure(cohort, "cosine", [], noise=[16.0]).to_own  # <g, g> = 80, <g, g_0> = 40
    assert angle == pytest.approx([1 - 40 / (8 * 5)])
    # An update no longer than its noise has no direction, whichever way that pointed.
    assert list(measure(cohort, "cosine", [], noise=[80.0]).to_own) == [1.0]
    assert list(measure(cohort, "cosine", [], noise=[90.0]).to_own) == [1.0]


@pytest.mark.parametrize("dim", [1, 3, 300])
def test_noise_is_hardly_ever_longer_than_is_allowed_for(dim: int) -> None:
    """And not so much shorter that anything passes for noise."""
    study = make_study(privacy=PRIVACY)
    assert study.privacy is not None
    deviation = study.privacy.noise_deviation(study.num_releases, 40)
    longest = study.longest_noise(40, dim) / deviation
    assert sqrt(2) * chi2.isf(1e-7, dim) ** 0.5 < longest < 9 * sqrt(dim) + 1
    assert make_study().longest_noise(40, dim) == 0.0


def test_expected_noise_counts_what_carries_it_and_believes_no_tiny_hospital() -> None:
    deviation: Callable[[float], float] = lambda patients: 10.0 / patients  # noqa: E731
    of_model = replace(context(w=3, b=2), noise_deviation=deviation)
    assert noise_in(context(w=3, b=2), ()) is None
    assert noise_in(of_model, ("b",)) == ExpectedNoise(deviation, 3.0)
    noise = noise_in(of_model, (), [(slice(0, 3), 0.5)])
    assert noise == ExpectedNoise(deviation, 3.5)
    peers = {n: update(n, 0.0, patients=k) for n, k in (("b", 100), ("c", 50), ("d", 2))}
    found = noise.of(MemoryCohort(update("a", 0.0), peers))
    assert found == pytest.approx([3.5 * 0.01, 3.5 * 0.04, 3.5 * (10 / 25) ** 2])


@pytest.mark.parametrize("name", ["weight_erosion", "evidence_erosion"])
def test_erosion_does_not_take_noise_for_a_difference(name: str) -> None:
    """Hospitals with the user's update under much noise keep their weight."""
    dim, deviation = 400, 0.2
    draws = torch.Generator().manual_seed(4)
    own = Update("a", 1, torch.ones(dim) / 20, 100, 100, {"noise": torch.tensor([0.0])})
    peers = {
        name: Update(
            name,
            1,
            own.delta + deviation * torch.randn(dim, generator=draws),
            100,
            100,
            {"noise": torch.tensor([dim * deviation**2])},
        )
        for name in ("b", "c", "d")
    }
    arm: ArmBase = REGISTRY[name](algorithm=name)
    if name == "weight_erosion":
        arm = arm.model_copy(update={"distance_penalty": 0.1})
    else:  # whose halves have it twice
        deviation /= sqrt(2)

    def weight(of: BuildContext) -> float:
        algorithm = arm.build(of)
        step = algorithm.update(algorithm.init(dim), MemoryCohort(own, peers))
        return sum(step.weights[n] for n in peers) / 3

    plain = context(w=dim - 1, b=1)
    told = replace(plain, noise_deviation=lambda _patients: deviation)
    assert weight(plain) < 0.7
    assert weight(told) > 0.9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"user": "all"}, "user"),
        ({"selection": {"folds": 2}}, "every trial or fold"),
        ({"evaluation": {"folds": 5}}, "fold"),
        ({"scaling": "federated"}, 'scaling = "user"'),
        ({"task": {**TASK, "class_weights": "balanced"}}, "class_weights"),
        ({"task": with_missing("impute")}, "mean"),
        ({"arms": ["local"]}, "arm"),
        ({"arms": ["fedavg", "scaffold"]}, "arms.scaffold"),
        ({"arms": ["fedlin"]}, "arms.fedlin"),
        ({"privacy": {"epsilon": 1}}, "learning_rate"),
    ],
)
def test_a_study_that_would_break_the_promise_is_refused_with_the_reason(
    changes: dict[str, Any], said: str
) -> None:
    fine = make_study(privacy=PRIVACY)
    raw = {**fine.model_dump(mode="json"), **changes}
    with refused(StudyError, said):
        validate(Study, raw, "Study file", StudyError)


def test_a_commonest_category_is_refused_and_the_users_scaling_takes_a_missing_number() -> None:
    age, sex = TASK["features"]
    task = {**TASK, "features": [age, {**sex, "missing": "mode"}]}
    with refused(ValueError, "category"):
        make_study(privacy=PRIVACY, scaling="user", task=task)
    study = make_study(privacy=PRIVACY, scaling="user", task=with_missing("impute"))
    assert study.sends_sums("a")
    assert not study.sends_sums("b")


def test_the_noise_is_for_every_round_of_every_arm_that_asks() -> None:
    one = make_study(privacy=PRIVACY, rounds=10)
    assert one.num_releases == 10  # local asks nobody
    two = make_study(
        privacy=PRIVACY, rounds=10, arms=["fedavg", "bias_correction", "ditto", "local"]
    )
    assert two.num_releases == 30
    assert one.privacy is not None
    assert one.privacy.noise_multiplier(10) == pytest.approx(4.3975, abs=1e-3)
    deviation = one.build_context.noise_deviation
    assert deviation is not None
    assert deviation(110) == pytest.approx(4.3975 / 110, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "shape"), [(Mlp(), (3,)), (MnistCnn(), (1, 28, 28)), (Resnet18(), (3, 32, 32))]
)
def test_the_programs_own_models_can_be_taken_apart(
    settings: ModelBase, shape: tuple[int, ...]
) -> None:
    assert problem_with_layers(model_of_shapes(settings, shape, 2)) is None
    model = build_model(settings, shape, 2)
    rows = PatientRows(torch.ones(1, *shape), torch.tensor([1]), torch.arange(1))
    loss = nn.functional.cross_entropy
    total = clipped_sum(model, flat_parameters(model), rows, loss, clip_norm=0.1, seed=0)
    assert float(total.norm()) == pytest.approx(0.1, rel=1e-4)
