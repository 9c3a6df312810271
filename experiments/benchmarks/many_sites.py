"""Measures a round of a tiny model with many sites: what each further site costs the coordinator.

    python -m experiments.benchmarks.many_sites --json many_sites.json

The coordinator is a separate process with everything that a real round does: mutual TLS and
enrolled keys, screening, aggregation, the journal and the checkpoint. The sites are coroutines of
other processes, so that only the coordinator is measured.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from erosion.simulation.free_ports import LOOPBACK, free_ports, unpack_kit
from erosion.simulation.program import run_program
from erosion_server.enrolment.enrolment import enrol_site, init_federation
from erosion_server.enrolment.federation_folder import Address, FederationFolder
from experiments.benchmarks.measurement import expected_shift, read_rounds
from experiments.benchmarks.ours import PROGRAMS
from experiments.benchmarks.processes import Processes
from experiments.benchmarks.report_line import parser_of, report
from experiments.benchmarks.round_overhead import TINY_DIM

SITES = "experiments.benchmarks.event_loop_sites"
DEADLINE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Rounds with one number of sites."""

    median_seconds: float  # of a round, wall clock
    p95_seconds: float
    coordinator_processor_seconds: float  # of a round, all its threads


def measure(num_sites: int, num_rounds: int, *, processes: int, encrypted: bool) -> Measured:
    """Run the rounds; the sites are shared out among a few processes."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes(deadline_seconds=DEADLINE_SECONDS) as started:
        folder = started.folder
        kits = _enrol(folder, num_sites) if encrypted else None
        counts = (str(num_sites), str(num_rounds), str(TINY_DIM))
        keys = ["--federation", str(folder / "federation")] if encrypted else []
        server = started.start_module("server", PROGRAMS, "server", address, *counts, folder, *keys)
        started.wait_for_ports([port])
        bounds = np.linspace(0, num_sites, processes + 1).astype(int)
        for first, end in pairwise(bounds):
            places = [str(kits)] if kits is not None else []
            started.start_module(
                "sites", SITES, address, str(TINY_DIM), str(first), str(end), *places
            )
        started.wait_for_exit([server])
        seconds = read_rounds(
            folder / "clock.jsonl",
            num_rounds=num_rounds,
            expected=expected_shift(num_sites, num_rounds),
        )
        processor = json.loads((folder / "processor.json").read_text())["seconds_per_round"]
    return Measured(median(seconds), float(np.percentile(seconds, 95)), processor)


def _enrol(folder: Path, num_sites: int) -> Path:
    """Enrol a federation of `num_sites` sites; returns the folder with their unpacked kits."""
    federation, kits = FederationFolder(folder / "federation"), folder / "kits"
    init_federation(federation, Address(hosts=(LOOPBACK,), port=9092))
    for number in range(num_sites):
        unpack_kit(enrol_site(federation, f"site{number}").kit, kits)
    return kits


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    parser = parser_of(__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 64, 256])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1, help="that the sites are shared among")
    parser.add_argument("--insecure", action="store_true", help="without TLS and enrolment")
    options = parser.parse_args(arguments)
    details = {}
    for num_sites in options.sites:
        found = measure(
            num_sites,
            options.rounds,
            processes=options.processes,
            encrypted=not options.insecure,
        )
        details[f"{num_sites} sites"] = asdict(found)
        print(
            f"{num_sites} sites: {found.median_seconds:.4f} s a round"
            f" (95 of 100 within {found.p95_seconds:.4f} s), of which the coordinator's processor"
            f" time is {found.coordinator_processor_seconds:.4f} s",
            flush=True,
        )
    report([], json_path=options.json, details=details)
    return 0


if __name__ == "__main__":
    run_program(main)
