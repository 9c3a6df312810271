"""What the simulation benchmark measures, each as a program that prints one line of JSON.

Every system trains the same network on the same images for the same rounds, from the same start:
each agent one epoch of SGD in batches of 32, then the plain average of all.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erosion.simulation.simulator import simulate
from erosion.sources.mnist import partition, read_mnist
from erosion_common.learning.models import (
    MnistCnn,
    build_model,
    first_parameters,
    flat_parameters,
    load_flat_parameters,
)
from experiments.papers.mnist import agents_of, study_of

AGENTS, BATCH_SIZE, LEARNING_RATE = 100, 32, 0.1
SHAPE, CLASSES = (1, 28, 28), 10
LIMIT_SECONDS = 10.0  # of matrix products


def data_folder() -> Path:
    """Return where MNIST is."""
    return Path(os.environ["EROSION_DATA"])


@cache
def agent_data(agent: int) -> tuple[Tensor, Tensor]:
    """Images (600, 1, 28, 28) float32 and labels (600,) of one agent, as hospitals have them."""
    images, labels, parts = _shared_out()
    rows = parts[agent]
    inputs = torch.from_numpy(images[rows][:, None]).float().div_(255).sub_(0.1307).div_(0.3081)
    return inputs, torch.from_numpy(labels[rows])


@cache
def _shared_out() -> tuple[Any, Any, Any]:
    images, labels = read_mnist(data_folder() / "mnist", "train")
    return images, labels, partition(labels, "A", AGENTS, "disjoint")


def network() -> nn.Module:
    """Return the paper's network, as it starts."""
    return build_model(MnistCnn(), SHAPE, CLASSES, seed=0)


def train_epoch(model: nn.Module, inputs: Tensor, targets: Tensor, seed: int) -> None:
    """One epoch as a tutorial has it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    model.train()
    for batch in torch.split(order, BATCH_SIZE):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
        torch.autograd.backward(loss)
        optimizer.step()


@torch.no_grad()
def accuracy_of(parameters: Tensor) -> float:
    """On MNIST's test images: the proof that the work was done."""
    model = network().eval()
    load_flat_parameters(model, parameters)
    images, labels = read_mnist(data_folder() / "mnist", "t10k")
    inputs = torch.from_numpy(images[:, None]).float().div_(255).sub_(0.1307).div_(0.3081)
    found = torch.cat([model(part).argmax(1) for part in torch.split(inputs, 500)])
    return float((found == torch.from_numpy(labels)).float().mean())


def ours(rounds: int, workers: int, device: str) -> dict[str, Any]:
    """`simulate`, in as many processes; on a GPU in one."""
    config = {
        "agents": AGENTS,
        "rounds": rounds,
        "seed": 0,
        "scheme": "fedavg",
        "arm": {"weighting": "uniform"},
    }
    study = study_of(config)
    hospitals = agents_of(study, "A", "disjoint", data_folder(), device)
    begun = time.perf_counter()
    found = simulate(study, hospitals, workers=workers if device == "cpu" else 1)
    return {
        "seconds_per_round": [record.seconds for record in found.records["fedavg"]],
        "seconds_in_all": time.perf_counter() - begun,
        "accuracy": accuracy_of(found.finals["fedavg"].params),
    }


def loop(rounds: int) -> dict[str, Any]:
    """Return one agent after the other in one process, with nothing around it."""
    model, seconds = network(), []
    parameters = first_parameters(MnistCnn(), SHAPE, CLASSES, 0)
    for agent in range(AGENTS):
        agent_data(agent)
    for number in range(rounds):
        begun = time.perf_counter()
        total = torch.zeros_like(parameters)
        for agent in range(AGENTS):
            load_flat_parameters(model, parameters)
            train_epoch(model, *agent_data(agent), seed=1000 * agent + number)
            total += flat_parameters(model)
        parameters = total / AGENTS
        seconds.append(time.perf_counter() - begun)
    return {"seconds_per_round": seconds, "accuracy": accuracy_of(parameters)}


def flower(rounds: int, workers: int) -> dict[str, Any]:
    """Flower's simulation engine (Ray), one processor for each client at work."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    run_simulation = import_module("flwr.simulation").run_simulation  # which brings Ray
    client_app, server_app = ClientApp(), ServerApp()
    ends: list[float] = []
    results: list[Any] = []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        agent = int(str(context.node_config["partition-id"]))
        model = network()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        number = int(str(message.content.config_records["config"]["server-round"]))
        train_epoch(model, *agent_data(agent), seed=1000 * agent + number)
        content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
        content["metrics"] = MetricRecord({"num-examples": len(agent_data(agent)[1])})
        return Message(content, reply_to=message)

    def end_round(_number: int, _arrays: ArrayRecord) -> MetricRecord | None:
        ends.append(time.perf_counter())
        return None

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=AGENTS, min_available_nodes=AGENTS)
        first = ArrayRecord(network().state_dict())
        results.append(strategy.start(grid, first, num_rounds=rounds, evaluate_fn=end_round))

    run_simulation(
        server_app,
        client_app,
        num_supernodes=AGENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers, "include_dashboard": False},
        },
    )
    model = network()
    model.load_state_dict(results[0].arrays.to_torch_state_dict())
    return {
        "seconds_per_round": np.diff(ends).tolist(),
        "accuracy": accuracy_of(flat_parameters(model)),
    }


def limit(workers: int) -> dict[str, Any]:
    """Only the matrix products of a training step, in all processes at once.

    Each layer's forward product and those of its two gradients, the convolutions as products with
    their patches; nothing is gathered, activated or added.
    """
    with get_context("spawn").Pool(workers) as pool:
        rates = pool.map(_products, range(workers))
    return {
        "samples_per_second": sum(rates),
        "products": [f"{m} x {k} by {k} x {n}" for m, k, n in _layers()],
    }


def _layers() -> list[tuple[int, int, int]]:
    """Outputs, inputs, and columns (samples x places) of each layer's forward product."""
    convolutions = [(32, 1, 14), (64, 32, 7), (128, 64, 4)]
    return [
        *((out, 9 * into, BATCH_SIZE * side * side) for out, into, side in convolutions),
        (128, 2048, BATCH_SIZE),
        (10, 128, BATCH_SIZE),
    ]


def _products(_number: int) -> float:
    """Samples a second of one thread."""
    torch.set_num_threads(1)
    sides = [(torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)) for m, k, n in _layers()]
    batches, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < LIMIT_SECONDS:
        for place, (weights, columns, gradient) in enumerate(sides):
            torch.mm(weights, columns)
            torch.mm(gradient, columns.T)
            if place:  # nobody needs the gradient in the images
                torch.mm(weights.T, gradient)
        batches += 1
    return batches * BATCH_SIZE / passed


def main() -> None:
    """Run one of the programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    programs: Mapping[str, Callable[[], dict[str, Any]]] = {
        "ours": lambda: ours(options.rounds, options.workers, options.device),
        "loop": lambda: loop(options.rounds),
        "flower": lambda: flower(options.rounds, options.workers),
        "limit": lambda: limit(options.workers),
    }
    print(json.dumps(programs[options.program]()))


if __name__ == "__main__":
    main()
