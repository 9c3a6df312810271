"""Several hospitals' local training as one: their parameters are a stack, and all take each step.

Every hospital draws mini-batches from a separate generator, as `train_locally` does, and ends where
that ends but for the rounding of float32.
"""

from collections.abc import Hashable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from erosion_common.learning.local_sgd import (
    LocalResult,
    Pull,
    Samples,
    mini_batches,
    optimizer_for,
    train_locally,
)
from erosion_common.learning.networks import ModelBase
from erosion_common.learning.trainable import named_trained_parameters, to_training
from erosion_common.learning.training import Training
from erosion_common.tasks.task import Loss, Task

MOST_NUMBERS = 1 << 27  # of a stack: parameters, samples and places of mini-batches
ALIKE = 0.8  # of the most steps of a stack its hospitals take at least


class Job(NamedTuple):
    """One call of `train_locally`: its arguments."""

    model: nn.Module
    start: Tensor  # (dim,)
    samples: Samples
    training: Training
    generator: torch.Generator
    pull: Pull | None = None
    round_number: int = 1

    @property
    def steps(self) -> int:
        """Mini-batches."""
        return self.training.steps_with(len(self.samples.targets))

    @property
    def numbers(self) -> int:
        """What it takes in a stack's memory, about."""
        return (
            5 * len(self.start)  # with its gradient, the optimiser's state and the end
            + self.samples.inputs.numel()
            + 2 * self.steps * self.training.batch_size
        )


def why_not_stacked(model: ModelBase, task: Task, training: Training) -> str:
    """Return why hospitals cannot be trained as a stack; "" where they can."""
    if not model.is_stackable:
        return f"the model {model.described()} may draw or mix patients in its layers"
    if model.gathers_statistics:
        return f"the model {model.described()} gathers statistics of mini-batches"
    if training.augmentation is not None:
        return "training.augmentation changes each hospital's images by separate draws"
    return task.why_not_apart()  # one call of the loss is for all hospitals


def train_stacked(jobs: Sequence[Job]) -> list[LocalResult]:
    """Do as `train_locally` for each; all are of one model and one task, on one device.

    Their models must be as `why_not_stacked` allows.
    """
    results: dict[int, LocalResult] = {}
    for places in _stacks(jobs):
        stack = [jobs[place] for place in places]
        trained = _train(stack) if len(stack) > 1 else [train_locally(*stack[0])]
        results.update(zip(places, trained, strict=True))
    return [results[place] for place in range(len(jobs))]


def _stacks(jobs: Sequence[Job]) -> Iterator[list[int]]:
    """Yield places of jobs of one kind that take about as many steps, and fit into memory."""
    kinds: dict[Hashable, list[int]] = {}
    for place, job in enumerate(jobs):
        kinds.setdefault((job.training, job.pull is None), []).append(place)
    for places in kinds.values():
        stack: list[int] = []
        numbers = 0
        for place in sorted(places, key=lambda place: -jobs[place].steps):
            job = jobs[place]
            numbers += job.numbers
            if stack and (job.steps < ALIKE * jobs[stack[0]].steps or numbers > MOST_NUMBERS):
                yield stack
                stack, numbers = [], job.numbers
            stack.append(place)
        yield stack


def _train(jobs: Sequence[Job]) -> list[LocalResult]:
    model, loss, training = jobs[0].model, jobs[0].samples.loss, jobs[0].training
    to_training(model)
    names = [name for name, _ in named_trained_parameters(model)]
    starts = torch.stack([job.start for job in jobs])  # (jobs, dim)
    parameters = _unflattened(starts, model)
    optimizer = optimizer_for(parameters, training)
    forward = vmap(lambda values, rows: functional_call(model, values, (rows,)))
    inputs = torch.cat([job.samples.inputs for job in jobs])
    targets = torch.cat([job.samples.targets for job in jobs])
    drawn = _Drawn(jobs, starts.device)
    ends = starts.clone()
    for step, rows in enumerate(drawn.batches()):
        optimizer.zero_grad()
        outputs = forward(dict(zip(names, parameters, strict=True)), inputs[rows])
        objective = _total(loss, outputs, targets[rows], drawn.lengths[:, step])
        if jobs[0].pull is not None:
            objective = objective + _pulled(jobs, _flattened(parameters))
        torch.autograd.backward(objective)
        with torch.no_grad():
            optimizer.step()
        ended = torch.nonzero(drawn.steps == step + 1)[:, 0].to(starts.device)
        if len(ended):
            ends[ended] = _flattened(parameters).detach()[ended]
    return [
        LocalResult(delta, samples_seen=seen, steps=steps)
        for delta, seen, steps in zip(
            (ends - starts).unbind(),
            drawn.lengths.sum(dim=1).tolist(),
            drawn.steps.tolist(),
            strict=True,
        )
    ]


class _Drawn:
    """The mini-batches of a stack, as places in its hospitals' samples one after the other."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        """Draw all of them."""
        drawn = [
            list(
                mini_batches(
                    len(job.samples.targets),
                    job.training,
                    job.generator,
                    job.round_number,
                    job.samples.smallest_batch,
                )
            )
            for job in jobs
        ]
        self.steps = torch.tensor([len(batches) for batches in drawn])  # (jobs,)
        self.lengths = nn.utils.rnn.pad_sequence(
            [torch.tensor([len(batch) for batch in batches]) for batches in drawn], batch_first=True
        )  # (jobs, steps); 0 where a hospital has ended
        counts = torch.tensor([len(job.samples.targets) for job in jobs])
        self._firsts = counts.cumsum(0) - counts
        self._orders = torch.cat([batch for batches in drawn for batch in batches])
        self._device = device

    def batches(self) -> Iterator[Tensor]:
        """Yield each step's places of samples: (jobs, most samples), filled up past the end."""
        is_drawn = torch.arange(int(self.lengths.max())) < self.lengths[..., None]
        places = torch.zeros(is_drawn.shape, dtype=torch.long)
        places[is_drawn] = self._orders
        places = (places + self._firsts[:, None, None]).to(self._device)
        for step, most in enumerate(self.lengths.max(dim=0).values.tolist()):
            yield places[:, step, :most]


def _total(loss: Loss, outputs: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum of the hospitals' losses, each the mean over its mini-batch.

    outputs (jobs, m, num_outputs), targets (jobs, m, ...), lengths (jobs,) up to m.
    """
    total = outputs.new_zeros(())
    for length in torch.unique(lengths).tolist():
        of = torch.nonzero(lengths == length)[:, 0].to(outputs.device)
        if length:
            of_length = (part[of, :length].flatten(0, 1) for part in (outputs, targets))
            total = total + len(of) * loss(*of_length)
    return total


def _pulled(jobs: Sequence[Job], current: Tensor) -> Tensor:
    """Return a value with every hospital's pull as its gradient in `current` (jobs, dim)."""
    pulls = [
        job.pull(parameters)
        for job, parameters in zip(jobs, current.detach(), strict=True)
        if job.pull is not None
    ]
    return (torch.stack(pulls) * current).sum()


def _unflattened(vectors: Tensor, model: nn.Module) -> list[Tensor]:
    """Return vectors (jobs, dim) as copies of each parameter: (jobs, *shape), to be trained."""
    shapes = [parameter.shape for _, parameter in named_trained_parameters(model)]
    parts = torch.split(vectors, [prod(shape) for shape in shapes], dim=1)
    return [
        part.reshape(-1, *shape).clone().requires_grad_()
        for part, shape in zip(parts, shapes, strict=True)
    ]


def _flattened(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([parameter.flatten(1) for parameter in parameters], dim=1)
