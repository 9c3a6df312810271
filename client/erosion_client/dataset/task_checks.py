"""Tries a study's task and model on a few patients, before the first round.

Otherwise a mistake in somebody's own task would show in the middle of a run, as another fault, or
never, in a wrong figure. And torch's first optimiser in a process imports most of torch, its first
`grad` the rest (seconds, on a busy machine), which a round with a deadline does not wait for.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad

from erosion_common.errors import Refusal
from erosion_common.learning.local_sgd import optimizer_for
from erosion_common.learning.trainable import draws_from, to_training, trained_parameters
from erosion_common.study.study import Study
from erosion_common.tasks.task import Floats, Targets, Task, as_tensor

TRIED = 64  # patients at most, evenly from the first to the last
_ROUNDING = 1e-6  # relative to the largest value; sums of one row may be rounded differently


def is_apart(of: Callable[[slice], object], together: NDArray[np.generic]) -> bool:
    """Return whether `of`, applied to some patients, agrees with `together` (n, ...), of all."""
    num_patients = len(together)
    places = np.linspace(0, num_patients - 1, min(TRIED, num_patients)).astype(int).tolist()
    known = np.abs(together[np.isfinite(together)])
    largest = float(known.max()) if known.size else 0.0
    alone = [np.asarray(of(slice(place, place + 1))) for place in places]
    if any(one.shape != (1, *together.shape[1:]) for one in alone):
        return False
    found, atol = np.concatenate([*alone, together[:0]]), _ROUNDING * largest
    return np.allclose(found, together[places], rtol=0.0, atol=atol, equal_nan=True)


def checked_targets(task: Task, columns: Floats) -> Targets:
    """Return `task.targets` of columns (n, c): (n, ...). Raises Refusal without their values."""
    found = task.targets(columns)
    problem = ""
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        problem = f"it is a {_kind(found)}; it must be an array of numbers"
    elif found.shape[:1] != (len(columns),):
        problem = "it has another length than the columns; one target for each patient is needed"
    elif not np.isfinite(found).all():
        problem = "it has values that are not finite"
    elif not is_apart(lambda part: task.targets(columns[part]), found):
        problem = "a patient's target depends on the other patients; it must be of that one alone"
    if problem:
        raise Refusal(
            f"The task {task.outcome!r} makes targets that cannot be used: {problem}",
            remedy="Correct `targets` in the task's class (docs/extending.md).",
        )
    return found


def _kind(value: object) -> str:
    dtype = getattr(value, "dtype", "")
    return f"{type(value).__name__} of {dtype}" if dtype else type(value).__name__


_CHANGED = "it changes targets or predictions in place; let it work on a copy"
PATIENTS = 64  # patients in the trial: as many at every hospital, because others see shapes


def check_task(task: Task, targets: Targets, *, measures: bool) -> None:
    """Try the task on these targets (n, ...). Raises Refusal, without a patient's value."""
    some = np.resize(targets, (PATIENTS, *targets.shape[1:]))  # repeated where there are fewer
    before = some.copy()
    problem = next(_problems_with_learning(task, some), "")
    if measures and not problem:
        problem = next(_problems_with_measuring(task, some), "")
    if not np.array_equal(some, before):
        problem = _CHANGED
    if problem:
        raise Refusal(
            f"The task {task.outcome!r} does not do what a study needs: {problem}",
            remedy="Correct it in the task's class (docs/extending.md, A task).",
        )


def _problems_with_learning(task: Task, targets: Targets) -> Iterator[str]:
    tensor = as_tensor(targets)
    outputs = _outputs(task, len(targets)).float().requires_grad_()
    loss = task.training_loss(tensor)(outputs, tensor)
    if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
        yield f"`training_loss` gave {_shape(loss)} for a mini-batch; it must be one number, ()"
    elif not loss.requires_grad:
        yield "`training_loss` gave a number that does not depend on the model's outputs"
    of_patients = {"strata": task.strata(targets), "update_parts": task.update_parts(targets)}
    for name, groups in of_patients.items():
        if np.shape(groups) != (len(targets),):
            yield f"`{name}` gave {_shape(groups)}; one number for each patient, ({len(targets)},)"
    start = task.base_rate_outputs(tensor)
    if not isinstance(start, Tensor) or start.shape != (task.num_outputs,):
        yield f"`base_rate_outputs` gave {_shape(start)}; it must be ({task.num_outputs},)"
    if not torch.equal(tensor, as_tensor(targets)):
        yield _CHANGED


