"""The MNIST tables: the authors' partition and test images, and pages of incomplete grids."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from erosion.sources.mnist import PATTERNS, partition
from experiments.cells import Cell, CellPlan
from experiments.papers import mnist
from experiments.papers.image_sites import HeldImages
from experiments.papers.mnist import PUBLISHED, draw
from experiments.tables import wilson

DATA = Path(os.environ["EROSION_DATA"]) if "EROSION_DATA" in os.environ else None
needs_mnist = pytest.mark.skipif(
    DATA is None or not (DATA / "mnist").is_dir(), reason="needs EROSION_DATA with the folder mnist"
)


def cell(name: str, accuracy: list[float], **figures: Any) -> Cell:
    plan = next(plan for plan in mnist.plans() if plan.name == name)
    return Cell(plan, {"accuracy": accuracy, "test_images": 1038, **figures}, "c" * 40, "cmd", 1.0)


def test_the_grid_begins_with_the_paper_s_84_cells() -> None:
    plans = mnist.published_plans()
    assert mnist.plans()[:84] == plans
    assert len({json.dumps(plan.config, sort_keys=True) for plan in plans}) == 84
    published = [len(row) for schemes in PUBLISHED.values() for row in schemes.values()]
    assert sum(published) == 84


def test_the_interval_is_wilson_s() -> None:
    low, high = wilson(0.5, 10)  # by hand: (0.5 + z^2/20 -+ z sqrt(0.025 + z^2/400)) / (1 + z^2/10)
    assert low == pytest.approx(0.23659, abs=1e-4)
    assert high == pytest.approx(0.76341, abs=1e-4)
    assert wilson(1.0, 1000)[1] == pytest.approx(1.0)


def test_a_page_of_some_cells_leaves_the_others_open() -> None:
    cells = {
        "C-10-local": cell("C-10-local", [0.5, 0.9932, 0.99]),
        "C-10-weight_erosion": cell("C-10-weight_erosion", [0.7, 0.998], mean_weight=[0.9, 0.8]),
    }
    page = draw(cells)
    assert "right in a share of 0.11 (A), 0.58 (B), 0.27 (C), 0.41 (D)" in page.text
    assert "Every image at one agent" not in page.text
    assert "| C | Local | 0.9923 | 0.9932 | 0.986 to 0.997 | 0.9900 |" in page.text
    assert "| C | FedAvg | 0.9894 | \u2013 | \u2013 | \u2013 |" in page.text
    assert "## 20 agents" not in page.text
    assert "Weight Erosion and Local stand in the published order in 1 of 1 settings." in page.text
    assert "Weight Erosion and FedAvg stand" not in page.text
    assert b"</svg>" in page.pictures["rounds.svg"]


def test_the_constants_are_the_authors() -> None:
    plan = next(plan for plan in mnist.plans() if plan.name == "C-50-weight_erosion")
    study = mnist.study_of(plan.config)
    arm = study.arms["weight_erosion"].model_dump()
    assert (arm["distance_penalty"], arm["size_penalty"]) == (0.002, 2.0)  # 0.1 / N
    assert (arm["size_unit"], arm["batch_size"]) == ("batches", 32)
    assert (study.rounds, study.training.epochs, study.training.learning_rate) == (30, 1, 0.1)


def test_further_cells_differ_from_the_paper_s_in_one_thing() -> None:
    by_name = {plan.name: plan.config for plan in mnist.plans()}
    assert len(by_name) == 84 + 28 + 7 + 3 * 5
    published, unit = by_name["D-50-weight_erosion"], by_name["D-50-weight_erosion-default-unit"]
    assert published["arm"] == {**unit["arm"], "size_unit": "batches", "batch_size": 32}
    assert {**published, "arm": None} == {**unit, "arm": None}
    assert mnist.study_of(unit).arms["weight_erosion"].model_dump()["size_unit"] == "seen"
    recommended = mnist.study_of(by_name["D-10-weight_erosion-recommended"])
    assert recommended.arms["weight_erosion"].model_dump()["distance_penalty"] == "auto"
    shared = by_name["G-20-fedavg"]
    assert by_name["G-20-fedavg-disjoint"] == {**shared, "partition": "disjoint"}


def test_both_partitions_are_run_where_the_authors_gives_images_to_several_agents() -> None:
    """On labels with the training images' own counts of each digit."""
    counts = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    labels = np.repeat(np.arange(10), counts)
    for pattern in PATTERNS:
        for agents in mnist.AGENTS:
            given = np.concatenate(partition(labels, pattern, agents, "reference"))
            is_shared = len(np.unique(given)) < len(given)
            assert is_shared == (agents in mnist.SHARED.get(pattern, ()))


def test_further_cells_stand_in_tables_of_their_own() -> None:
    cells = {
        name: cell(name, accuracy)
        for name, accuracy in {
            "G-20-local": [0.98, 0.97],
            "G-20-weight_erosion": [0.96, 0.95],
            "A-10-local": [0.98, 0.97],
            "A-10-weight_erosion": [0.96, 0.95],
            "A-10-weight_erosion-recommended": [0.9932, 0.99],
            "G-20-local-disjoint": [0.95, 0.94],
        }.items()
    }
    text = draw(cells).text
    ours = "0.9932 (0.986 to 0.997), 0.9900"
    assert f"| 10 | A | 0.9600 (0.946 to 0.970), 0.9500 | \u2013 | {ours} |" in text
    assert "- as published: in the last round above local in 0 of 2 settings\n" in text
    assert "- recommended: in the last round above local in 1 of 1 settings\n" in text
    assert "- default unit" not in text
    assert "| 20 | G | local | 0.9800 (0.969 to 0.987), 0.9700 | 0.9500 (" in text


@needs_mnist
@pytest.mark.parametrize(("pattern", "images"), [("A", 996), ("C", 1038), ("F", 968)])
def test_the_user_s_test_images_are_the_authors(pattern: Any, images: int) -> None:
    config = {**mnist.plans()[0].config, "agents": 100, "pattern": pattern}
    study = mnist.study_of(config)
    agents = mnist.agents_of(study, pattern, "reference", DATA)
    source = agents["agent-0"].site.data
    assert isinstance(source, HeldImages)
    held = source.read(study.task)  # type: ignore[arg-type]
    assert held.is_test is not None
    assert held.is_test.sum() == images
    assert agents["agent-0"].describe(study).num_samples > 500


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every agent has the first forty of its images; the user's test images are all there."""

    def first_forty(*given: Any) -> list[NDArray[np.int64]]:
        return [rows[:40] for rows in partition(*given)]

    monkeypatch.setattr(mnist, "partition", first_forty)


@needs_mnist
def test_a_cell_is_run_in_the_simulator() -> None:
    config = {
        **next(plan for plan in mnist.plans() if plan.name == "C-100-local").config,
        "rounds": 2,
    }
    ticks: list[int] = []
    figures = mnist.run(config, DATA, lambda: ticks.append(1))
    assert len(ticks) == 2
    assert figures["test_images"] == 1038
    assert len(figures["accuracy"]) == 2
    assert 0.3 < figures["accuracy"][1] <= 1.0


@needs_mnist
@pytest.mark.usefixtures("few_images")
def test_weights_of_a_cell_are_the_mean_of_all_agents() -> None:
    plan: CellPlan = next(plan for plan in mnist.plans() if plan.name == "C-10-weight_erosion")
    arm = {**plan.config["arm"], "distance_penalty": 1000.0}  # everybody else is out at once
    figures = mnist.run({**plan.config, "arm": arm, "rounds": 2}, DATA, lambda: None)
    assert figures["mean_weight"] == [0.1, 0.1]
