"""Weight Erosion on MNIST (Gengler, Beaussart and Yuan 2020, tables I and II, figure 2).

A cell is one of seven distributions of the digits, a number of agents and a scheme: 7 x 4 x 3 = 84
cells. Partition, test images, network and constants are the authors'; every agent is a hospital of
this program, and the simulator runs the rounds. Further cells change one thing: how Weight Erosion
counts a hospital's size, its whole setting, or the partition where the authors' gives images twice;
or agents have fewer images, where a search for the distance penalty is cheap.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed_sites import site_of
from erosion.sources.mnist import (
    PATTERNS,
    PartitionName,
    PatternName,
    partition,
    read_mnist,
    user_test_images,
)
from erosion.sources.source import data_folder
from erosion_client.dataset.sources.data_source import LabelledImages
from erosion_client.training.hospital import Hospital
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Values
from experiments.experiment import experiment
from experiments.page import Page, add_legend, bullets, constants, page, picture, table
from experiments.papers.image_sites import HeldImages, without_notes
from experiments.papers.rules import RECOMMENDED_ARM
from experiments.splits import after_each_round
from experiments.tables import wilson

Scheme = Literal["weight_erosion", "fedavg", "local"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
AGENTS = (10, 20, 50, 100)
Variant = Literal["published", "disjoint", "default-unit", "recommended"]
# Other settings of Weight Erosion, and with how many agents. The recommended one erodes slowly, so
# that a cell of it takes as long as FedAvg's.
SETTINGS: Mapping[Variant, Sequence[int]] = {"default-unit": AGENTS, "recommended": (10,)}
# Where an agent's demand is no whole number of chunks, the authors' partition gives images to two.
SHARED: Mapping[PatternName, Sequence[int]] = {"C": (20, 100), "G": (20, 50, 100)}
# Fewer images: of each agent this share. And what the published distance penalty is divided by; the
# paper found best what ends the weights near round 20 of 30, and that is PACED here.
SHARES = {
    "small": [0.1] * 10,
    "unequal": [round(0.02 * number, 2) for number in range(1, 11)],  # the user has the fewest
}
DIVISORS, PACED = (1, 2, 4, 8, 16, 32), 8
LAYERS: Mapping[str, Mapping[str, float]] = {  # what counts in the distance
    "convolutions": {"7": 0.0, "9": 0.0},
    "dense": {"0": 0.0, "2": 0.0, "4": 0.0},
}
ROUNDS, BATCH_SIZE, LEARNING_RATE = 30, 32, 0.1
TEST_COUNTS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)  # MNIST's, of 0 to 9
USER = "agent-0"


def plans() -> list[CellPlan]:
    """Return the paper's cells, and then the others."""
    return [*published_plans(), *further_plans(), *fewer_plans()]


def commonest_share(pattern: PatternName) -> float:
    """Return the share of the commonest digit among agent 0's test images."""
    labels = np.repeat(np.arange(10), TEST_COUNTS)
    counts = np.bincount(labels[user_test_images(labels, pattern)])
    return float(counts.max() / counts.sum())


def published_plans() -> list[CellPlan]:
    """Return all 84, few agents first: there the paper's figures differ most."""
    return [
        _plan(pattern, agents, scheme)
        for agents in AGENTS
        for pattern in PATTERNS
        for scheme in reversed(SCHEMES)  # the cheapest first
    ]


def further_plans() -> list[CellPlan]:
    """Return what differs in one thing from the paper's cells, few agents first."""
    found = []
    for agents in AGENTS:
        found += [
            _plan(pattern, agents, scheme, "disjoint")
            for pattern in PATTERNS
            if agents in SHARED.get(pattern, ())
            for scheme in reversed(SCHEMES)
        ]
        found += [
            _plan(pattern, agents, "weight_erosion", variant)
            for variant, numbers in SETTINGS.items()
            if agents in numbers
            for pattern in PATTERNS
        ]
    return found


def fewer_plans() -> list[CellPlan]:
    """Return the cells with fewer images: distribution C, 10 agents."""
    found = []
    for shares in SHARES:
        changes: dict[str, Mapping[str, Any]] = {
            f"p{divisor}": {"distance_penalty": 0.01 / divisor}
            for divisor in (DIVISORS if shares == "small" else (PACED,))
        }
        if shares == "small":
            paced = changes[f"p{PACED}"]
            changes |= {name: {**paced, "layer_weights": of} for name, of in LAYERS.items()}
        plain: Sequence[Scheme] = ("local", "fedavg")
        every: list[tuple[Scheme, str, Mapping[str, Any]]] = [
            *((scheme, shares, {}) for scheme in plain),
            *((_WE, f"{shares}-{name}", change) for name, change in changes.items()),
        ]
        for scheme, name, change in every:
            like = _plan("C", 10, scheme)
            arm = {**like.config["arm"], **change}
            config = {**like.config, "arm": arm, "shares": SHARES[shares]}
            found.append(CellPlan(f"C-10-{scheme}-{name}", config))
    return found


