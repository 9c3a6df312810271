"""Weight Erosion on the Titanic (Grimberg et al. 2020, figures 1 and 2).

`reference` keeps the two faults of the authors' code, `corrected` has neither: their FedAvg adds
the hospitals' gradients with Python's `sum(a, b)`, which adds up a's rows and broadcasts; and
their accuracy is the plain mean over test batches, in which one passenger can count as half.
The erosion itself is this program's rule."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from erosion.sources.titanic import (
    AUTHORS_SEED,
    BATCH_SIZE,
    FEATURES,
    SPLITS,
    AgeGroup,
    Split,
    hospitals_of,
    load_passengers,
    split_indices,
)
from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.base import BuildContext
from erosion_common.algorithms.weight_erosion import WeightErosion, half_angle
from experiments.cells import Cell, CellPlan, Values
from experiments.experiment import experiment
from experiments.page import (
    COLOURS,
    Page,
    add_legend,
    beside,
    bullets,
    constants,
    grid,
    joined,
    named,
    page,
    picture,
    table,
    where,
)
from experiments.tables import Comparison, about, comparison_table, comparisons, in_words

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
    """Return both modes and splits, 20 seeds and the authors', then the cells of the cone.

    A cell has all users and schemes, or Weight Erosion alone, corrected.
    """
    every = [(split, seed) for split in SPLITS for seed in (AUTHORS_SEED, *SEEDS)]
    plain = [_plan(mode, *each, RATES[mode]) for mode in MODES for each in every]
    eroding: Mapping[Scheme, float] = {"weight_erosion": RATES["corrected"]["weight_erosion"]}
    return plain + [_plan("cone", split, seed, eroding) for split in SPLITS for seed in SEEDS]


def _plan(mode: str, split: Split, seed: int, rates: Mapping[Scheme, float]) -> CellPlan:
    config = {
        "mode": mode,
        "split": split,
        "seed": seed,
        "rounds": ROUNDS,
        "rates": dict(rates),
        "distance_penalty": 0.01,
        "size_penalty": 0.2,
    }
    return CellPlan(f"{mode}-{split.lower()}-{seed}", config)


def rule_of(config: Values) -> WeightErosion:
    """This program's Weight Erosion with the cell's settings."""
    return WeightErosion(
        distance_penalty=config["distance_penalty"],
        size_penalty=config["size_penalty"],
        size_unit="completed_passes",
        batch_size=BATCH_SIZE[config["split"]],
    )


def run(config: Values, data_dir: Path | None) -> Values:
    """Train every scheme that has a step size, for every user."""
    split: Split = config["split"]
    passengers = load_passengers(data_dir)
    rows = split_indices(passengers, split, config["seed"])
    figures: dict[str, dict[str, Any]] = {}
    for user in USERS:
        hospitals = hospitals_of(passengers, rows, user)
        survived = float(hospitals[user].test_labels.float().mean())
        figures[str(user)] = {"majority": max(survived, 1 - survived), "survived": survived}
        for scheme in config["rates"]:
            figures[str(user)][scheme] = _train(scheme, hospitals, user, config)
    return {"users": figures, "sizes": [len(group) for group in rows]}


def _train(scheme: Scheme, hospitals: Sequence[AgeGroup], user: int, config: Values) -> Values:
    """Return one scheme for one user: accuracy and weights after every round."""
    batch_size = BATCH_SIZE[config["split"]]
    context = BuildContext(config["rounds"], len(hospitals), _no_layout)
    rate, reference = config["rates"][scheme], config["mode"] == "reference"
    erosion = rule_of(config).build(context)
    state = erosion.init(DIM)
    parameters = _first_parameters(config["seed"])
    accuracies, weights, distances = [], [], []
    angles: list[float] = []  # half of the narrowest cone's, around the updates with weight
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
            counted = torch.tensor([True, *(done.weights[name] > 0 for name in peers)])
            angles.append(round(half_angle(cohort.gram()[counted][:, counted]), 2))
        parameters = parameters + step
        accuracies.append(round(_accuracy(parameters, hospitals[user], batch_size, reference), 6))
    figures: dict[str, Any] = {
        "accuracy": accuracies,
        "parameters": [round(value, 5) for value in parameters.tolist()],
    }
    if weights:
        figures |= {"weights": weights, "first_distances": [round(d, 5) for d in distances]}
    if weights and config["mode"] == "cone":
        figures["half_angles"] = angles
    return figures


def _updates(
    hospitals: Sequence[AgeGroup],
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


def _batch(hospital: AgeGroup, number: int, batch_size: int) -> slice:
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


def _gradient(parameters: Tensor, hospital: AgeGroup, number: int, batch_size: int) -> Tensor:
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


def _accuracy(parameters: Tensor, user: AgeGroup, batch_size: int, by_batch: bool) -> float:
    """Share of the test passengers; `by_batch`: the mean over batches, as the authors took it."""
    right = (_log_probabilities(parameters, user.test_inputs).argmax(1) == user.test_labels).float()
    if not by_batch:
        return float(right.mean())
    return float(np.mean([float(part.mean()) for part in torch.split(right, batch_size)]))


def _no_layout() -> Mapping[str, slice]:
    return {}


NAMES: Mapping[str, str] = {
    "local": "Local",
    "fedavg": "FedAvg",
    "weight_erosion": "Weight Erosion",
}
USER_NAMES = ("0", "1", "2", "3")
PUBLISHED: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
PUBLISHED = constants("published")["titanic"]  # final accuracies, users 0 to 3


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw tables of means over seeds, the authors' split, and three pictures."""
    every = _differences(cells)
    return page(
        "titanic",
        {
            "accuracy.svg": _by_user(cells, "test accuracy", _accuracy_curves),
            "weights.svg": _by_user(cells, "weight", _weight_curves),
            "parameters.svg": _parameters(cells),
        },
        tables=joined(_table(cells, split) for split in SPLITS),
        claims=_claims(cells),
        keeping=bullets(_keeping(cells)),
        cone=_cone(cells),
        about=about(every),
        differences=comparison_table(
            every,
            lambda one: [f"{one.setting}, minus {NAMES[one.other]}"],
            lambda one: f"user {one.metric}",
        ),
        better=_clear(every, 1),
        worse=_clear(every, -1),
    )


