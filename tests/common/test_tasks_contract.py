"""The promises of every task of the registry. A new task needs a line in EXAMPLES only."""

import json

import numpy as np
import pytest
import torch

from erosion_client.evaluation.final_figures import compare, measure, measure_with_intervals
from erosion_common.algorithms import REGISTRY as ALGORITHMS
from erosion_common.learning.local_sgd import gradient, predictions_of
from erosion_common.learning.models import Logistic, build_model, flat_parameters
from erosion_common.rounds.evaluation import problem_with_figures, problem_with_metrics
from erosion_common.study.study import Study, study_from_json
from erosion_common.tasks import REGISTRY
from erosion_common.tasks.task import Task, as_tensor
from tests.support.close import assert_close
from tests.support.installed_package import arm_of
from tests.support.refusals import refused
from tests.support.registry_cohorts import model_for
from tests.support.task_examples import EXAMPLES, NUM_PATIENTS, example, patients
from tests.support.tasks import read_task

every_task = pytest.mark.parametrize("name", sorted(REGISTRY))


def predictions(task: Task, seed: int = 0, count: int = NUM_PATIENTS) -> np.ndarray:
    outputs = torch.randn(
        count, task.num_outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    found: np.ndarray = task.predictions(outputs).numpy()
    return found


@every_task
def test_it_can_be_named_in_a_study_and_sent(name: str) -> None:
    values = {
        "name": "contract",
        "user": "a",
        "hospitals": [*"abcdefgh"],
        "rounds": 3,
        "task": {"kind": "tabular", "outcome": name, "features": ["x"], **EXAMPLES[name]},
        "training": {"steps": 1},
        "federation": {"quorum": 1},
    }
    unfit = {}  # method -> why not for this task
    for algorithm in sorted(ALGORITHMS):
        try:
            about = {"model": model_for(algorithm), "arms": {algorithm: arm_of(algorithm)}}
            study = Study.model_validate({**values, **about})
        except ValueError as problem:
            unfit[algorithm] = str(problem)
        else:
            assert study_from_json(study.canonical_json()) == study
    assert all("gems" in algorithm or algorithm == "newton" for algorithm in unfit), unfit
    assert study.task.outcome == name


@every_task
def test_a_name_of_another_task_is_refused_with_the_known_ones(name: str) -> None:
    raw = {"kind": "tabular", "outcome": name, "features": ["x"], **EXAMPLES[name]}
    with refused(ValueError, "not_a_key"):
        read_task({**raw, "not_a_key": 1})


@every_task
def test_its_metrics_say_what_outputs_need(name: str) -> None:
    task = REGISTRY[name]
    names = [metric.name for metric in task.metrics]
    assert len(set(names)) == len(names)
    assert {*task.curves, *task.headline, *task.in_progress, task.verdict_metric} <= set(names)
    assert task.metric(task.verdict_metric).better == "lower"
    assert all(metric.label and metric.unit for metric in task.metrics)
    assert all(task.metric(metric.baseline).of_data for metric in task.metrics if metric.baseline)
    assert "{fewest} {tested}" in task.verdict_needs


@every_task
def test_the_loss_is_finite_and_its_gradient_leads_down(name: str) -> None:
    task = example(name)
    targets = as_tensor(patients(task))
    inputs = torch.randn(NUM_PATIENTS, 2, generator=torch.Generator().manual_seed(1))
    model = build_model(Logistic(), (2,), task.num_outputs)
    at, loss = flat_parameters(model), task.training_loss(targets)
    slope = gradient(model, at, inputs, targets, loss)
    assert slope.shape == at.shape
    assert bool(torch.isfinite(slope).all())

    def held_out(parameters: torch.Tensor) -> float:
        return task.held_out_loss(predictions_of(task, model, parameters, inputs), targets)

    assert held_out(at - 0.01 * slope) < held_out(at)
    assert held_out(torch.full_like(at, torch.nan)) == float("inf")


@every_task
def test_a_mean_over_patients_is_what_the_loss_is(name: str) -> None:
    """So mini-batches and the updates of several hospitals can be averaged."""
    task = example(name)
    targets = as_tensor(patients(task))
    outputs = torch.randn(
        NUM_PATIENTS, task.num_outputs, generator=torch.Generator().manual_seed(2)
    )
    loss = task.training_loss(targets)
    halves = [loss(outputs[part], targets[part]) for part in (slice(0, 20), slice(20, 40))]
    assert_close(loss(outputs, targets), torch.stack(halves).mean())


@every_task
def test_patients_are_apart_where_the_task_says_so(name: str) -> None:
    task = example(name)
    if task.why_not_apart():
        return
    targets, others = as_tensor(patients(task)), as_tensor(patients(task, seed=1))
    outputs = torch.randn(NUM_PATIENTS, task.num_outputs)
    loss, of_others = task.training_loss(targets), task.training_loss(others[:3])
    assert_close(of_others(outputs, targets), loss(outputs, targets), rtol=0, atol=0)
    single = [loss(outputs[[i]], targets[[i]]) for i in range(NUM_PATIENTS)]
    assert_close(torch.stack(single).mean(), loss(outputs, targets))


@every_task
def test_predictions_may_be_averaged_and_are_what_predict_writes(name: str) -> None:
    task = example(name)
    mean = (predictions(task, 1) + predictions(task, 2)) / 2
    assert task.usable(mean).shape == mean.shape
    assert bool(np.isfinite(task.patient_losses(mean, patients(task))).all())
    cells = task.prediction_cells(mean[0].tolist())
    assert len(cells) == len(task.prediction_columns())
    told = [float(cell) for cell in cells[: mean.shape[1]]]
    assert told == mean[0].tolist()  # to the last digit: patients are ranked by it


@every_task
def test_a_model_that_diverged_has_bounded_losses_and_figures(name: str) -> None:
    task, targets = example(name), patients(example(name))
    broken = task.usable(np.full_like(predictions(task), np.nan))
    assert bool(np.isfinite(broken).all())
    losses = task.patient_losses(broken, targets)
    assert losses.shape == (NUM_PATIENTS,)
    assert bool((losses >= 0).all())
    assert losses.max() < 20
    json.dumps(measure(task, broken, targets, targets).model_dump(), allow_nan=False)


@every_task
def test_the_verdicts_metric_is_the_mean_of_the_patients_losses(name: str) -> None:
    task, targets, predicted = example(name), patients(example(name)), predictions(example(name))
    found = measure(task, predicted, targets, targets)
    mean = task.patient_losses(predicted, targets).mean()
    assert found[task.verdict_metric] == pytest.approx(mean)


@every_task
def test_the_base_rate_beats_random_models_and_is_told_from_them(name: str) -> None:
    task, targets = example(name), patients(example(name))
    base_rate = np.tile(task.base_rate(patients(task, seed=5)), (NUM_PATIENTS, 1))
    random = predictions(task, 3)
    better = measure(task, base_rate, targets, targets)[task.verdict_metric]
    assert better < measure(task, random, targets, targets)[task.verdict_metric]
    found = compare(task, ("base", "random"), (base_rate, random), targets, seed=0)
    assert found.mean_difference < 0
    assert found.smallest_class >= 5


@every_task
def test_the_output_bias_of_a_hospital_starts_at_its_base_rate(name: str) -> None:
    task, targets = example(name), patients(example(name))
    outputs = task.base_rate_outputs(as_tensor(targets)).double()
    assert outputs.shape == (task.num_outputs,)
    at_start = task.predictions(outputs[None]).numpy()[0]
    np.testing.assert_allclose(at_start, task.base_rate(targets), rtol=0.25, atol=0.06)


@every_task
def test_every_metric_has_an_interval_around_it(name: str) -> None:
    task, targets, predicted = example(name), patients(example(name)), predictions(example(name))
    found = measure_with_intervals(task, predicted, targets, targets, resamples=100, seed=0)
    for metric in task.metrics:
        value, interval = found[metric.name], found.intervals[metric.name]
        assert interval.low - 0.15 * abs(value) <= value <= interval.high + 0.15 * abs(value)


@every_task
def test_figures_of_whatever_model_are_ones_that_can_be(name: str) -> None:
    task = example(name)
    usual = predictions(task)
    wild = [
        torch.full((NUM_PATIENTS, task.num_outputs), value, dtype=torch.float64)
        * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(NUM_PATIENTS // 2)[:, None]
        for value in (0.0, 50.0, 1e30, torch.inf, torch.nan)
    ]
    every = [usual, usual * 0 + usual[0], *(task.predictions(outputs).numpy() for outputs in wild)]
    for seed in (0, 1):
        seen = patients(task, seed)
        for predicted in map(task.usable, every):
            for part in (predicted, np.stack([predicted, task.usable(usual)])):  # and of two cuts
                found = measure_with_intervals(task, part, seen, seen, resamples=100, seed=0)
                assert problem_with_metrics(found, task) is None
                assert problem_with_figures(found, task) is None


@every_task
def test_a_resample_with_every_patient_once_is_the_test_part_itself(name: str) -> None:
    task, targets, predicted = example(name), patients(example(name)), predictions(example(name))
    once = task.figures(predicted, targets, np.ones((2, NUM_PATIENTS)), targets)
    twice = task.figures(predicted, targets, np.full((1, NUM_PATIENTS), 2.0), targets)
    for metric in task.metrics:
        assert once[metric.name][0] == once[metric.name][1]
        assert twice[metric.name][0] == pytest.approx(once[metric.name][0], rel=0.02)


@every_task
def test_the_order_of_patients_does_not_matter(name: str) -> None:
    task, targets, predicted = example(name), patients(example(name)), predictions(example(name))
    order = np.random.default_rng(0).permutation(NUM_PATIENTS)
    shuffled = measure(task, predicted[order], targets[order], targets)
    assert shuffled.model_dump() == pytest.approx(
        measure(task, predicted, targets, targets).model_dump()
    )


@every_task
def test_strata_and_groups_cover_every_patient(name: str) -> None:
    task, targets = example(name), patients(example(name))
    assert task.strata(targets).shape == (NUM_PATIENTS,)
    groups = task.groups(targets)
    assert not groups or sum(groups.values()) == NUM_PATIENTS
    assert set(groups) == set(task.groups(targets[:1])) == task.group_names
    assert task.described(targets)
    assert task.why_unmeasurable(targets) == ""
    assert task.why_unmeasurable(targets[:1]) != ""


@every_task
def test_whoever_is_in_one_part_of_an_update_moves_every_output_alike(name: str) -> None:
    """So no part of an update, and no sum of parts, is of some of them alone."""
    task, targets = example(name), patients(example(name))
    parts = task.update_parts(targets)
    assert parts.shape == (NUM_PATIENTS,)
    if task.num_outputs == 1:
        assert len(set(parts)) == 1
        return
    seen = as_tensor(targets)
    outputs = torch.zeros(NUM_PATIENTS, task.num_outputs, requires_grad=True)
    (slopes,) = torch.autograd.grad(task.training_loss(seen)(outputs, seen), outputs)
    for part in set(parts.tolist()):
        moved = slopes[torch.from_numpy(parts == part)]
        assert_close(moved, moved[:1].expand_as(moved))


@every_task
def test_no_two_losses_of_a_patient_are_further_apart_than_the_task_says(name: str) -> None:
    task, seen = example(name), patients(example(name))
    one, other = (
        task.patient_losses(20 * sign * (predictions(task) - 0.5), seen)
        if name == "regression"
        else task.patient_losses(predictions(task, seed), seen)
        for seed, sign in ((0, 1), (1, -1))
    )
    assert np.abs(one - other).max() <= task.largest_difference
    assert np.isfinite(task.largest_difference)
