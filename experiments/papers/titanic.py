"""Weight Erosion on the Titanic (Grimberg et al. 2020, figures 1 and 2).

`reference` keeps the two faults of the authors' code, `corrected` has neither: their FedAvg adds
the hospitals' gradients with Python's `sum(a, b)`, which adds up a's rows and broadcasts; and
their accuracy is the plain mean over test batches, in which one passenger can count as half.
The erosion itself is this program's rule.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from erosion.common.aggregation.cohort import MemoryCohort, Update
from erosion.common.algorithms.base import BuildContext
from erosion.common.algorithms.weight_erosion import WeightErosion
from erosion.experiments.cells import CellPlan, Tick, Values
from erosion.experiments.sources.titanic_passengers import (
    AUTHORS_SEED,
    BATCH_SIZE,
    FEATURES,
    SPLITS,
    Hospital,
    Split,
    hospitals_of,
    load_passengers,
    split_indices,
)

Scheme = Literal["local", "fedavg", "weight_erosion"]
Mode = Literal["reference", "corrected"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
MODES: tuple[Mode, ...] = get_args(Mode)
ROUNDS = 30
SEEDS = tuple(range(20))
USERS = tuple(range(4))
RATES: Mapping[Mode, Mapping[Scheme, float]] = {
    "reference": {"local": 3.0, "fedavg": 0.07, "weight_erosion": 3.0},
    "corrected": {"local": 3.0, "fedavg": 3.0, "weight_erosion": 3.0},
}
PENALTY = 1e-3  # times half the squared norm of the parameters, the bias included
DIM = (len(FEATURES) + 1) * 2


def plans() -> list[CellPlan]:
    """Both modes and splits, 20 seeds and the authors'; a cell has all users and schemes."""
    return [
        CellPlan(
            f"{mode}-{split.lower()}-{seed}",
            {
                "mode": mode,
                "split": split,
                "seed": seed,
                "rounds": ROUNDS,
                "rates": dict(RATES[mode]),
                "distance_penalty": 0.01,
                "size_penalty": 0.2,
            },
            ROUNDS * len(USERS) * len(SCHEMES),
        )
        for mode in MODES
        for split in SPLITS
        for seed in (AUTHORS_SEED, *SEEDS)
    ]


