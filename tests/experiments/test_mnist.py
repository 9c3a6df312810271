"""The MNIST tables: the authors' partition and test images, and pages of incomplete grids."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from erosion.sources.mnist import PATTERNS, partition
from experiments.cells import CellPlan
from experiments.papers import mnist
from experiments.papers.image_sites import HeldImages
from experiments.papers.mnist import PUBLISHED
from experiments.tables import wilson

DATA = Path(os.environ["EROSION_DATA"]) if "EROSION_DATA" in os.environ else None
needs_mnist = pytest.mark.skipif(
    DATA is None or not (DATA / "mnist").is_dir(), reason="needs EROSION_DATA with the folder mnist"
)


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


def test_the_constants_are_the_authors() -> None:
    plan = next(plan for plan in mnist.plans() if plan.name == "C-50-weight_erosion")
    study = mnist.study_of(plan.config)
    arm = study.arms["weight_erosion"].model_dump()
    assert (arm["distance_penalty"], arm["size_penalty"]) == (0.002, 2.0)  # 0.1 / N
    assert (arm["size_unit"], arm["batch_size"]) == ("batches", 32)
    assert (study.rounds, study.training.epochs, study.training.learning_rate) == (30, 1, 0.1)


def test_further_cells_differ_from_the_paper_s_in_one_thing() -> None:
    by_name = {plan.name: plan.config for plan in mnist.plans()}
    assert len(by_name) == 84 + 28 + 7 + 3 * 5 + 13
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


@needs_mnist
def test_unequal_agents_have_the_first_of_their_images() -> None:
    plan = next(plan for plan in mnist.plans() if plan.name == "C-10-local-unequal")
    study = mnist.study_of(plan.config)
    all_of_them = mnist.agents_of(study, "C", "reference", DATA)
    few = mnist.agents_of(study, "C", "reference", DATA, shares=plan.config["shares"])
    agents = list(zip(study.hospitals, plan.config["shares"], strict=True))
    for name, share in agents[::4]:  # describing thousands of images takes long
        whole = all_of_them[name].describe(study).num_samples  # a round number
        assert few[name].describe(study).num_samples == pytest.approx(share * whole, abs=11)


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every agent has the first forty of its images; the user's test images are all there."""

    def first_forty(*given: Any) -> list[NDArray[np.int64]]:
        return [rows[:40] for rows in partition(*given)]

    monkeypatch.setattr(mnist, "partition", first_forty)


@pytest.fixture
def few_images_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of all but the user."""

    def first_forty(*given: Any) -> list[NDArray[np.int64]]:
        own, *others = partition(*given)
        return [own, *(rows[:40] for rows in others)]

    monkeypatch.setattr(mnist, "partition", first_forty)


@needs_mnist
@pytest.mark.usefixtures("few_images_of_others")
def test_a_cell_is_run_in_the_simulator() -> None:
    config = {
        **next(plan for plan in mnist.plans() if plan.name == "C-100-local").config,
        "rounds": 2,
    }
    figures = mnist.run(config, DATA)
    assert figures["test_images"] == 1038
    assert len(figures["accuracy"]) == 2
    assert 0.3 < figures["accuracy"][1] <= 1.0


@needs_mnist
@pytest.mark.usefixtures("few_images")
def test_weights_of_a_cell_are_the_mean_of_all_agents() -> None:
    plan: CellPlan = next(plan for plan in mnist.plans() if plan.name == "C-10-weight_erosion")
    arm = {**plan.config["arm"], "distance_penalty": 1000.0}  # everybody else is out at once
    figures = mnist.run({**plan.config, "arm": arm, "rounds": 2}, DATA)
    assert figures["mean_weight"] == [0.1, 0.1]
