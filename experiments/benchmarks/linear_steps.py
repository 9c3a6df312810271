"""Benchmark of local training with a linear model: ours, and autograd, taking turns.

    python -m experiments.benchmarks.linear_steps --json linear_steps.json

Both are `train_locally` with SGD on the same mini-batches of 16 patients of a table, and come to
the same parameters to the last bit. Autograd's model has the same layers, in a module of which the
program does not know that it is linear. The time is one thread's of the processor.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from erosion.common.learning.local_sgd import Samples, round_generator, train_locally
from erosion.common.learning.models import Logistic, build_model, flat_parameters
from erosion.common.learning.training import Training
from erosion.experiments.benchmarks.report_line import ReportLine, report
from erosion.experiments.program import output_file, run_program

PATIENTS, FEATURES, CLASSES = 200, 13, 2  # about those of a hospital of the heart study
STEPS = 1000


def seconds_a_step(model: nn.Module, samples: Samples) -> tuple[float, Tensor]:
    """Of a processor, and the update that was trained."""
    start = torch.zeros_like(flat_parameters(model))
    training = Training(steps=STEPS, batch_size=16, learning_rate=0.1)
    begun = time.process_time()
    update = train_locally(model, start, samples, training, round_generator(0, "a", 1)).delta
    return (time.process_time() - begun) / STEPS, update


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.linear_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="also write the result as JSON"
    )
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be 1 or more")
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    samples = Samples(
        torch.randn(PATIENTS, FEATURES, generator=random),
        torch.randint(CLASSES, (PATIENTS,), generator=random),
        cross_entropy,
    )
    linear = build_model(Logistic(), (FEATURES,), CLASSES)
    models = {"ours": linear, "autograd": nn.Sequential(*copy.deepcopy(list(linear.children())))}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(1 + options.repeats):  # the first warms up
        updates = {}
        for name, model in models.items():
            spent, updates[name] = seconds_a_step(model, samples)
            seconds[name].append(spent)
        if not torch.equal(updates["ours"], updates["autograd"]):
            raise RuntimeError("the two updates differ")
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    report(
        [ReportLine("linear_steps.vs_autograd", medians["ours"], medians["autograd"], "s/step")],
        json_path=options.json,
        details={"seconds": {name: each[1:] for name, each in seconds.items()}},
    )
    return 0


if __name__ == "__main__":
    run_program(main)