def _of(cells: Mapping[str, Cell], mode: str, split: str) -> list[Cell]:
    """Return those of the other seeds than the authors'."""
    found = where(cells, mode=mode, split=split)
    return [cell for cell in found if cell.plan.config["seed"] != AUTHORS_SEED]


def _final(cell: Cell, user: str, scheme: str) -> float:
    return float(cell.figures["users"][user][scheme]["accuracy"][-1])


def _table(cells: Mapping[str, Cell], split: Split) -> str:
    found = {mode: _of(cells, mode, split) for mode in MODES}
    if any(len(of) < 2 for of in found.values()):
        return ""
    authors = where(cells, mode="reference", split=split, seed=AUTHORS_SEED)

    def entry(mode: Mode, scheme: str, user: str) -> str:
        ours = in_words([_final(cell, user, scheme) for cell in found[mode]])
        for cell in authors if mode == "reference" else ():
            ours += f", {_final(cell, user, scheme):.3f}"
        published = PUBLISHED[mode].get(split, {}).get(scheme)
        return beside(ours, f"{published[int(user)]:.3f}" if published else "")

    def share(name: str) -> list[str]:
        of = found["corrected"]
        return [in_words([cell.figures["users"][user][name] for cell in of]) for user in USER_NAMES]

    rows = [
        [name, mode, *(entry(mode, scheme, user) for user in USER_NAMES)]
        for scheme, name in NAMES.items()
        for mode in MODES
    ]
    rows += [["majority", "", *share("majority")], ["survived", "", *share("survived")]]
    sizes = "/".join(str(size) for size in found["corrected"][0].figures["sizes"])
    return joined(
        [
            f"## {split}",
            f"{len(found['corrected'])} seeds; hospitals of {sizes} passengers.",
            table(["", "", *(f"user {user}" for user in USER_NAMES)], rows),
        ]
    )