def rule_of(config: Values) -> WeightErosion:
    """This program's Weight Erosion with the cell's settings."""
    return WeightErosion(
        distance_penalty=config["distance_penalty"],
        size_penalty=config["size_penalty"],
        size_unit="completed_passes",
        batch_size=BATCH_SIZE[config["split"]],
    )


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Train every scheme for every user."""
    split: Split = config["split"]
    passengers = load_passengers(data_dir)
    rows = split_indices(passengers, split, config["seed"])
    figures: dict[str, dict[str, Any]] = {}
    for user in USERS:
        hospitals = hospitals_of(passengers, rows, user)
        majority = float(torch.bincount(hospitals[user].test_labels).max())
        figures[str(user)] = {
            "majority": majority / len(hospitals[user].test_labels),
        }
        for scheme in SCHEMES:
            figures[str(user)][scheme] = _train(scheme, hospitals, user, config, tick)
    return {"users": figures, "sizes": [len(group) for group in rows]}


def _train(
    scheme: Scheme, hospitals: Sequence[Hospital], user: int, config: Values, tick: Tick
) -> Values:
    """One scheme for one user: accuracy and weights after every round."""
    batch_size = BATCH_SIZE[config["split"]]
    context = BuildContext(config["rounds"], len(hospitals), _no_layout)
    rate, reference = config["rates"][scheme], config["mode"] == "reference"
    erosion = rule_of(config).build(context)
    state = erosion.init(DIM)
    parameters = _first_parameters(config["seed"])
    accuracies, weights, distances = [], [], []
    for number in range(config["rounds"]):
        gradients = [_gradient(parameters, h, number, batch_size) for h in hospitals]
        if scheme == "local":
            step = -rate * gradients[user]
        elif scheme == "fedavg":
            total = _faulty_sum(gradients) if reference else torch.stack(gradients).sum(0)
            step = -rate * total / len(gradients)
        else:
            own, peers = _updates(hospitals, gradients, user, rate, number, batch_size)
            cohort = MemoryCohort(own, peers)
            if number == 0:
                distances = cohort.distances_to_own().tolist()
            done = erosion.update(state, cohort)
            state, step = done.state, done.delta
            weights.append([round(done.weights[name], 6) for name in sorted(peers)])
        parameters = parameters + step
        accuracies.append(round(_accuracy(parameters, hospitals[user], batch_size, reference), 6))
        tick()
    figures: dict[str, Any] = {
        "accuracy": accuracies,
        "parameters": [round(value, 5) for value in parameters.tolist()],
    }
    if weights:
        figures |= {"weights": weights, "first_distances": [round(d, 5) for d in distances]}
    return figures


def _updates(
    hospitals: Sequence[Hospital],
    gradients: Sequence[Tensor],
    user: int,
    rate: float,
    number: int,
    batch_size: int,
) -> tuple[Update, dict[str, Update]]:
    updates = {
        str(i): Update(
            agent=str(i),
            round=number + 1,
            delta=-rate * gradient,
            num_samples=len(h.labels),
            samples_seen=len(h.labels[_batch(h, number, batch_size)]),
        )
        for i, (h, gradient) in enumerate(zip(hospitals, gradients, strict=True))
    }
    return updates.pop(str(user)), updates


def _batch(hospital: Hospital, number: int, batch_size: int) -> slice:
    """The batches follow each other in a fixed order; the last one of a pass is short."""
    batches = -(-len(hospital.labels) // batch_size)
    start = (number % batches) * batch_size
    return slice(start, start + batch_size)


def _first_parameters(seed: int) -> Tensor:
    """Weights from a normal of deviation 1/3 cut off at two deviations, biases 0."""
    generator = np.random.default_rng(seed)
    draws = generator.normal(size=10_000)
    weights = draws[np.abs(draws) <= 2][: 2 * len(FEATURES)] / 3
    return torch.tensor([*weights, 0.0, 0.0], dtype=torch.float32)


def _log_probabilities(parameters: Tensor, inputs: Tensor) -> Tensor:
    matrix, bias = parameters[:-2].reshape(len(FEATURES), 2), parameters[-2:]
    return torch.log_softmax(inputs @ matrix + bias, dim=1)


def _gradient(parameters: Tensor, hospital: Hospital, number: int, batch_size: int) -> Tensor:
    """Of the authors' loss on the round's batch: the mean goes over both outputs, too."""
    batch = _batch(hospital, number, batch_size)
    theta = parameters.clone().requires_grad_()
    logs = _log_probabilities(theta, hospital.inputs[batch])
    truth = torch.nn.functional.one_hot(hospital.labels[batch], 2)
    loss = -(logs * truth).mean() + PENALTY * 0.5 * theta.square().sum()
    (gradient,) = torch.autograd.grad(loss, theta)
    return gradient


def _faulty_sum(gradients: Sequence[Tensor]) -> Tensor:
    """`sum(a, b)` on arrays, as in the authors' FedAvg: a's rows are added to every row of b."""

    def add(a: Tensor, b: Tensor) -> Tensor:
        matrix = a[:-2].reshape(-1, 2).sum(0) + b[:-2].reshape(-1, 2)
        return torch.cat([matrix.flatten(), a[-2:].sum() + b[-2:]])

    return reduce(add, gradients)


def _accuracy(parameters: Tensor, user: Hospital, batch_size: int, by_batch: bool) -> float:
    """Share of the test passengers; `by_batch`: the mean over batches, as the authors took it."""
    right = (_log_probabilities(parameters, user.test_inputs).argmax(1) == user.test_labels).float()
    if not by_batch:
        return float(right.mean())
    return float(np.mean([float(part.mean()) for part in torch.split(right, batch_size)]))


def _no_layout() -> Mapping[str, slice]:
    return {}
