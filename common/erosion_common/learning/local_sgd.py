"""Local training: some steps of SGD or Adam from the received parameters."""

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from erosion_common.learning.batch_statistics import statistics_of
from erosion_common.learning.trainable import (
    draws_from,
    flat_parameters,
    load_flat_parameters,
    to_training,
    trained_parameters,
)
from erosion_common.learning.training import Training
from erosion_common.tasks.task import DerivedLoss, Loss, Task


class PlainSgd:
    """The steps of one round, on a processor; momentum starts at nothing."""

    def __init__(self, parameters: Sequence[Tensor], training: Training) -> None:
        self._parameters, self._rate = parameters, training.learning_rate
        self._momentum, self._weight_decay = training.momentum, training.weight_decay
        self._buffers: list[Tensor | None] = [None] * len(parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient. Call it where nothing is recorded."""
        for place, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if self._weight_decay:
                gradient = gradient.add(parameter, alpha=self._weight_decay)
            if self._momentum:
                gradient = self._gathered(place, gradient)
            parameter.add_(gradient, alpha=-self._rate)

    def _gathered(self, place: int, gradient: Tensor) -> Tensor:
        """Return the momentum: the decaying sum of a parameter's gradients."""
        before = self._buffers[place]
        after = gradient.clone() if before is None else before.mul_(self._momentum).add_(gradient)
        self._buffers[place] = after
        return after


def optimizer_for(
    parameters: Sequence[Tensor], training: Training
) -> torch.optim.Optimizer | PlainSgd:
    """Return a fresh optimiser as the study has it."""
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    if parameters[0].device.type == "cpu":
        return PlainSgd(parameters, training)
    return torch.optim.SGD(  # which moves all parameters at once there
        parameters, lr=rate, momentum=training.momentum, weight_decay=decay
    )


_MEAN = 1  # how the loss of a mini-batch is made of its samples', as ATen numbers the ways
_IGNORED = -100  # the target that cross_entropy passes over by default
# What autograd calls; torch has no other name for them, and pyproject.toml pins its version.
_forward = torch.ops.aten.nll_loss_forward.default
_backward = torch.ops.aten.nll_loss_backward.default
_through_softmax = torch.ops.aten._log_softmax_backward_data.default  # noqa: SLF001

SetGradient = Callable[[Tensor, Tensor], None]  # given inputs (m, *shape) and their targets


class LinearModel(nn.Sequential):
    """One linear layer on flattened inputs."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(nn.Flatten(), layer)

    def gradient_of(self, loss: Loss) -> SetGradient:
        """Return a function that sets the trained parameters' gradients to those of the loss.

        Make it and call it where nothing is recorded for autograd.
        """
        weight, bias = self[1].parameters()
        turned = weight.t()  # a view: it follows the steps
        has_weight, has_bias = weight.requires_grad, bias.requires_grad
        output_gradient = _output_gradient(loss, weight)

        def set_gradient(inputs: Tensor, targets: Tensor) -> None:
            flat = inputs.flatten(1)
            of_outputs = output_gradient(torch.addmm(bias, flat, turned), targets)
            if has_weight:
                weight.grad = of_outputs.t().mm(flat)
            if has_bias:
                bias.grad = of_outputs.sum(0)

        return set_gradient


class NetworkEnsemble(nn.Module):
    """Networks that are each trained on their own loss, and predict by the mean of their outputs.

    One output layer on the features of all is their output layers side by side, so that what keeps
    or replaces a model's last layer takes it as any other. They share the bias.
    """

    def __init__(self, bodies: Sequence[nn.Module], heads: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)
        features, outputs = sum(head.in_features for head in heads), heads[0].out_features
        self.output = nn.Linear(features, outputs, device=heads[0].weight.device)
        with torch.no_grad():
            self.output.weight.copy_(torch.cat([head.weight for head in heads], dim=1))
            self.output.bias.copy_(torch.stack([head.bias for head in heads]).mean(dim=0))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the mean outputs (n, k); in training those of each network: (n, networks, k)."""
        features = [body(inputs) for body in self.bodies]
        count = len(features)
        if not self.training:
            mean: Tensor = self.output(torch.cat(features, dim=1) / count)
            return mean
        # Each network's share of the bias: all together move it as far as one would.
        bias = torch.lerp(self.output.bias.detach(), self.output.bias, 1 / count)
        weights = self.output.weight.chunk(count, dim=1)
        return torch.stack(
            [linear(each, own, bias) for each, own in zip(features, weights, strict=True)], dim=1
        )


def objective(model: nn.Module, loss: Loss) -> Loss:
    """Return what local training minimises: the loss, or the sum of an ensemble's networks'."""
    if not isinstance(model, NetworkEnsemble):
        return loss

    def total(outputs: Tensor, targets: Tensor) -> Tensor:
        count = outputs.shape[1]
        return count * loss(outputs.flatten(0, 1), targets.repeat_interleave(count, dim=0))

    return total


def is_derived(loss: Loss) -> bool:
    """Return True if the loss computes its gradient without autograd."""
    return loss is cross_entropy or isinstance(loss, DerivedLoss)


def _output_gradient(loss: Loss, like: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss's gradient in outputs (m, k), of their shape, given those and the targets."""
    if isinstance(loss, DerivedLoss):
        return loss.output_gradient
    if loss is not cross_entropy:
        return partial(_by_autograd, loss)
    one = torch.ones((), dtype=like.dtype, device=like.device)  # the gradient of the loss in itself

    def of_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        logs = torch.log_softmax(outputs, 1)
        _, total = _forward(logs, targets, None, _MEAN, _IGNORED)
        of_logs = _backward(one, logs, targets, None, _MEAN, _IGNORED, total)
        gradient: Tensor = _through_softmax(of_logs, logs, 1, outputs.dtype)
        return gradient

    return of_cross_entropy


def _by_autograd(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    outputs.requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(loss(outputs, targets), outputs)[0]


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
    """Return the randomness of one hospital's round: it depends on these and nothing else.

    `secret` is the site's own; without one, anybody who knows the study can repeat the draws.
    """
    text = f"{seed}/{agent}/{round_number}".encode()
    if secret:
        return _unguessable(hmac.digest(secret, text, hashlib.sha256))
    return torch.Generator().manual_seed(_seed(hashlib.sha256(text).digest()))


def _seed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 1


def _unguessable(digest: bytes) -> torch.Generator:
    """Return a generator with draws that depend on all of `digest`, 32 bytes.

    torch keeps 32 bits of a seed, which can all be tried: the whole state of the Mersenne Twister
    is filled in.
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
    """Yield indices of each mini-batch of a round.

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
    starts fresh: momentum does not outlive a round, because its parameters do not either. What a
    layer draws (dropout) depends on the generator's seed alone. The model is left at the trained
    parameters.
    """
    load_flat_parameters(model, start)
    to_training(model)
    parameters = trained_parameters(model)
    optimizer, gathered = optimizer_for(parameters, training), statistics_of(model)
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
                _add_pull(parameters, pull, gathered)
            optimizer.step()
            samples_seen += len(batch)
            steps += 1
        optimizer.zero_grad()  # what was not recorded is of no use to autograd later
    return LocalResult(flat_parameters(model).sub_(start), samples_seen, steps)


def _unrecorded(model: nn.Module, loss: Loss) -> AbstractContextManager[None]:
    """Return a context without recording for autograd, where autograd is not needed."""
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


def _add_pull(parameters: Sequence[Tensor], pull: Pull, gathered: Collection[int]) -> None:
    pulled = pull(torch.cat([parameter.flatten() for parameter in parameters]))
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, torch.split(pulled, sizes), strict=True):
        if id(parameter) in gathered:
            continue
        own = parameter.grad
        parameter.grad = part.view_as(parameter) if own is None else own.add_(part.view_as(own))


def gradient(
    model: nn.Module, at: Tensor, inputs: Tensor, targets: Tensor, loss: Loss, seed: int = 0
) -> Tensor:
    """Return the gradient of the loss of inputs (m, *shape) in the parameters `at`: (dim,).

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
    """Return the model's outputs for inputs (n, *shape): (n, num_outputs) float64."""
    model.eval()
    return torch.cat([model(part) for part in torch.split(inputs, batch_size)]).double()


def predictions_of(task: Task, model: nn.Module, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Return predictions (n, k) with `parameters` (dim,), or the mean over rows (m, dim)."""

    def of(member: Tensor) -> Tensor:
        load_flat_parameters(model, member)
        return task.predictions(outputs_of(model, inputs))

    members = parameters.reshape(-1, parameters.shape[-1])
    return torch.stack([of(member) for member in members]).mean(dim=0)