def cell_name(
    pattern: PatternName, agents: int, scheme: Scheme, variant: Variant = "published"
) -> str:
    """Return the name of that cell."""
    name = f"{pattern}-{agents}-{scheme}"
    return name if variant == "published" else f"{name}-{variant}"


def _plan(
    pattern: PatternName, agents: int, scheme: Scheme, variant: Variant = "published"
) -> CellPlan:
    config = {
        "pattern": pattern,
        "agents": agents,
        "scheme": scheme,
        "arm": _arm(scheme, agents, variant),
        "partition": "disjoint" if variant == "disjoint" else "reference",
        "rounds": ROUNDS,
        "seed": 0,
    }
    return CellPlan(cell_name(pattern, agents, scheme, variant), config)


def _arm(scheme: Scheme, agents: int, variant: Variant) -> Mapping[str, Any]:
    """Return the authors' constants; `batches` is how their code counts a hospital's samples."""
    if scheme == "fedavg":
        return {"weighting": "uniform"}
    if scheme == "local":
        return {}
    if variant == "recommended":
        return RECOMMENDED_ARM
    unit = {} if variant == "default-unit" else {"size_unit": "batches", "batch_size": BATCH_SIZE}
    return {
        "distance_penalty": 0.1 / agents,
        "size_penalty": 2.0,
        **unit,
        "per_step": False,
        "weighting": "equal",
    }


def run(config: Values, data_dir: Path | None, device: str = "cpu") -> Values:
    """Accuracy on the user's test images, and the mean weight of all agents, after every round."""
    study, scheme = study_of(config), config["scheme"]
    shares = config.get("shares")
    hospitals = agents_of(
        study, config["pattern"], config["partition"], data_dir, device, shares=shares
    )
    with without_notes():
        found = simulate(study, hospitals, clock=timeless)
    rounds = after_each_round(found, scheme)
    figures: dict[str, Any] = {
        "accuracy": [round(metrics["accuracy"], 5) for metrics in rounds],
        "test_images": rounds[-1].num_patients,
    }
    if scheme == "weight_erosion":
        records = found.records[scheme]
        figures["mean_weight"] = [round(_mean_weight(record), 5) for record in records]
    return figures


def study_of(config: Values) -> Study:
    """Return the cell as a study of this program."""
    return Study.model_validate(
        {
            "name": "mnist-table-2",
            "user": USER,
            "hospitals": [f"agent-{number}" for number in range(config["agents"])],
            "rounds": config["rounds"],
            "seed": config["seed"],
            "task": {
                "kind": "image",
                "classes": list(range(10)),
                "shape": [1, 28, 28],
                "mean": [0.1307],
                "deviation": [0.3081],
            },
            "model": {"name": "mnist_cnn"},
            "training": {"epochs": 1, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE},
            "arms": {config["scheme"]: config["arm"]},
            "evaluation": {"bootstrap": 100},
        }
    )


def agents_of(
    study: Study,
    pattern: PatternName,
    how: PartitionName,
    data_dir: Path | None,
    device: str = "cpu",
    shares: Sequence[float] | None = None,
) -> dict[str, Hospital]:
    """Return every agent with its images; the user also has its test images, marked as such.

    `shares`: what share of its images, the first of the file, each agent has.
    """
    source = data_folder(data_dir, "mnist")
    images, labels = read_mnist(source, "train")
    test_images, test_labels = read_mnist(source, "t10k")
    tested = user_test_images(test_labels, pattern)
    parts = partition(labels, pattern, len(study.hospitals), how)
    if shares is not None:
        parts = [rows[: int(len(rows) * s)] for rows, s in zip(parts, shares, strict=True)]
    hospitals = {}
    for name, rows in zip(study.hospitals, parts, strict=True):
        pictures, digits = images[rows], labels[rows]
        is_test = np.zeros(len(rows), dtype=np.bool_)
        if name == study.user:
            pictures = np.concatenate([pictures, test_images[tested]])
            digits = np.concatenate([digits, test_labels[tested]])
            is_test = np.concatenate([is_test, np.ones(len(tested), dtype=np.bool_)])
        places = tuple(f"number {index}" for index in range(len(digits)))
        held = LabelledImages(pictures[:, None], digits, places, is_test=is_test)
        site = site_of(name, {"path": source}, device=device)
        hospitals[name] = Hospital(site.model_copy(update={"data": HeldImages.of(held)}))
    return hospitals


