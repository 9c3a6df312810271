"""Benchmark of the simulator: MNIST's network at 100 agents.

    EROSION_DATA=FOLDER python -m experiments.benchmarks.simulation --json simulation.json

One after the other, each as a separate program: ours, Flower's simulation engine, a plain loop in
one process, and the machine's limit. A round is 60,000 images; a rate is images a second in the
median round. The limit is that of the matrix products of a training step alone, in as many
processes.
"""

import json
import os
import sys
from statistics import median
from typing import Any

from experiments.benchmarks.harness import Processes, ReportLine, parser_of, proportional_mb, report
from experiments.program import run_program

PROGRAMS = "experiments.benchmarks.simulation_programs"
IMAGES = 60_000  # of a round
DEADLINE_SECONDS = 3600.0
SAMPLE_SECONDS = 1.0  # between two looks at the memory
ALL = ("ours", "loop", "flower", "limit")


def measure(program: str, rounds: int, workers: int, device: str) -> dict[str, Any]:
    """Run one program; what it printed, and the memory of all its processes at its highest."""
    # Not -m: Ray's workers import what a client app uses by the name of its module.
    command = [sys.executable, "-c", f"from {PROGRAMS} import main; main()", program]
    counts = ["--rounds", str(rounds), "--workers", str(workers), "--device", device]
    with Processes(deadline_seconds=DEADLINE_SECONDS) as processes:
        child, peak = processes.start(program, [*command, *counts]), 0.0
        while child.process.poll() is None:
            peak = max(peak, proportional_mb(child.process.pid))
            processes.pause(f"{program} to end", seconds=SAMPLE_SECONDS)
        processes.check()
        found: dict[str, Any] = json.loads(child.stdout.read_text().splitlines()[-1])
        return {**found, "peak_memory_mb": round(peak)}


def compare(found: dict[str, dict[str, Any]]) -> list[ReportLine]:
    """Return images a second of each system."""
    rates = {
        name: IMAGES / median(figures["seconds_per_round"])
        for name, figures in found.items()
        if name in ("ours", "loop", "flower")
    }
    if "limit" in found:
        rates["limit"] = found["limit"]["samples_per_second"]
    lines = [
        ReportLine(
            f"simulation.mnist.vs_{peer}", rates["ours"], rate, "images/s", lower_is_better=False
        )
        for peer, rate in rates.items()
        if peer != "ours" and "ours" in rates
    ]
    return lines


def main() -> None:
    """Read the command line, measure, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="default: the cores"
    )
    parser.add_argument("--only", nargs="+", choices=ALL, default=list(ALL), help="measure these")
    parser.add_argument("--device", default="cpu", help='what "ours" trains on (default: cpu)')
    options = parser.parse_args()
    found = {}
    for program in options.only:
        print(f"{program} ...", file=sys.stderr, flush=True)
        found[program] = measure(program, options.rounds, options.workers, options.device)
        print(json.dumps(found[program]), flush=True)
    report(compare(found), json_path=options.json, details=found)


if __name__ == "__main__":
    run_program(main)
