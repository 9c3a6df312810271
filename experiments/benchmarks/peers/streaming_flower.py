"""Flower's older streaming API, `start_server` and `start_client`.

One bidirectional gRPC stream per site, no polling, no object store, no node authentication.
Deprecated since flwr 1.13, still present in 1.32.
"""

from erosion.experiments.benchmarks.measurement import Measurement
from erosion.experiments.benchmarks.processes import Processes
from erosion.experiments.benchmarks.workload import expected_shift, read_rounds
from erosion.experiments.free_ports import LOOPBACK, free_ports

PROGRAMS = "erosion.experiments.benchmarks.peers.streaming_programs"


def measure(
    num_sites: int, num_rounds: int, dim: int, *, deadline_seconds: float = 900
) -> Measurement:
    """Run `num_rounds` rounds of a `dim`-float model, the server and every site a process."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes(deadline_seconds=deadline_seconds) as processes:
        clock = processes.folder / "rounds.jsonl"
        counts = (str(num_sites), str(num_rounds), str(dim))
        server = processes.start_module("server", PROGRAMS, "server", address, *counts, clock)
        processes.wait_for_ports([port])
        clients = [
            processes.start_module("client", PROGRAMS, "client", address, str(site))
            for site in range(num_sites)
        ]
        processes.wait_for_exit([server, *clients])
        return Measurement(
            name="streaming",
            num_sites=num_sites,
            dim=dim,
            seconds_per_round=read_rounds(
                clock, num_rounds=num_rounds, expected=expected_shift(num_sites, num_rounds)
            ),
            peak_memory_mb=processes.memory.peaks_mb(),
            total_peak_memory_mb=processes.memory.total_peak_mb(),
        )
