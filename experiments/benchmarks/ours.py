"""Our own deployment: the coordinator and every site a process, over the Fleet API."""

import json
from dataclasses import replace

from erosion.experiments.benchmarks.measurement import Measurement, measured
from erosion.experiments.benchmarks.processes import Processes
from erosion.experiments.free_ports import LOOPBACK, free_ports

PROGRAMS = "erosion.experiments.benchmarks.ours_programs"


def measure(
    num_sites: int, num_rounds: int, dim: int, *, deadline_seconds: float = 900
) -> Measurement:
    """Run `num_rounds` rounds of a `dim`-float model."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes(deadline_seconds=deadline_seconds) as processes:
        folder = processes.folder
        counts = (str(num_sites), str(num_rounds), str(dim))
        server = processes.start_module("server", PROGRAMS, "server", address, *counts, folder)
        for site in range(num_sites):
            processes.start_module(
                "client", PROGRAMS, "client", address, str(site), "--dim", str(dim)
            )
        processes.wait_for_exit([server])
        found = measured(
            "ours",
            processes,
            folder / "clock.jsonl",
            num_sites=num_sites,
            num_rounds=num_rounds,
            dim=dim,
        )
        parts = json.loads((folder / "parts.json").read_text())
        return replace(found, seconds_by_part=parts)
