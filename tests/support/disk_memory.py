"""Peak memory of a round whose updates lie on disk, in models, measured in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from erosion_common.aggregation.cohort import DiskCohort, HospitalName, Update, store
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import BuildContext
from erosion_common.rounds.records import Answer
from erosion_common.rounds.round import first_state
from experiments.benchmarks.harness import advance, resident_bytes


def one_round(rule: str, num_hospitals: int, dim: int, folder: Path) -> None:
    """A first round of `rule`, from arriving updates to new parameters."""
    algorithm = REGISTRY[rule](algorithm=rule).build(BuildContext(10, num_hospitals, dict))
    state = first_state(algorithm, torch.zeros(dim))
    random = torch.Generator().manual_seed(1)
    answers: dict[HospitalName, Answer] = {}
    for i in range(num_hospitals):
        arrived = Update(f"h{i:02}", 1, torch.randn(dim, generator=random), 10, 10)
        answers[arrived.agent] = store(folder, arrived)
        del arrived
    cohort_of = partial(DiskCohort, folder=folder)
    _, record = advance(
        state, algorithm, answers, arm=rule, user="h00", quorum=1, cohort_of=cohort_of
    )
    if record.outcome != "done":
        raise RuntimeError(record.note)


def measure(rule: str, hospitals: Sequence[int], dim: int, folder: Path) -> list[float]:
    """Peak memory after each number of hospitals, which ascend, above what the process had."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, rule, str(dim), str(folder), *map(str, hospitals)],
        # A model of more than 32 MiB is always given back when it is freed. A small one that
        # stands for it would be kept by malloc without this.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
        capture_output=True,
        text=True,
        check=True,
        timeout=1800,
    )
    return [float(word) for word in done.stdout.split()]


def main(rule: str, dim: str, folder: str, *hospitals: str) -> None:
    torch.set_num_threads(1)
    one_round(rule, 3, 1000, Path(folder))  # loads what is loaded at first use
    before = resident_bytes("VmRSS")
    for count in map(int, hospitals):
        one_round(rule, count, int(dim), Path(folder))
        print((resident_bytes("VmHWM") - before) / (4 * int(dim)))


if __name__ == "__main__":
    main(*sys.argv[1:])