def _mean_weight(record: RoundRecord) -> float:
    """Over all agents, the user's 1 included, as in the paper's figure 2."""
    weights: Sequence[float] = [
        entry.weight_after for entry in record.hospitals.values() if entry.weight_after is not None
    ]
    return sum(weights) / len(weights)


NAMES: Mapping[Scheme, str] = {
    "weight_erosion": "Weight Erosion",
    "fedavg": "FedAvg",
    "local": "Local",
}
WORDS: Mapping[Variant, str] = {
    "published": "as published",
    "default-unit": "default unit",
    "recommended": "recommended",
}
_WE, _FEDAVG, _LOCAL = SCHEMES
_PUBLISHED = constants("published")["mnist"]
# Figure 2, C with 10 agents: mean weight of all agents, the user's included, by round.
PUBLISHED_WEIGHTS: Mapping[str, float] = _PUBLISHED.pop("weights")
PUBLISHED: Mapping[PatternName, Mapping[Scheme, Sequence[float]]] = _PUBLISHED


def best_of(cell: Cell) -> float:
    """Of all rounds, as the paper has it: nobody could have chosen that round beforehand."""
    return float(max(cell.figures["accuracy"]))


def last_of(cell: Cell) -> float:
    """Of the last round."""
    return float(cell.figures["accuracy"][-1])


def interval(cell: Cell) -> tuple[float, float]:
    """Return the 95 % interval of the best accuracy."""
    return wilson(best_of(cell), cell.figures["test_images"])


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw a table for each number of agents, figure 2, and tables of the further cells."""
    return page(
        "mnist",
        {"rounds.svg": _rounds(cells)},
        majority=", ".join(f"{commonest_share(name):.2f} ({name})" for name in PATTERNS),
        tables={agents: _table(cells, agents, place) for place, agents in enumerate(AGENTS)},
        agreement=bullets(_agreement(cells)),
        settings=_settings(cells),
        ahead=bullets(line for variant in WORDS if (line := _ahead(cells, variant))),
        partitions=_partitions(cells),
        fewer=_fewer(cells),
    )


def _table(cells: Mapping[str, Cell], agents: int, place: int) -> str:
    rows = []
    for pattern in PATTERNS:
        for scheme in SCHEMES:
            entries = ["–", "–", "–"]
            if cell := cells.get(cell_name(pattern, agents, scheme)):
                between = "{:.3f} to {:.3f}".format(*interval(cell))
                entries = [f"{best_of(cell):.4f}", between, f"{last_of(cell):.4f}"]
            published = f"{PUBLISHED[pattern][scheme][place]:.4f}"
            rows.append([pattern, NAMES[scheme], published, *entries])
    head = ["distribution", "scheme", "published best", "our best", "interval", "our last"]
    return table(head, rows if any(row[-1] != "–" for row in rows) else ())


def _agreement(cells: Mapping[str, Cell]) -> Iterator[str]:
    """Yield how often two schemes are in the published order, and how often ours is outside."""
    for one, other in ((_WE, _LOCAL), (_WE, _FEDAVG), (_FEDAVG, _LOCAL)):
        same = [
            (best_of(ours) - best_of(theirs)) * (published[one][place] - published[other][place])
            > 0
            for place, agents in enumerate(AGENTS)
            for pattern, published in PUBLISHED.items()
            for ours, theirs in _pairs(cells, pattern, agents, one, other)
        ]
        if same:
            yield (
                f"{NAMES[one]} and {NAMES[other]} stand in the published order in {sum(same)} of"
                f" {len(same)} settings."
            )
    inside = [
        low <= PUBLISHED[config["pattern"]][config["scheme"]][place] <= high
        for plan in published_plans()
        if plan.name in cells
        for config in [plan.config]
        for place in [AGENTS.index(config["agents"])]
        for low, high in [interval(cells[plan.name])]
    ]
    yield (
        f"The published best accuracy lies in the interval of ours in {sum(inside)} of"
        f" {len(inside)} cells."
    )


def _pairs(
    cells: Mapping[str, Cell],
    pattern: PatternName,
    agents: int,
    one: Scheme,
    other: Scheme,
    variant: Variant = "published",
) -> list[tuple[Cell, Cell]]:
    """Return both schemes' cells of one setting, if both were run."""
    ours, theirs = cell_name(pattern, agents, one, variant), cell_name(pattern, agents, other)
    return [(cells[ours], cells[theirs])] if ours in cells and theirs in cells else []


