"""The GEMS experiment: its training against autograd, its nodes, one small cell, its page."""

import json
import os
import re
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from erosion_common.algorithms.gems.retraining import perceptron
from erosion_common.learning.models import flat_parameters
from experiments.cells import Cell, CellPlan, read_cells
from experiments.experiment import RESULTS
from experiments.papers import gems
from experiments.papers.gems import MAJORITY, plans
from experiments.papers.gems_models import (
    Model,
    Pool,
    Samples,
    _balanced,
    _by_lesion,
    accuracy,
    averaged,
    ensemble_accuracy,
    fit,
    fit_for,
    mnist_pool,
)
from experiments.papers.gems_page import draw, lower
from tests.support.close import assert_close

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ["EROSION_DATA"]) if "EROSION_DATA" in os.environ else None


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(count: int, width: int = 12) -> Samples:
    """Ten classes, each around a corner of its own."""
    labels = torch.arange(count) % 10
    corners = 2 * torch.randn(10, width, generator=generator(0))
    return Samples(corners[labels] + torch.randn(count, width, generator=generator(count)), labels)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
def test_the_written_out_gradient_is_autograds(hidden: tuple[int, ...]) -> None:
    few = samples(32)
    widths = (12, *hidden, 10)
    network = perceptron(widths, generator())
    mine: Model = fit_for(None, widths, few, generator(), learning_rate=0.01, epochs=5)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(5):  # one batch is all samples, in whatever order
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(network(few.inputs), few.labels))
        optimizer.step()
    flat = torch.cat([layer.flat for layer in mine])
    assert_close(flat, flat_parameters(network), atol=1e-5, rtol=1e-4)


def test_local_models_learn_their_own_labels_only() -> None:
    pool = Pool(samples(600), samples(200), samples(300), classes=10)
    for (train, validation), labels in zip(pool.nodes(2), (range(5), range(5, 10)), strict=True):
        assert set(train.labels.tolist()) == set(labels)
        model = fit((12, 8, 10), train, generator())
        assert accuracy(model, validation) > 0.8
        assert accuracy(model, pool.test) < 0.6


def test_the_mean_of_a_model_and_its_opposite_is_nothing() -> None:
    model = fit_for(None, (12, 10), samples(50), generator(), learning_rate=0.1, epochs=1)
    opposite = tuple(type(layer)(-layer.weight, -layer.bias) for layer in model)
    (layer,) = averaged([model, opposite])
    assert float(layer.flat.abs().max()) == 0


def test_an_undecided_model_has_no_rounded_vote() -> None:
    sure, unsure = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 3.0, 3.0]])
    votes = ensemble_accuracy([sure, unsure, unsure, unsure], torch.tensor([0]))
    assert votes == {"probabilities": 0.0, "rounded": 1.0}


def test_a_lesions_pictures_stay_together_and_parts_are_balanced() -> None:
    lesions = torch.arange(100) // 3
    parts = _by_lesion(lesions, (0.6, 0.2, 0.2), generator())
    assert sorted(torch.cat(parts).tolist()) == list(range(100))
    of_parts = [set(lesions[rows].tolist()) for rows in parts]
    assert not of_parts[0] & of_parts[1]
    assert not of_parts[1] & of_parts[2]
    pictures = torch.arange(30 * 3 * 4 * 4, dtype=torch.uint8).reshape(30, 3, 4, 4)
    labels = torch.tensor([0] * 27 + [1] * 3)
    images, balanced = _balanced(pictures, labels, 20, generator())
    assert torch.bincount(balanced).tolist() == [20, 20]
    assert len(torch.unique(images[balanced == 1].flatten(1), dim=0)) == 20, "turned, not repeated"


def small_pool(_data_dir: Path | None, _trial: int) -> Pool:
    return Pool(samples(600), samples(1000), samples(300), classes=10)


def run_small(name: str) -> tuple[CellPlan, Any]:
    """A cell with few samples: its plan and its figures."""
    (plan,) = (plan for plan in plans() if plan.name == name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gems, "POOLS", {"mnist": small_pool})
        patch.setattr(gems, "PUBLIC", (100,))
        figures = gems.run_cell(plan.config, None)
    return plan, figures


