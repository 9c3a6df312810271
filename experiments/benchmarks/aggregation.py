"""Benchmark of one aggregation: ours, with distances, and Flower's own average of the arrays.

    python -m experiments.benchmarks.aggregation --json aggregation.json

Flower's is `aggregate_train` of its FedAvg, on the replies of a round. Ours is the update of Weight
Erosion: distances measured, weights eroded, updates averaged. It starts from updates that were
decoded as they arrived. The line "whole_round" is everything from Flower's arrays to the round's
record: decoding, which takes arrays in the memory that they came in, the same update, moving and
checking the parameters. Each runs in a separate process, set up as in use, and
they take turns. "Same arrays" are those that our hospitals send, one for the whole model; the line
"layers" compares with Flower on an array for each of resnet18's 62 parameters, which fit into the
cache.
"""

import logging
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from erosion_common.aggregation.cohort import HospitalName, MemoryCohort, Update
from erosion_common.algorithms.base import BuildContext
from erosion_common.algorithms.weight_erosion import WeightErosion
from erosion_common.learning.models import Resnet18, parameter_layout
from erosion_common.protocol.flower import identify, to_array, to_tensor
from erosion_common.rounds.records import Answer
from erosion_common.rounds.round import first_state
from erosion_common.support.process import keep_freed_memory
from experiments.benchmarks.harness import ReportLine, Vector, advance, parser_of, report
from experiments.program import run_program

NUM_UPDATES = 10
SAMPLES = 100  # of every hospital
FLOWER, LAYERS, WHOLE_ROUND, UPDATE = "flower", "flower_layers", "whole_round", "update"
OF_FLOWER = (FLOWER, LAYERS)


class Flower:
    """Flower's average; every update is one array for each of `places`."""

    def __init__(self, deltas: Sequence[torch.Tensor], places: Sequence[slice]) -> None:
        self._last, self._strategy = ArrayRecord(), FedAvg()
        identify()
        logging.getLogger("flwr").setLevel(logging.WARNING)  # it has a line for each round
        asked = Message(RecordDict(), 1, "train")
        self._replies = [
            Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord(
                            {str(i): Array(delta[place].numpy()) for i, place in enumerate(places)}
                        ),
                        "metrics": MetricRecord({"num-examples": SAMPLES}),
                    }
                ),
                reply_to=asked,
            )
            for delta in deltas
        ]

    def aggregate(self) -> None:
        """Do what FedAvg does with the replies of a round."""
        arrays, _ = self._strategy.aggregate_train(1, self._replies)
        self._last = arrays or self._last

    def result(self) -> Vector:
        """Return the arrays in a row."""
        return np.concatenate([array.numpy().ravel() for array in self._last.values()])


class Ours:
    """Weight Erosion's update; with a distance penalty of 0 it is the plain average."""

    def __init__(self, deltas: Sequence[torch.Tensor]) -> None:
        own, *others = (
            Update(f"h{i}", 1, delta, SAMPLES, SAMPLES) for i, delta in enumerate(deltas)
        )
        self._own, self._others = own, {update.agent: update for update in others}
        settings = WeightErosion(distance_penalty=0.0)
        self._algorithm = settings.build(BuildContext(30, len(deltas), dict))
        self._state = self._algorithm.init(len(deltas[0]))
        self._last = deltas[0]

    def aggregate(self) -> None:
        """Aggregate in the first round; a fresh cohort remembers no distances."""
        step = self._algorithm.update(self._state, MemoryCohort(self._own, self._others))
        self._last = step.delta

    def result(self) -> Vector:
        """Return the average."""
        values: Vector = self._last.numpy()
        return values


class WholeRound:
    """Aggregate from the arrays of the replies to the next state and the record."""

    def __init__(self, deltas: Sequence[torch.Tensor]) -> None:
        self._arrays = {f"h{i}": to_array(delta) for i, delta in enumerate(deltas)}
        settings = WeightErosion(distance_penalty=0.0)
        self._algorithm = settings.build(BuildContext(30, len(deltas), dict))
        self._first = self._last = first_state(self._algorithm, torch.zeros(len(deltas[0])))

    def aggregate(self) -> None:
        """Aggregate in the first round."""
        updates: dict[HospitalName, Answer] = {
            name: Update(name, 1, to_tensor(array), SAMPLES, SAMPLES)
            for name, array in self._arrays.items()
        }
        self._last, record = advance(
            self._first, self._algorithm, updates, arm="benchmark", user="h0", quorum=1
        )
        if record.outcome != "done" or record.hospitals["h1"].distance is None:
            raise RuntimeError(f"the round was {record.outcome}: {record.note}")

    def result(self) -> Vector:
        """Return the parameters, which started at 0."""
        values: Vector = self._last.params.numpy()
        return values


def built(name: str, num_updates: int) -> Flower | Ours | WholeRound:
    """Return a system with its updates, in the process that it is to be measured in."""
    if name not in OF_FLOWER:
        keep_freed_memory()  # as `erosion` does; Flower's programs leave malloc as it is
    layers = list(parameter_layout(Resnet18(), (3, 32, 32), 10).values())
    random = torch.Generator().manual_seed(1)
    deltas = [torch.randn(layers[-1].stop, generator=random) for _ in range(num_updates)]
    if name in OF_FLOWER:
        return Flower(deltas, layers if name == LAYERS else [slice(None)])
    return Ours(deltas) if name == UPDATE else WholeRound(deltas)


def serve(name: str, num_updates: int, orders: Connection) -> None:
    """Measured process: True means aggregate and answer the seconds, False answer the result."""
    system = built(name, num_updates)
    system.aggregate()
    orders.send(0.0)
    while True:
        if not orders.recv():
            orders.send(system.result())
            return
        begun = time.perf_counter()
        system.aggregate()
        orders.send(time.perf_counter() - begun)


def measure(names: Sequence[str], num_updates: int, repeats: int) -> dict[str, list[float]]:
    """Return seconds of every aggregation, the systems in turns; raises where results disagree."""
    spawning = multiprocessing.get_context("spawn")
    ends = {}
    processes = []
    for name in sorted(names, key=lambda name: name not in OF_FLOWER):
        if name not in OF_FLOWER:
            keep_freed_memory()  # torch looks at the environment while it is imported
        ends[name], far_end = spawning.Pipe()
        process = spawning.Process(target=serve, args=(name, num_updates, far_end), daemon=True)
        process.start()
        processes.append(process)
    for end in ends.values():
        end.recv()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, end in ends.items():
            end.send(True)
            seconds[name].append(end.recv())
    results = []
    for end in ends.values():
        end.send(False)
        results.append(end.recv())
    for process in processes:
        process.join()
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--updates", type=int, default=NUM_UPDATES)
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.updates < 2:
        parser.error("--repeats must be 1 or more and --updates 2 or more")
    seconds = measure((FLOWER, LAYERS, WHOLE_ROUND, UPDATE), options.updates, options.repeats)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    peer = medians[FLOWER]
    report(
        [
            ReportLine("aggregation.whole_round", medians[WHOLE_ROUND], peer, "s"),
            ReportLine("aggregation.layers", medians[UPDATE], medians[LAYERS], "s"),
            ReportLine("aggregation.same_arrays", medians[UPDATE], peer, "s"),
        ],
        json_path=options.json,
        details={"seconds": seconds},
    )
    return 0


if __name__ == "__main__":
    run_program(main)
