"""Times good-enough balls: the closed form and shared projections against the plain loop.

    python -m experiments.benchmarks.ball_construction --json ball_construction.json

The plain loop is ConstructBall as the paper writes it: at every radius that the bisection tries,
500 fresh directions, one model each, until one of them is not good enough. Ours draws its
directions once. Sizes are those of MNIST with five nodes; the data are random, with as many pixels
set as in a digit. Both run in this process, in turns, on one thread. The radii are compared, too:
ours is never larger than what the same directions allow the loop, and fresh directions differ by
chance.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from erosion.simulation.program import run_program
from erosion_common.algorithms.gems.balls import (
    LARGEST_RADIUS,
    Layer,
    directions,
    good_enough_ball,
    layer_of_flat,
    neuron_radii,
)
from erosion_common.learning.local_sgd import Samples, train_locally
from erosion_common.learning.models import flat_parameters
from erosion_common.learning.training import Training
from experiments.benchmarks.report_line import ReportLine, parser_of, report
from experiments.papers.gems_authors import LAYER_WIDTH, NEURON_WIDTH

SAMPLES, PIXELS, HIDDEN, CLASSES = 1031, 784, 50, 10
FEATURES = 74  # merged neurons
DIRECTIONS = 500
EPSILON, NEURON_EPSILON = 0.7, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node's validation part and its own layers."""

    inputs: Tensor
    labels: Tensor
    output: Layer
    hidden: Layer


def made(width: int) -> Node:
    """Return a node of two classes that its output layer has learnt."""
    random = torch.Generator().manual_seed(width)
    set_pixels = torch.rand(SAMPLES, width, generator=random) < 0.2
    inputs = torch.rand(SAMPLES, width, generator=random) * set_pixels
    labels = (inputs[:, : width // 2].sum(dim=1) > inputs[:, width // 2 :].sum(dim=1)).long()
    model = torch.nn.Linear(width, CLASSES)
    start = torch.zeros_like(flat_parameters(model))
    training = Training(epochs=20, batch_size=32, learning_rate=0.1)
    learnt = train_locally(model, start, Samples(inputs, labels, cross_entropy), training, random)
    weight = torch.randn(HIDDEN, width, generator=random) * 0.05
    output = layer_of_flat(start + learnt.delta, width, CLASSES)
    return Node(inputs, labels, output, Layer(weight, torch.zeros(HIDDEN)))


def bisected(width: float, good: Callable[[float], bool]) -> float:
    """Return the lower end of the last interval."""
    low, high = 0.0, LARGEST_RADIUS
    while high - low > width:
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def plain_layer(node: Node, random: torch.Generator) -> float:
    """Return the radius of the output layer's ball, model by model."""
    flat, width = node.output.flat, node.inputs.shape[1]

    def good(radius: float) -> bool:
        for _ in range(DIRECTIONS):
            z = torch.randn(len(flat), generator=random)
            moved = layer_of_flat(flat + radius * z / z.norm(), width, CLASSES)
            right = moved(node.inputs).argmax(dim=1) == node.labels
            if float(right.float().mean()) < EPSILON:
                return False
        return True

    return bisected(LAYER_WIDTH, good)


def our_layer(node: Node, random: torch.Generator) -> float:
    """Return the same in closed form."""
    along = directions(DIRECTIONS, len(node.output.flat), random)
    return good_enough_ball(node.output, node.inputs, node.labels, EPSILON, along).radius


def plain_neurons(node: Node, random: torch.Generator) -> float:
    """Return the mean radius of the neurons' balls, neuron by neuron."""
    with_one = torch.cat([node.inputs, torch.ones(SAMPLES, 1)], dim=1)

    def radius_of(neuron: Tensor) -> float:
        before = (with_one @ neuron).relu()

        def good(radius: float) -> bool:
            for _ in range(DIRECTIONS):
                z = torch.randn(len(neuron), generator=random)
                after = (with_one @ (neuron + radius * z / z.norm())).relu()
                if float((after - before).norm()) / SAMPLES > NEURON_EPSILON:
                    return False
            return True

        return bisected(NEURON_WIDTH, good)

    return statistics.fmean(radius_of(neuron) for neuron in node.hidden.neurons)


def our_neurons(node: Node, random: torch.Generator) -> float:
    """Return the same with one product for all neurons."""
    along = directions(DIRECTIONS, PIXELS + 1, random)
    radii = neuron_radii(node.hidden, node.inputs, NEURON_EPSILON, along, divide_by_count=True)
    return float(radii.mean())


Construct = Callable[[Node, torch.Generator], float]
CASES: dict[str, tuple[int, Construct, Construct]] = {
    "last_layer": (FEATURES, our_layer, plain_layer),
    "convex": (PIXELS, our_layer, plain_layer),
    "neurons": (PIXELS, our_neurons, plain_neurons),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be 1 or more")
    torch.set_num_threads(1)
    lines, details = [], {}
    for name in options.case or CASES:
        width, *constructors = CASES[name]
        node = made(width)
        seconds: list[list[float]] = [[], []]
        radii: list[list[float]] = [[], []]
        for number in range(options.repeats):
            for which, construct in enumerate(constructors):
                random = torch.Generator().manual_seed(number)
                begun = time.process_time()  # of this thread alone: other programs do not count
                radii[which].append(construct(node, random))
                seconds[which].append(time.process_time() - begun)
        ours, plain = (statistics.median(each) for each in seconds)
        lines.append(ReportLine(f"ball_construction.{name}", ours, plain, "CPU s"))
        details[name] = {"seconds": seconds, "radii": radii}
    report(lines, json_path=options.json, details=details)
    return 0


if __name__ == "__main__":
    run_program(main)
