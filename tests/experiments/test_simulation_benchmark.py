"""The simulation benchmark measures what it says; how fast anything is, no test asks."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks import simulation_programs as programs
from experiments.benchmarks.simulation import compare
from experiments.papers.mnist import agents_of, study_of

DATA = Path(os.environ["EROSION_DATA"]) if "EROSION_DATA" in os.environ else None
needs_mnist = pytest.mark.skipif(
    DATA is None or not (DATA / "mnist").is_dir(), reason="needs EROSION_DATA with the folder mnist"
)


def test_rates_are_of_the_median_round() -> None:
    found: dict[str, dict[str, Any]] = {
        "ours": {"seconds_per_round": [9.0, 6.0, 5.0]},
        "flower": {"seconds_per_round": [60.0, 20.0, 12.0]},
        "limit": {"samples_per_second": 15_000.0},
    }
    lines = {line.name: line for line in compare(found)}
    assert lines["simulation.mnist.vs_flower"].ours == 10_000.0
    assert lines["simulation.mnist.vs_flower"].peer == 3_000.0
    assert lines["simulation.mnist.vs_limit"].ratio == pytest.approx(2 / 3)


def test_the_limit_counts_the_network_s_own_products() -> None:
    model, calls = programs.network(), []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(lambda layer, _given, made: calls.append((layer, made)))
    model(torch.zeros(programs.BATCH_SIZE, *programs.SHAPE))
    found = [
        (len(layer.weight), layer.weight[0].numel(), made[:, 0].numel()) for layer, made in calls
    ]
    assert found == programs._layers()


@needs_mnist
def test_every_system_has_the_same_images() -> None:
    inputs, labels = programs.agent_data(7)
    study = study_of(
        {"agents": programs.AGENTS, "rounds": 1, "seed": 0, "scheme": "fedavg", "arm": {}}
    )
    hospitals = agents_of(study, "A", "disjoint", DATA)
    prepared = hospitals["agent-7"]._prepare(study)
    part, _ = prepared.parts(None)
    assert torch.equal(part.inputs, inputs)
    assert torch.equal(part.targets, labels)