def _settings(cells: Mapping[str, Cell]) -> str:
    """Return Weight Erosion as published and two other settings of it."""
    rows = []
    for agents in AGENTS:
        for pattern in PATTERNS:
            names = [cell_name(pattern, agents, "weight_erosion", variant) for variant in WORDS]
            if any(name in cells for name in names[1:]):
                rows.append([str(agents), pattern, *(_entry(cells, name) for name in names)])
    return table(["agents", "distribution", *WORDS.values()], rows)


def _ahead(cells: Mapping[str, Cell], variant: Variant) -> str:
    """In how many settings it ends above the others; nothing where they were not run."""
    found = []
    others: Sequence[Scheme] = ("fedavg", "local")
    for other in others:
        above = [
            last_of(ours) > last_of(theirs)
            for agents in AGENTS
            for pattern in PATTERNS
            for ours, theirs in _pairs(cells, pattern, agents, _WE, other, variant)
        ]
        if above:
            found.append(f"above {other} in {sum(above)} of {len(above)} settings")
    return f"{WORDS[variant]}: in the last round {', '.join(found)}" if found else ""


def _partitions(cells: Mapping[str, Cell]) -> str:
    """Return the authors' partition and one that gives every image to one agent."""
    rows = []
    for agents in AGENTS:
        for pattern in (p for p, shared in SHARED.items() if agents in shared):
            for scheme in SCHEMES:
                disjoint = cell_name(pattern, agents, scheme, "disjoint")
                if disjoint in cells:
                    names = (cell_name(pattern, agents, scheme), disjoint)
                    both = (_entry(cells, name) for name in names)
                    rows.append([str(agents), pattern, scheme, *both])
    return table(["agents", "distribution", "scheme", "authors' partition", "disjoint"], rows)


def _fewer(cells: Mapping[str, Cell]) -> str:
    """Return the cells with fewer images, and the round in which Weight Erosion is alone."""
    rows = []
    for plan in fewer_plans():
        if cell := cells.get(plan.name):
            means = cell.figures.get("mean_weight", [])
            ended = [at for at, weight in enumerate(means, start=1) if weight < 0.10001]
            end = str(ended[0]) if ended else "after the last" if means else ""
            name = plan.name.removeprefix("C-10-")
            low, high = interval(cell)
            best = f"{best_of(cell):.4f} ({low:.3f} to {high:.3f})"
            rows.append([name, best, f"{last_of(cell):.4f}", end])
    return table(["", "best", "last", "weights zero in round"], rows)


def _entry(cells: Mapping[str, Cell], name: str) -> str:
    if name not in cells:
        return "–"
    low, high = interval(cells[name])
    return f"{best_of(cells[name]):.4f} ({low:.3f} to {high:.3f}), {last_of(cells[name]):.4f}"


def _rounds(cells: Mapping[str, Cell]) -> bytes:
    """Figure 2: distribution C with 10 agents, or nothing where it was not run."""
    with picture(2) as (figure, content):
        accuracy, weight = figure.subplots(1, 2)
        for scheme in SCHEMES:
            if cell := cells.get(cell_name("C", 10, scheme)):
                values = cell.figures["accuracy"]
                accuracy.plot(range(1, len(values) + 1), values, label=NAMES[scheme])
        accuracy.set(title="C, 10 agents", xlabel="round", ylabel="accuracy", ylim=(0.95, 1.0))
        if cell := cells.get(cell_name("C", 10, _WE)):
            means = cell.figures["mean_weight"]
            weight.plot(range(1, len(means) + 1), means, label="ours")
        rounds = [int(number) for number in PUBLISHED_WEIGHTS]
        weight.plot(rounds, list(PUBLISHED_WEIGHTS.values()), "o", label="published")
        weight.set(title="C, 10 agents", xlabel="round", ylabel="mean weight of all agents")
        for axes in (accuracy, weight):
            add_legend(axes)
    return content.getvalue()


EXPERIMENT = experiment(
    "mnist",
    plans,
    run,
    draw,
    study_of,
    data_sets=lambda _config: ("mnist",),
)
