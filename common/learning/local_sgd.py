"""Local training: some steps of SGD or Adam from the received parameters."""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from erosion.common.learning.layer_draws import draws_from
from erosion.common.learning.linear_gradient import LinearModel, SetGradient, is_derived
from erosion.common.learning.models import flat_parameters, load_flat_parameters
from erosion.common.learning.optimizers import optimizer_for
from erosion.common.learning.trainable import to_training, trained_parameters
from erosion.common.learning.training import Training
from erosion.common.tasks.task import Loss, Task


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What local training did."""

    delta: Tensor  # (dim,) float32; parameters after minus before
    samples_seen: int  # samples over all mini-batches, repeats counted
    steps: int  # mini-batches


_STATE_AT, _STATE_WORDS = 24, 624  # where torch's state has its words, each in eight bytes

Pull = Callable[[Tensor], Tensor]  # current parameters (dim,) -> what is added to their gradient
Augment = Callable[[Tensor], Tensor]  # a mini-batch's inputs (m, *shape) -> as they are trained on


def round_generator(
    seed: int, agent: str, round_number: int, secret: bytes = b""
) -> torch.Generator:
    """The randomness of one hospital's round: it depends on these and nothing else.

    `secret` is the site's own; without one, whoever knows the study can repeat the draws.
    """
    text = f"{seed}/{agent}/{round_number}".encode()
    if secret:
        return _unguessable(hmac.digest(secret, text, hashlib.sha256))
    return torch.Generator().manual_seed(_seed(hashlib.sha256(text).digest()))


def _seed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


def _unguessable(digest: bytes) -> torch.Generator:
    """A generator whose draws depend on all of `digest`, 32 bytes.

    torch keeps 32 bits of a seed, and so many seeds can be tried one after the other: the whole
    state of the Mersenne Twister is filled in.
    """
    generator = torch.Generator().manual_seed(_seed(digest))
    words = np.frombuffer(hashlib.shake_256(digest).digest(4 * _STATE_WORDS), np.dtype("<u4"))
    state = generator.get_state()
    state[_STATE_AT : _STATE_AT + 8 * _STATE_WORDS] = torch.from_numpy(
        words.astype("<u8").view(np.uint8)
    )
    generator.set_state(state)
    return generator


def mini_batches(
    num_samples: int,
    training: Training,
    generator: torch.Generator,
    round_number: int,
    smallest: int = 1,
) -> Iterator[Tensor]:
    """Indices of each mini-batch of a round.

    `epochs`: whole passes in a new order each, the last batch of a pass may be short. `steps`:
    full batches through one order after another, never short unless the hospital has fewer
    samples than a batch. In a sequential order nothing is drawn, and the last batch of every pass
    may be short; where the round begins in it depends on `round_number`. None is shorter than
    `smallest`: see `Training.sizes_of_a_pass`.
    """
    sizes = training.sizes_of_a_pass(num_samples, smallest)
    if training.order == "sequential":
        of_a_pass = torch.split(torch.arange(num_samples), sizes)
        steps = training.steps or (training.epochs or 1) * len(sizes)
        first = (round_number - 1) * steps
        yield from (of_a_pass[step % len(of_a_pass)] for step in range(first, first + steps))
        return
    if training.epochs is not None:
        for _ in range(training.epochs):
            order = torch.randperm(num_samples, generator=generator)
            yield from torch.split(order, sizes)
        return
    size = min(training.batch_size, num_samples)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(training.steps or 0):
        if len(order) < size:
            order = torch.cat([order, torch.randperm(num_samples, generator=generator)])
        yield order[:size]
        order = order[size:]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """What a model is fitted to."""

    inputs: Tensor  # (n, *shape)
    targets: Tensor  # (n, ...) as the loss takes them
    loss: Loss
    augment: Augment | None = None  # changes the inputs of a mini-batch
    smallest_batch: int = 1  # samples that a mini-batch must have


Trainer = Callable[
    [nn.Module, Tensor, Samples, Training, torch.Generator, Pull | None, int], LocalResult
]  # `train_locally`, or what does the same otherwise


def train_locally(
    model: nn.Module,
    start: Tensor,
    samples: Samples,
    training: Training,
    generator: torch.Generator,
    pull: Pull | None = None,
    round_number: int = 1,
) -> LocalResult:
    """Train `model` from `start` (dim,), in the round of that number.

    `pull` is added to the gradient of every step: a proximal term, a control variate. The optimiser
    starts fresh: momentum does not outlive a round, because the parameters that it was gathered
    for do not either. What a layer draws (dropout) depends on the generator's seed alone. The model
    is left at the trained parameters.
    """
    load_flat_parameters(model, start)
    to_training(model)
    parameters = trained_parameters(model)
    optimizer = optimizer_for(parameters, training)
    samples_seen = steps = 0
    num, smallest = len(samples.targets), samples.smallest_batch
    with draws_from(generator.initial_seed(), start.device), _unrecorded(model, samples.loss):
        set_gradient = _gradient_of(model, samples.loss)
        for batch in mini_batches(num, training, generator, round_number, smallest):
            optimizer.zero_grad()
            inputs = samples.inputs[batch]
            seen = inputs if samples.augment is None else samples.augment(inputs)
            set_gradient(seen, samples.targets[batch])
            if pull is not None:
                _add_pull(parameters, pull)
            optimizer.step()
            samples_seen += len(batch)
            steps += 1
        optimizer.zero_grad()  # what was not recorded is of no use to autograd later
    return LocalResult(flat_parameters(model) - start, samples_seen, steps)


def _unrecorded(model: nn.Module, loss: Loss) -> AbstractContextManager[None]:
    """Where nothing is recorded for autograd; where autograd is not needed, nor could be."""
    if isinstance(model, LinearModel) and is_derived(loss):
        return torch.inference_mode()  # it costs a small model's step a sixth less
    return torch.no_grad()


def _gradient_of(model: nn.Module, loss: Loss) -> SetGradient:
    if isinstance(model, LinearModel):
        return model.gradient_of(loss)

    def set_gradient(inputs: Tensor, targets: Tensor) -> None:
        with torch.enable_grad():
            torch.autograd.backward(loss(model(inputs), targets))

    return set_gradient


def _add_pull(parameters: Sequence[Tensor], pull: Pull) -> None:
    """Add what pulls at the parameters to their gradients."""
    pulled = pull(torch.cat([parameter.flatten() for parameter in parameters]))
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, torch.split(pulled, sizes), strict=True):
        own = parameter.grad
        parameter.grad = part.view_as(parameter) if own is None else own.add_(part.view_as(own))


def gradient(
    model: nn.Module, at: Tensor, inputs: Tensor, targets: Tensor, loss: Loss, seed: int = 0
) -> Tensor:
    """The gradient of the loss of inputs (m, *shape) in the parameters `at`: (dim,).

    A layer that draws (dropout) does so alike in every call with the same `seed`.
    """
    load_flat_parameters(model, at)
    to_training(model)
    with draws_from(seed, at.device):
        parts = torch.autograd.grad(
            loss(model(inputs), targets),
            trained_parameters(model),
            allow_unused=True,  # a model may have a parameter that these patients do not need
            materialize_grads=True,
        )
    return torch.cat([part.flatten() for part in parts])


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Tensor, batch_size: int = 1024) -> Tensor:
    """What the model gives for inputs (n, *shape): (n, num_outputs) float64."""
    model.eval()
    return torch.cat([model(part) for part in torch.split(inputs, batch_size)]).double()


def predictions_of(task: Task, model: nn.Module, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Predictions (n, k) with `parameters` (dim,), or the mean of those of each row (m, dim)."""

    def of(member: Tensor) -> Tensor:
        load_flat_parameters(model, member)
        return task.predictions(outputs_of(model, inputs))

    members = parameters.reshape(-1, parameters.shape[-1])
    return torch.stack([of(member) for member in members]).mean(dim=0)
