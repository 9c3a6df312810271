"""A bare gRPC copy of every model down and up: the limit of what any round over gRPC can reach.

It neither adds, averages, checks nor stores: nothing but bytes through gRPC for Python.
"""

from erosion.experiments.benchmarks.measurement import Measurement, measured
from erosion.experiments.benchmarks.processes import Processes
from erosion.experiments.free_ports import LOOPBACK, free_ports

PROGRAMS = "erosion.experiments.benchmarks.peers.grpc_copy_programs"
CHUNK_BYTES = 4 * 2**20


def measure(
    num_sites: int,
    num_rounds: int,
    dim: int,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    deadline_seconds: float = 300,
) -> Measurement:
    """Copy a `dim`-float model to every site and back, `num_rounds` times."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    shape = (str(num_rounds), str(dim), str(chunk_bytes))
    with Processes(deadline_seconds=deadline_seconds) as processes:
        clock = processes.folder / "rounds.jsonl"
        server = processes.start_module(
            "server", PROGRAMS, "server", address, str(num_sites), *shape, clock
        )
        sites = [
            processes.start_module("site", PROGRAMS, "site", address, str(site), *shape)
            for site in range(num_sites)
        ]
        processes.wait_for_exit([server, *sites])
        return measured(
            "copy", processes, clock, num_sites=num_sites, num_rounds=num_rounds, dim=dim
        )