def _log_odds(cell: Cell, user: str, scheme: str) -> dict[str, float]:
    """By feature, the weight for survival minus that against it."""
    values = cell.figures["users"][user][scheme]["parameters"]
    return {name: values[2 * i + 1] - values[2 * i] for i, name in enumerate(FEATURES)}


def _is_outside(cell: Cell, feature: str) -> bool:
    eroded, *others = (
        _log_odds(cell, "0", scheme)[feature] for scheme in ("weight_erosion", "local", "fedavg")
    )
    return not min(others) <= eroded <= max(others)


def _off_the_line(cell: Cell) -> float:
    """Of the way from Local to Weight Erosion, the share that no mixture with FedAvg makes."""
    local, average, eroded = (
        np.array(cell.figures["users"]["0"][scheme]["parameters"]) for scheme in SCHEMES
    )
    way, line = eroded - local, average - local
    rest = way - line * (way @ line) / (line @ line)
    return float(np.linalg.norm(rest) / np.linalg.norm(way))


def _claims(cells: Mapping[str, Cell]) -> str:
    """Return what the paper reads from figure 2's top, counted over every seed."""
    found = {mode: where(cells, mode=mode, split="AGE_STRICT") for mode in MODES}
    if any(len(of) < 2 for of in found.values()):
        return ""
    rows = [
        [f"{name}: Weight Erosion's lies outside Local's and FedAvg's", *(
            f"in {sum(_is_outside(cell, name) for cell in of)} of {len(of)}"
            for of in found.values()
        )]
        for name in ("female", "age", "Queenstown")
    ]  # fmt: skip
    rows += [
        ["alone: FedAvg's log odds of survival", *(
            in_words([_log_odds(cell, "0", "fedavg")["alone"] for cell in of], "+.2f")
            for of in found.values()
        )],
        ["of the way from Local to Weight Erosion, the part that no mixture with FedAvg makes", *(
            in_words([_off_the_line(cell) for cell in of], ".2f") for of in found.values()
        )],
    ]  # fmt: skip
    return table(["AGE_STRICT, user 0", *MODES], rows)


CONES = (90, 75, 60)  # half-angles, in degrees


def _cone(cells: Mapping[str, Cell]) -> str:
    """Return when the updates with weight no longer fit into a cone, and what a stop there does."""

    def entry(angle: int, split: Split) -> str:
        found, rounds, gains = _of(cells, "cone", split), list[int](), list[float]()
        for cell in found:
            of_seed = []
            for user in USER_NAMES:
                eroded = cell.figures["users"][user]["weight_erosion"]
                accuracy, angles = eroded["accuracy"], eroded["half_angles"]
                outside = [at for at, narrowest in enumerate(angles) if at and narrowest >= angle]
                if outside:  # that round is not carried out
                    rounds.append(outside[0] + 1)
                    of_seed.append(accuracy[outside[0] - 1] - accuracy[-1])
            gains += [fmean(of_seed)] if of_seed else []
        runs = len(found) * len(USER_NAMES)
        if not rounds:
            return f"no run of {runs}" if runs else ""
        stopped = f"{len(rounds)} runs of {runs}, in round {fmean(rounds):.0f}"
        return f"{stopped}; {in_words(gains, '+.3f')}" if len(gains) > 1 else stopped

    return grid("half-angle", {f"{angle} degrees": angle for angle in CONES}, named(SPLITS), entry)


def _keeping(cells: Mapping[str, Cell]) -> Iterable[str]:
    """Yield the others of each user with their mean last weights, slowest to erode first."""
    for split in SPLITS:
        for user in USER_NAMES if (found := _of(cells, "corrected", split)) else ():
            eroded = [cell.figures["users"][user]["weight_erosion"]["weights"] for cell in found]
            peers = [peer for peer in USER_NAMES if peer != user]
            means = {
                peer: _mean([weights[place] for weights in rounds] for rounds in eroded)
                for place, peer in enumerate(peers)
            }
            order = sorted(peers, key=lambda peer: -sum(means[peer]))
            last = ", ".join(f"{peer} ({means[peer][-1]:.2f})" for peer in order)
            yield f"{split}, user {user}: {last}"