def _problems_with_measuring(task: Task, targets: Targets) -> Iterator[str]:
    num, outputs = len(targets), _outputs(task, len(targets))
    found = task.predictions(outputs)
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != num:
        yield f"`predictions` gave {_shape(found)} for {num} patients; it must be (n, k)"
        return
    if not is_apart(lambda part: task.predictions(outputs[part]), found.numpy()):
        yield "`predictions` lets a patient's prediction depend on the other patients"
    if np.isnan(task.held_out_loss(torch.full_like(found, torch.nan), as_tensor(targets))):
        yield "`held_out_loss` is NaN for a model that diverged; it must be infinite"
    predictions = task.usable(found.numpy())
    if np.shape(predictions) != found.shape or not np.isfinite(predictions).all():
        yield f"`usable` gave {_shape(predictions)}, or no numbers; finite ones of the same shape"
        return
    before = predictions.copy()
    losses = task.patient_losses(predictions, targets)
    if not np.array_equal(predictions, before):
        yield _CHANGED
        return
    if np.shape(losses) != (num,) or not np.isfinite(losses).all():
        yield f"`patient_losses` gave {_shape(losses)}, or no numbers; finite ones, ({num},)"
        return
    if not is_apart(lambda part: task.patient_losses(predictions[part], targets[part]), losses):
        yield "`patient_losses` lets a patient's loss depend on the other patients"
    base_rate = task.base_rate(targets)
    if np.shape(base_rate) != found.shape[1:]:
        yield f"`base_rate` gave {_shape(base_rate)}; a prediction is {tuple(found.shape[1:])}"
    yield from _problems_with_figures(task, predictions, targets, float(losses.mean()))


def _problems_with_figures(
    task: Task, predictions: Floats, targets: Targets, mean_loss: float
) -> Iterator[str]:
    known = [metric.name for metric in task.metrics]
    named = {"headline": task.headline, "curves": task.curves, "in_progress": task.in_progress}
    for what, names in {**named, "verdict_metric": [task.verdict_metric]}.items():
        yield from (
            f"`{what}` names {n!r}, which is none of its metrics" for n in names if n not in known
        )
    figures = task.figures(predictions, targets, np.ones((2, len(targets))), targets)
    for metric in task.metrics:
        if metric.name not in figures:
            yield f"`figures` lacks {metric.name!r}, which is one of its metrics"
        elif np.shape(figures[metric.name]) != (2,):
            yield (
                f"`figures` gave {_shape(figures[metric.name])} as {metric.name!r} for two rows of"
                " weights; it must be (2,)"
            )
    told = float(figures[task.verdict_metric][0])
    if not abs(told - mean_loss) <= _ROUNDING * max(1.0, abs(mean_loss)):
        yield f"the {task.verdict_metric!r} of `figures` is not the mean of `patient_losses`"


def _outputs(task: Task, num_patients: int) -> Tensor:
    """Return possible outputs of a model: (n, num_outputs) float64."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_patients, task.num_outputs, generator=generator, dtype=torch.float64)


def _shape(value: object) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"the shape {tuple(shape)}"


def warm_up(model: nn.Module, study: Study) -> None:
    """Run forward, backward and a step on a copy of `model`, which itself is unchanged."""
    builds = any(arm.builds_layers() for arm in study.arms.values())
    if study.privacy is not None or (builds and study.model.name != "logistic"):
        grad(torch.sum)(torch.zeros(1))
    copy = deepcopy(model)
    to_training(copy)
    device = next(copy.parameters()).device
    with draws_from(0, device):
        outputs = copy(torch.zeros(2, *study.task.input_shape, device=device))
    torch.autograd.backward(outputs.square().mean())
    with torch.no_grad():
        optimizer_for(trained_parameters(copy), study.training).step()