def test_the_commonest_digit_of_the_training_part_by_hand() -> None:
    train, test = torch.tensor([3, 3, 3, 8]), torch.tensor([8, 3, 8, 8])
    pixels = torch.zeros(4, 784)
    pool = Pool(Samples(pixels, train), Samples(pixels, train), Samples(pixels, test), classes=10)
    (plan,) = (plan for plan in plans() if plan.name == MAJORITY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gems, "POOLS", {"mnist": lambda _folder, _trial: pool})
        assert gems.run_cell(plan.config, None) == {"majority": 0.25}


run_once = cache(run_small)  # for tests that only read the figures


@pytest.mark.parametrize("name", ["mnist-convex-k2-trial0", "mnist-network-k5-trial0"])
def test_a_cell_measures_all_its_variants(name: str) -> None:
    plan, figures = run_once(name)
    json.dumps(figures)
    ((nodes, found),) = figures.items()
    assert set(plan.config["variants"][nodes]) <= set(found["gems"])
    for variant in found["gems"].values():
        assert 0 <= variant["accuracy"] <= 1
        assert len(variant["own_checks"]) == int(nodes)
    assert found["local"]["mean"] == pytest.approx(1 / int(nodes), abs=0.1)
    if int(nodes) == 2:
        assert run_small(name)[1] == figures


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("mnist-convex-spaces-trial0", {"balls", "masked", "ellipsoids"}),
        (
            "mnist-network-changes-trial0",
            {"masked", "no cluster lost", "lower bound", "from zeros"},
        ),
    ],
)
def test_a_comparison_has_the_local_models_of_the_other_cells(
    name: str, variants: set[str]
) -> None:
    _, figures = run_small(name)
    ((what, by_nodes),) = figures.items()
    assert f"-{what}-" in name
    found = by_nodes["5"]
    assert set(found) == variants | {"averaged", "tuned_local"}
    model = name.split("-")[1]
    other = run_once(f"mnist-{model}-k5-trial0")[1]["5"]
    assert found["averaged"] == other["averaged"]
    if model == "convex":
        assert found["balls"] == other["gems"]["authors"]


@pytest.mark.data
@pytest.mark.skipif(DATA is None, reason="EROSION_DATA is not set")
def test_mnist_is_cut_into_three_parts_that_share_no_image() -> None:
    pool = mnist_pool(DATA, 0)
    assert [len(part) for part in (pool.train, pool.validation, pool.test)] == [50_000, 5000, 5000]
    assert float(pool.train.inputs.max()) == 1
    assert sum(len(train) for train, _ in pool.nodes(3)) == 50_000


def test_a_mean_below_the_papers_is_told_with_the_range_of_the_trials() -> None:
    def cell(trial: int, averaged: float) -> Cell:
        (plan,) = (p for p in plans() if p.name == f"mnist-convex-k5-trial{trial}")
        gems = {"authors": {"accuracy": 0.45, "tuned": {"1000": 0.87}}}
        figures = {"local": {"mean": 0.198}, "averaged": averaged, "gems": gems}
        return Cell(plan, {"5": figures}, "commit", "command", 1.0)

    found = {str(trial): cell(trial, averaged) for trial, averaged in ((0, 0.3), (1, 0.5))}
    found = {each.plan.name: each for each in found.values()}
    setting = "MNIST, logistic regression, 5 nodes, averaged"
    assert lower(found) == [[setting, ".400", ".458", ".300 to .500"]]  # .45 for .458 is near


def kept() -> dict[str, Any]:
    return dict(read_cells(ROOT / RESULTS / "gems", plans()))


def test_what_the_page_says_of_its_tables_follows_the_cells() -> None:
    assert "## A sampled ball is no guarantee" in draw(kept()).text
    turned = {name: replace(cell, figures=deepcopy(cell.figures)) for name, cell in kept().items()}
    for name, cell in turned.items():
        if name.startswith("mnist-convex") and "5" in cell.figures:
            cell.figures["5"]["gems"]["ours"]["own_checks"] = [0.7, 0.8, 0.9, 0.9, 0.9]
        for of in (cell.figures[nodes] for nodes in "235" if nodes in cell.figures):
            of["gems"]["ours"]["tuned"] = of["tuned_averaged"]
    text = draw(turned).text
    assert re.findall(r"average in (\d+)", text)[-1] == "0"  # fewer epochs are no gain
    assert "no guarantee" not in text
    assert "where 0 of 25 own checks refuse it" in text
