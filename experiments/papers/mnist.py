"""Weight Erosion on MNIST (Gengler, Beaussart and Yuan 2020, tables I and II, figure 2).

A cell is one of seven distributions of the digits, a number of agents and a scheme: 7 x 4 x 3 = 84
cells. Partition, test images, network and constants are the authors'; every agent is a hospital of
this program, and the simulator runs the rounds. Further cells change one thing: how Weight Erosion
counts a hospital's size, its whole setting, or the partition where the authors' gives images twice.
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
from experiments.cells import CellPlan, Tick, Values
from experiments.papers.image_sites import HeldImages, without_notes
from experiments.papers.rules import RECOMMENDED_ARM
from experiments.splits import after_each_round

Scheme = Literal["weight_erosion", "fedavg", "local"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
AGENTS = (10, 20, 50, 100)
Variant = Literal["published", "disjoint", "default-unit", "recommended"]
# Other settings of Weight Erosion, and with how many agents. The recommended one erodes slowly, so
# that a cell of it takes as long as FedAvg's.
SETTINGS: Mapping[Variant, Sequence[int]] = {"default-unit": AGENTS, "recommended": (10,)}
# Where an agent's demand is no whole number of chunks, the authors' partition gives images to two.
SHARED: Mapping[PatternName, Sequence[int]] = {"C": (20, 100), "G": (20, 50, 100)}
ROUNDS, BATCH_SIZE, LEARNING_RATE = 30, 32, 0.1
USER = "agent-0"


def plans() -> list[CellPlan]:
    """Return the paper's cells, and then the others."""
    return [*published_plans(), *further_plans()]


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
    return [plan for agents in AGENTS for plan in _further_plans(agents)]


def _further_plans(agents: int) -> Iterator[CellPlan]:
    for pattern in PATTERNS:
        if agents in SHARED.get(pattern, ()):
            for scheme in reversed(SCHEMES):
                yield _plan(pattern, agents, scheme, "disjoint")
    for variant, numbers in SETTINGS.items():
        if agents in numbers:
            for pattern in PATTERNS:
                yield _plan(pattern, agents, "weight_erosion", variant)


def cell_name(
    pattern: PatternName, agents: int, scheme: Scheme, variant: Variant = "published"
) -> str:
    """Of the cell's file."""
    name = f"{pattern}-{agents}-{scheme}"
    return name if variant == "published" else f"{name}-{variant}"


def _plan(
    pattern: PatternName, agents: int, scheme: Scheme, variant: Variant = "published"
) -> CellPlan:
    config = {
        "pattern": pattern,
        "agents": agents,
        "scheme": scheme,
        "arm": dict(_arm(scheme, agents, variant)),
        "partition": "disjoint" if variant == "disjoint" else "reference",
        "rounds": ROUNDS,
        "seed": 0,
    }
    return CellPlan(cell_name(pattern, agents, scheme, variant), config, ROUNDS)


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


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Accuracy on the user's test images, and the mean weight of all agents, after every round."""
    study, scheme = study_of(config), config["scheme"]
    hospitals = agents_of(study, config["pattern"], config["partition"], data_dir)
    with without_notes():
        found = simulate(study, hospitals, lambda _record: tick(), clock=timeless)
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
            "training": {
                "epochs": 1,
                "batch_size": BATCH_SIZE,
                "learning_rate": LEARNING_RATE,
            },
            "arms": {config["scheme"]: config["arm"]},
            "evaluation": {"bootstrap": 100},
        }
    )


def agents_of(
    study: Study, pattern: PatternName, how: PartitionName, data_dir: Path | None
) -> dict[str, Hospital]:
    """Return every agent with its images; the user also has its test images, marked as such."""
    source = data_folder(data_dir, "mnist")
    images, labels = read_mnist(source, "train")
    test_images, test_labels = read_mnist(source, "t10k")
    tested = user_test_images(test_labels, pattern)
    parts = partition(labels, pattern, len(study.hospitals), how)
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
        site = site_of(name, {"path": source})
        hospitals[name] = Hospital(site.model_copy(update={"data": HeldImages.of(held)}))
    return hospitals


def _mean_weight(record: RoundRecord) -> float:
    """Over all agents, the user's 1 included, as in the paper's figure 2."""
    weights: Sequence[float] = [
        entry.weight_after for entry in record.hospitals.values() if entry.weight_after is not None
    ]
    return sum(weights) / len(weights)
