"""Hospitals that take different numbers of steps, compared as if they took equally many."""

from dataclasses import replace

import pytest
import torch

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.equal_steps import as_of_equal_steps
from erosion_common.algorithms.evidence_erosion import EvidenceErosion
from erosion_common.algorithms.weight_erosion import WeightErosion
from erosion_common.learning.training import Training
from tests.support.contexts import CONTEXT
from tests.support.local_works import work

EPOCHS = replace(CONTEXT, steps=Training(epochs=1, batch_size=4).steps_with)


def cohort(**deltas: tuple[int, list[float]]) -> MemoryCohort:
    """Hospital name -> its samples and update; the first is the user's."""
    own, *others = (
        Update(name, 1, torch.tensor(delta), samples, samples, {"noise": torch.tensor([0.08])})
        for name, (samples, delta) in deltas.items()
    )
    return MemoryCohort(own, {other.agent: other for other in others})


def test_each_update_is_scaled_to_the_users_steps() -> None:
    given = cohort(own=(8, [3.0, 4.0]), large=(40, [15.0, 25.0]), tiny=(4, [0.0, 1.0]))
    scaled, factors = as_of_equal_steps(given, EPOCHS.steps)
    assert factors == [1, 0.2, 2]  # 2 steps against 10 and 1
    # large: (3, 5) is (0, 1) from (3, 4), whose norm is 5; tiny: (0, 2) is (-3, -2) from it
    assert scaled.distances_to_own().tolist() == pytest.approx([0.2, 13**0.5 / 5])
    assert scaled.norms().tolist() == pytest.approx([5, 34**0.5, 2])
    total = scaled.weighted_sum(torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64))
    assert total.tolist() == pytest.approx([6.0, 10.0])
    assert scaled.gram()[0].tolist() == pytest.approx([25, 29, 8])


def test_weight_erosion_does_not_punish_a_twin_for_its_size() -> None:
    same_way = cohort(own=(8, [3.0, 4.0]), twin=(80, [30.0, 40.0]), other=(8, [4.0, 3.0]))
    fair = WeightErosion(distance_penalty=0.1).build(EPOCHS)
    step = fair.update(fair.init(2), same_way)
    assert step.distances == pytest.approx({"twin": 0.0, "other": 2**0.5 / 5})
    assert step.weights == pytest.approx({"own": 1, "twin": 1, "other": 1 - 0.02 * 2**0.5})
    # What is added is what was compared: (3, 4) twice, and (4, 3).
    other = step.weights["other"]
    assert step.delta.tolist() == pytest.approx(
        [(6 + 4 * other) / (2 + other), (8 + 3 * other) / (2 + other)]
    )

    as_they_come = WeightErosion(distance_penalty=0.1, per_step=False).build(EPOCHS)
    step = as_they_come.update(as_they_come.init(2), same_way)
    assert step.weights["twin"] == pytest.approx(0.1)  # d = 9


def test_updates_of_unequal_steps_that_are_compared_as_they_come_are_warned_of() -> None:
    unequal = cohort(own=(8, [3.0, 4.0]), twin=(80, [30.0, 40.0]))
    equal = cohort(own=(8, [3.0, 4.0]), twin=(7, [3.0, 4.0]))
    as_they_come = WeightErosion(per_step=False).build(EPOCHS)
    note = as_they_come.update(as_they_come.init(2), unequal).note
    assert note.startswith("updates of 2 to 20 steps are compared as they come (per_step = false)")
    assert as_they_come.update(as_they_come.init(2), equal).note == ""
    fair = WeightErosion().build(EPOCHS)
    assert fair.update(fair.init(2), unequal).note == ""


def test_evidence_erosion_scales_updates_and_their_noise() -> None:
    rule = EvidenceErosion(bias_penalty=1.0, noise_margin=0.0, decay=0.0, largest_noise=1000.0)
    algorithm = rule.build(EPOCHS)
    step = algorithm.update(algorithm.init(2), cohort(own=(8, [3.0, 4.0]), large=(16, [6.0, 8.5])))
    # large counts as (3, 4.25) with noise .08 / 4 = .02: D = .0625 is below .02 + .08, no bias
    assert step.weights == pytest.approx({"own": 1, "large": 2})
    assert step.delta.tolist() == pytest.approx([3.0, (4 + 2 * 4.25) / 3])
    assert step.state.noises == pytest.approx({"own": 0.08, "large": 0.02})


def test_what_a_hospital_took_counts_and_not_its_rounded_number() -> None:
    """Both have 9 patients: 3 steps, where the rounded numbers would say 2 and 5."""
    given = cohort(own=(8, [3.0, 4.0]), twin=(20, [3.0, 4.0]))
    told = MemoryCohort(
        replace(given.own, steps=3), {"twin": replace(given.others["twin"], steps=3)}
    )
    same, factors = as_of_equal_steps(told, EPOCHS.steps)
    assert same is told
    assert factors == [1, 1]
    # Who does not say it, as a site of an earlier program, is taken to have as many as it tells.
    mixed = MemoryCohort(told.own, given.others)
    assert as_of_equal_steps(mixed, EPOCHS.steps)[1] == [1, 3 / 5]


def test_nobody_lengthens_its_update_by_claiming_few_steps() -> None:
    given = cohort(own=(40, [3.0, 4.0]), liar=(80, [3.0, 4.0]))
    liar = replace(given.others["liar"], steps=1)
    told = MemoryCohort(replace(given.own, steps=10), {"liar": liar})
    assert as_of_equal_steps(told, EPOCHS.steps)[1] == [1, 2]  # 5 steps: those of 20 patients
    # Where the study says how many there are, nobody is believed to have taken fewer.
    ten = Training(steps=10, batch_size=4)
    assert as_of_equal_steps(told, ten.steps_with)[1] == [1, 1]


def test_weight_erosion_says_how_many_steps_it_took() -> None:
    labels = (0, 1, 1, 0, 1)
    outcome = WeightErosion().train(
        work(labels=labels, training={"steps": None, "epochs": 2, "batch_size": 4})
    )
    assert outcome.steps == 4
    outcome = WeightErosion().train(
        work(
            labels=labels, training={"steps": None, "epochs": 2, "batch_size": 4}, smallest_batch=3
        )
    )
    assert outcome.steps == 2  # all five in one mini-batch


def test_evidence_erosion_counts_the_steps_of_the_halves() -> None:
    """By the whole 8 patients take two steps and 4 take one; each half takes one at both."""
    rule = EvidenceErosion(own_parameters=(), noise_margin=0.0, largest_noise=1000.0)
    training = {"steps": None, "epochs": 1, "batch_size": 4}
    outcomes = [rule.train(work(labels=(1,) * num, training=training)) for num in (8, 4)]
    assert [outcome.steps for outcome in outcomes] == [2, 2]
    own, peer = (
        Update(name, 1, outcome.delta, num, num, outcome.attachments, steps=steps)
        for name, outcome, num, steps in zip("ab", outcomes, (8, 4), (2, 2), strict=True)
    )
    algorithm = rule.build(EPOCHS)
    for told in (True, False):  # the same where an earlier program does not say it
        each = [own, peer] if told else [replace(u, steps=None) for u in (own, peer)]
        step = algorithm.update(algorithm.init(4), MemoryCohort(each[0], {"b": each[1]}))
        assert step.state.squared_distances == {"b": 0.0}
        assert step.weights == pytest.approx({"a": 1, "b": 0.5})
