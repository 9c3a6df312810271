"""Flower's older streaming API, `start_server` and `start_client`.

One bidirectional gRPC stream per site, no polling, no object store, no node authentication.
Deprecated since flwr 1.13, still present in 1.32.
"""

from erosion.experiments.benchmarks.measurement import Measurement, measured
from erosion.experiments.benchmarks.processes import Processes
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
        return measured(
            "streaming", processes, clock, num_sites=num_sites, num_rounds=num_rounds, dim=dim
        )
