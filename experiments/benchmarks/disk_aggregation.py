"""Peak memory of a round whose updates lie on disk, in models, for a growing number of hospitals.

    python -m experiments.benchmarks.disk_aggregation --json disk_aggregation.json

Hospitals' updates arrive one by one and go to files; then the round is advanced as the coordinator
does it. What is counted is the resident memory that this adds to a process that has imported
everything: the parameters, the arriving update, the aggregate, the new parameters, and buffers.
The peer is what the method would hold in memory: every hospital's update and the parameters.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from erosion.common.aggregation.cohort import DiskCohort, HospitalName, Update, store
from erosion.common.algorithms import REGISTRY
from erosion.common.algorithms.base import BuildContext
from erosion.common.rounds.records import Answer, RunState
from erosion.common.rounds.round import first_state
from erosion.experiments.benchmarks.process_memory import resident_bytes
from erosion.experiments.benchmarks.report_line import ReportLine, report
from erosion.experiments.benchmarks.workload import advance
from erosion.experiments.program import output_file, run_program

DIM = 11_181_642  # torchvision's resnet18 with ten classes: 45 MB
HOSPITALS = (4, 16, 64)
USER = "h00"


def one_round(rule: str, num_hospitals: int, dim: int, folder: Path) -> RunState:
    """A first round of `rule`, from arriving updates to new parameters."""
    algorithm = REGISTRY[rule](algorithm=rule).build(BuildContext(10, num_hospitals, dict))
    state = first_state(algorithm, torch.zeros(dim))
    random = torch.Generator().manual_seed(1)
    answers: dict[HospitalName, Answer] = {}
    for i in range(num_hospitals):
        name = f"h{i:02}"
        arrived = Update(name, 1, torch.randn(dim, generator=random), 10, 10)
        answers[name] = store(folder, arrived)
        del arrived
    after, record = advance(
        state,
        algorithm,
        answers,
        arm=rule,
        user=USER,
        quorum=1,
        cohort_of=partial(DiskCohort, folder=folder),
    )
    if record.outcome != "done":
        raise RuntimeError(record.note)
    return after


def measured_here(rule: str, hospitals: Sequence[int], dim: int, folder: Path) -> list[float]:
    """Peak memory after each number of hospitals, in models, above what the process had before."""
    one_round(rule, 3, 1000, folder)  # loads whatever is loaded at first use
    before = resident_bytes("VmRSS")
    peaks = []
    for num_hospitals in hospitals:
        one_round(rule, num_hospitals, dim, folder)
        peaks.append((resident_bytes("VmHWM") - before) / (4 * dim))
    return peaks


def measure(
    rule: str, hospitals: Sequence[int], dim: int, folder: Path | None = None
) -> list[float]:
    """The same in a fresh process; files go to a new folder in `folder`.

    `hospitals` must ascend, because a process's peak never falls.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [
            sys.executable,
            "-m",
            "erosion.experiments.benchmarks.disk_aggregation",
            "--here",
            place,
        ]
        options = ["--rule", rule, "--dim", str(dim), "--hospitals", *map(str, hospitals)]
        done = subprocess.run(
            [*command, *options],
            # A model of more than 32 MiB is always given back when it is freed. A small one that
            # stands for it in a test would be kept by malloc, unless told otherwise.
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
            capture_output=True,
            text=True,
            check=True,
            timeout=1800,
        )
    return [float(word) for word in done.stdout.split()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.disk_aggregation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rule", choices=sorted(REGISTRY), default="weight_erosion")
    parser.add_argument("--dim", type=int, default=DIM, help="float32 parameters")
    parser.add_argument("--hospitals", type=int, nargs="+", default=HOSPITALS)
    parser.add_argument("--folder", type=Path, help="where the files go (4 bytes per parameter)")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="also write the result as JSON"
    )
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # the measured process
    options = parser.parse_args(arguments)
    hospitals = sorted(options.hospitals)
    if options.here is not None:
        torch.set_num_threads(1)
        print(*measured_here(options.rule, hospitals, options.dim, options.here))
        return 0
    lines = [
        ReportLine(
            name=f"disk_aggregation.{options.rule}.{num_hospitals}_hospitals",
            ours=peak,
            peer=num_hospitals + 1.0,
            unit="models",
        )
        for num_hospitals, peak in zip(
            hospitals, measure(options.rule, hospitals, options.dim, options.folder), strict=True
        )
    ]
    report(lines, json_path=options.json)
    return 0


if __name__ == "__main__":
    run_program(main)
