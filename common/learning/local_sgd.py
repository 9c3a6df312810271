"""Local training: some steps of SGD or Adam from the received parameters."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.learning.models import flat_parameters, load_flat_parameters
from common.study import Training


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What local training did."""

    delta: Tensor  # (dim,) float32; parameters after minus before
    samples_seen: int  # samples over all mini-batches, repeats counted


def round_generator(seed: int, agent: str, round_number: int) -> torch.Generator:
    """The randomness of one hospital's round: it depends on these three and nothing else."""
    digest = hashlib.sha256(f"{seed}/{agent}/{round_number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def mini_batches(
    num_samples: int, training: Training, generator: torch.Generator
) -> Iterator[Tensor]:
    """Indices of each mini-batch of a round.

    `epochs`: whole passes in a new order each, the last batch of a pass may be short. `steps`:
    full batches through one order after another, never short unless the hospital has fewer
    samples than a batch.
    """
    if training.epochs is not None:
        for _ in range(training.epochs):
            order = torch.randperm(num_samples, generator=generator)
            yield from torch.split(order, training.batch_size)
        return
    size = min(training.batch_size, num_samples)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(training.steps or 0):
        if len(order) < size:
            order = torch.cat([order, torch.randperm(num_samples, generator=generator)])
        yield order[:size]
        order = order[size:]


def train_locally(
    model: nn.Module,
    start: Tensor,
    inputs: Tensor,
    labels: Tensor,
    training: Training,
    generator: torch.Generator,
) -> LocalResult:
    """Train `model` from `start` (dim,) on inputs (n, *shape) and labels (n,) int64.

    The optimiser starts fresh: momentum does not outlive a round, because the parameters that it
    was gathered for do not either. The model is left at the trained parameters.
    """
    load_flat_parameters(model, start)
    model.train()
    optimizer: torch.optim.Optimizer
    if training.optimizer == "adam":
        optimizer = torch.optim.Adam(
            model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
    samples_seen = 0
    for batch in mini_batches(len(labels), training, generator):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        torch.autograd.backward(loss)
        optimizer.step()
        samples_seen += len(batch)
    return LocalResult(flat_parameters(model) - start, samples_seen)


@torch.no_grad()
def predict_probabilities(model: nn.Module, inputs: Tensor, batch_size: int = 1024) -> Tensor:
    """Class probabilities of inputs (n, *shape): (n, classes) float64."""
    model.eval()
    logits = [model(part) for part in torch.split(inputs, batch_size)]
    return torch.cat(logits).double().softmax(dim=1)