def _differences(cells: Mapping[str, Cell]) -> list[Comparison[str]]:
    """Weight Erosion minus the two others, corrected; a metric is the accuracy of a user."""
    finals: Mapping[str, Sequence[Values]] = {
        split: [
            {scheme: {u: _final(cell, u, scheme) for u in USER_NAMES} for scheme in SCHEMES}
            for cell in _of(cells, "corrected", split)
        ]
        for split in SPLITS
    }
    found = {split: of for split, of in finals.items() if len(of) > 1}
    return comparisons(
        found, ["weight_erosion"], ["local", "fedavg"], USER_NAMES, test_share=lambda _split: 0.5
    )


def _clear(every: Sequence[Comparison[str]], sign: int) -> str:
    found = sorted(
        (SPLITS.index(one.setting), one.other, f"{one.setting} {one.metric} ({NAMES[one.other]})")
        for one in every
        if one.is_clear and one.difference and one.difference.mean * sign > 0
    )
    return ", ".join(text for _, _, text in found) or "nobody"


def _mean(curves: Iterable[Sequence[float]]) -> list[float]:
    return [fmean(values) for values in zip(*curves, strict=True)]


def _by_user(
    cells: Mapping[str, Cell], label: str, curves: Callable[[Axes, Sequence[Cell], str], None]
) -> bytes:
    """Return curves over the rounds for every split and user, corrected."""
    with picture(4, 2, height=2.6) as (figure, content):
        grid = figure.subplots(2, 4, sharey=True)
        for row, split in zip(grid, SPLITS, strict=True):
            chosen = _of(cells, "corrected", split)
            for axis, user in zip(row, USER_NAMES, strict=True):
                axis.set_title(f"{split}, user {user}")
                if chosen:
                    curves(axis, chosen, user)
                axis.set_xlabel("round")
            row[0].set_ylabel(label)
    return content.getvalue()


def _accuracy_curves(axis: Axes, cells: Sequence[Cell], user: str) -> None:
    for scheme in SCHEMES:
        means = _mean(cell.figures["users"][user][scheme]["accuracy"] for cell in cells)
        axis.plot(range(1, len(means) + 1), means, label=NAMES[scheme])
    if user == USER_NAMES[0]:
        add_legend(axis)


def _weight_curves(axis: Axes, cells: Sequence[Cell], user: str) -> None:
    for place, peer in enumerate(peer for peer in USER_NAMES if peer != user):
        eroded = (cell.figures["users"][user]["weight_erosion"]["weights"] for cell in cells)
        means = _mean([weights[place] for weights in rounds] for rounds in eroded)
        colour = COLOURS[int(peer)]
        axis.plot(range(1, len(means) + 1), means, color=colour, label=f"hospital {peer}")
    add_legend(axis)


def _parameters(cells: Mapping[str, Cell]) -> bytes:
    """Mean over the seeds of both outputs' weights, users 0 and 2, AGE_STRICT."""
    chosen = _of(cells, "corrected", "AGE_STRICT")
    with picture(4, 2) as (figure, content):
        grid = figure.subplots(2, 2, sharex=True, sharey=True)
        width = 0.8 / len(SCHEMES)
        for row, user in zip(grid, ("0", "2"), strict=True):
            for output, axis in enumerate(row):
                for number, scheme in enumerate(SCHEMES if chosen else ()):
                    means = _mean(c.figures["users"][user][scheme]["parameters"] for c in chosen)
                    places = [i + (number - 1) * width for i in range(len(FEATURES))]
                    heights = means[output : 2 * len(FEATURES) : 2]
                    axis.bar(places, heights, width, label=NAMES[scheme])
                axis.set_xticks(range(len(FEATURES)), FEATURES, rotation=30, ha="right")
                axis.set_title(f"user {user}, output {'died' if output == 0 else 'survived'}")
                axis.axhline(0, color="#666666", linewidth=0.6)
        add_legend(grid[0][0])
    return content.getvalue()


EXPERIMENT = experiment(
    "titanic",
    plans,
    run,
    draw,
    rule_of,
    data_sets=lambda _config: ("titanic",),
)
