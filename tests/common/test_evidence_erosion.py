"""Evidence erosion by hand."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.base import Step
from erosion_common.algorithms.evidence_erosion import EvidenceErosion, EvidenceErosionState
from erosion_common.learning.local_sgd import LocalResult, Samples, train_locally
from tests.support.contexts import context
from tests.support.local_works import along, layout, local_round, work


def update(agent: str, *delta: float, noise: float, num_samples: int = 10) -> Update:
    return Update(agent, 1, torch.tensor(delta), num_samples, 10, {"noise": torch.tensor([noise])})


OWN = update("own", 1.0, 0.0, noise=1.0)
PEER = update("peer", 1.0, 4.0, noise=2.0, num_samples=20)  # D = 16


def course(arm: EvidenceErosion, *cohorts: MemoryCohort) -> list[Step[EvidenceErosionState]]:
    algorithm = arm.build(context(rounds=4))
    state, steps = algorithm.init(2), []
    for each in cohorts:
        steps.append(algorithm.update(state, each))
        state = steps[-1].state
    return steps


def test_distance_counts_only_beyond_what_noise_explains() -> None:
    (step,) = course(EvidenceErosion(), MemoryCohort(OWN, {"peer": PEER}))
    # b^2 = 16 - (1 + 1) (2 + 1) = 10; alpha = 20/10 / (1 + 2 * 10 / 2) = 2 / 11
    assert step.weights["peer"] == pytest.approx(2 / 11)
    # (0 + 2/11 * 4) / (1 + 2/11) = 8 / 13
    assert step.delta.tolist() == pytest.approx([1.0, 8 / 13])


def test_a_hospital_without_evidence_against_it_counts_by_its_patients() -> None:
    noisy = update("peer", 1.0, 4.0, noise=7.0, num_samples=30)  # 16 <= 2 (7 + 1)
    (step,) = course(EvidenceErosion(largest_noise=10), MemoryCohort(OWN, {"peer": noisy}))
    assert step.weights["peer"] == pytest.approx(3.0)


def test_a_noise_that_nobody_could_have_excuses_nothing() -> None:
    boasting = update("peer", 1.0, 4.0, noise=1e9, num_samples=5)
    (step,) = course(EvidenceErosion(), MemoryCohort(OWN, {"peer": boasting}))
    # With half the user's patients at most s_i = 3 * 1 * 10/5 = 6 is believed:
    # b^2 = 16 - 2 (6 + 1) = 2; alpha = 5/10 / (1 + 2 * 2 / 6) = 0.3
    assert step.weights["peer"] == pytest.approx(0.3)


def test_distances_and_noises_are_averaged_over_the_rounds() -> None:
    closer = update("peer", 1.0, 2.0, noise=1.0, num_samples=20)  # D = 4
    quieter = update("own", 1.0, 0.0, noise=0.5)
    _, step = course(
        EvidenceErosion(),
        MemoryCohort(OWN, {"peer": PEER}),
        MemoryCohort(quieter, {"peer": closer}),
    )
    # D = 0.7 * 16 + 0.3 * 4 = 12.4; s_i = 0.7 * 2 + 0.3 * 1 = 1.7; s_0 = 0.7 + 0.15 = 0.85
    squared_bias = 12.4 - 2 * (1.7 + 0.85)
    assert step.weights["peer"] == pytest.approx(2 / (1 + 2 * squared_bias / 1.7))


def test_the_decay_ends_at_exp_minus_rho() -> None:
    cohort = MemoryCohort(OWN, {"peer": update("peer", 1.0, 0.0, noise=1.0)})
    steps = course(EvidenceErosion(decay=2.4), *[cohort] * 4)
    expected = [math.exp(-2.4 * r / 4) for r in (1, 2, 3, 4)]
    assert [step.weights["peer"] for step in steps] == pytest.approx(expected)


def test_a_hospital_without_noise_must_agree_exactly() -> None:
    silent = {
        "peer": update("peer", 1.0, 4.0, noise=0.0),
        "twin": update("twin", 1.0, 0.0, noise=0.0),
    }
    (step,) = course(EvidenceErosion(), MemoryCohort(OWN, silent))
    assert step.weights["peer"] == 0.0
    assert step.weights["twin"] == 1.0


# -- At the hospital -----------------------------------------------------------------------------


def test_the_noise_is_that_of_two_halves_without_the_bias() -> None:
    arm = EvidenceErosion()
    # One patient of each class, so each half is one patient, and base rates are even: the halves
    # end at 0.5 U and -0.5 U. Half their difference is 0.5 U, without the bias (-0.5, 0.5).
    outcome = local_round(arm, work(labels=(0, 1)), layout)
    assert outcome.attachments["noise"].tolist() == pytest.approx([0.5])
    assert along(outcome.delta) == 0.0
    assert outcome.samples_seen == 2


def test_with_no_own_parameters_the_noise_has_the_bias_in_it() -> None:
    outcome = EvidenceErosion(own_parameters=()).train(work(labels=(0, 1)))
    assert outcome.attachments["noise"].tolist() == pytest.approx([1.0])  # |0.5 U|^2


def test_a_step_more_in_one_half_is_no_noise() -> None:
    """Five patients who are alike: one half takes two steps of a mini-batch each, the other one."""
    training = {"steps": None, "epochs": 1, "batch_size": 2, "learning_rate": 1e-4}
    outcome = EvidenceErosion(own_parameters=()).train(work(labels=(1,) * 5, training=training))
    assert outcome.steps == 3
    # A step is 0.5e-4 U. Both halves are as of one and a half steps, whose square is 2.25e-8.
    assert along(outcome.delta) == pytest.approx(0.75e-4, rel=1e-3)
    assert outcome.attachments["noise"].item() < 1e-4 * 2.25e-8


def test_halves_of_less_than_a_cell_are_told_of_in_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 19 the two numbers of one halving would give two updates of 10 and 9 away."""
    trained: list[tuple[int, torch.Tensor]] = []

    def trainer(model: nn.Module, start: torch.Tensor, samples: Samples, *rest: Any) -> LocalResult:
        result = train_locally(model, start, samples, *rest)
        trained.append((len(samples.targets), result.delta))
        return result

    monkeypatch.setattr("erosion_common.learning.local_work.train_locally", trainer)
    for num, halves in ((20, [10, 10]), (19, [10, 9] * 4)):
        trained.clear()
        labels = tuple(number % 2 for number in range(num))
        inputs = torch.arange(float(num))[:, None]  # no two patients are alike
        training = {"learning_rate": 0.01}  # one step of all patients of a half
        of = work(0, labels, inputs=inputs, training=training, smallest_cell=10)
        outcome = EvidenceErosion(own_parameters=()).train(of)
        assert [patients for patients, _ in trained] == halves
        deltas = torch.stack([delta for _, delta in trained]).reshape(len(halves) // 2, 2, -1)
        assert torch.allclose(outcome.delta, deltas.mean(dim=(0, 1)))
        noises = (deltas[:, 0] - deltas[:, 1]).square().sum(dim=1) / 4
        assert len(set(noises.tolist())) == len(noises)  # of other patients each
        assert outcome.attachments["noise"].item() == pytest.approx(float(noises.mean()))
        assert (outcome.steps, outcome.samples_seen) == (2, num)


def test_a_single_patient_has_no_halves() -> None:
    outcome = EvidenceErosion(own_parameters=()).train(work(0, (1,)))
    assert outcome.attachments["noise"].item() == 0
    assert outcome.delta.norm() > 0
