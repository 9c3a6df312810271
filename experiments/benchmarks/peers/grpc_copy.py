"""A bare gRPC copy of every model down and up: the limit of what any round over gRPC can reach.

It neither adds, averages, checks nor stores: nothing but bytes through gRPC for Python. The two
programs, `server` and `site`, are one process each, with one bidirectional stream per site; a model
is a run of chunks of bytes, without any serialisation.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import grpc
import numpy as np

from erosion_common.support.network import LOOPBACK, free_ports
from experiments.benchmarks.harness import (
    Processes,
    RoundClock,
    Rounds,
    initial_parameters,
    read_rounds,
    site_constant,
)

PROGRAMS = "experiments.benchmarks.peers.grpc_copy"
CHUNK_BYTES = 4 * 2**20


def measure(num_sites: int, num_rounds: int, dim: int) -> Rounds:
    """Copy a `dim`-float model to every site and back, `num_rounds` times."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes() as processes:
        clock = processes.folder / "rounds.jsonl"
        server = processes.start_module(
            "server", PROGRAMS, "server", address, num_sites, num_rounds, dim, clock
        )
        sites = [
            processes.start_module("site", PROGRAMS, "site", address, site, num_rounds, dim)
            for site in range(num_sites)
        ]
        processes.wait_for_exit([server, *sites])
        return read_rounds(clock, num_sites, num_rounds)


SERVICE, METHOD = "erosion.Copy", "Exchange"
WAIT_SECONDS = 300.0
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
]


def chunks_of(model: memoryview) -> Iterator[bytes]:
    """Cut a model into messages; gRPC for Python sends `bytes` only, which costs this copy."""
    for start in range(0, len(model), CHUNK_BYTES):
        yield bytes(model[start : start + CHUNK_BYTES])


def receive_into(model: memoryview, messages: Iterator[bytes]) -> None:
    """Fill a buffer with the next messages of a stream."""
    filled = 0
    while filled < len(model):
        chunk = next(messages)
        model[filled : filled + len(chunk)] = chunk
        filled += len(chunk)


class CopyServer:
    """Sends the same model to all sites at once, and ends a round when all have answered."""

    def __init__(self, num_sites: int, num_rounds: int, dim: int, clock: RoundClock) -> None:
        self._num_rounds = num_rounds
        self._initial = initial_parameters(dim)
        self._model = self._initial.copy()
        self._updates = np.zeros((num_sites, dim), dtype=np.float32)
        self._barrier = threading.Barrier(num_sites, action=clock.tick)
        self._finished = threading.Semaphore(0)

    def exchange(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serve one site: the first message is its number, then every round down and up."""
        site = int(next(messages))
        update = self._updates[site].data.cast("B")
        self._barrier.wait(WAIT_SECONDS)
        for _ in range(self._num_rounds):
            yield from chunks_of(self._model.data.cast("B"))
            receive_into(update, messages)
            self._barrier.wait(WAIT_SECONDS)
        self._finished.release()

    def wait(self) -> float:
        """Wait for the last site; return how far the sites' mean lies from the model sent."""
        for _ in range(len(self._updates)):
            if not self._finished.acquire(timeout=WAIT_SECONDS):
                raise TimeoutError("a site did not finish")
        return float(np.mean(self._updates.mean(axis=0) - self._initial))


def serve(address: str, num_sites: int, num_rounds: int, dim: int, clock_path: Path) -> None:
    """Run the server to the end of the last round."""
    clock = RoundClock(clock_path)
    copier = CopyServer(num_sites, num_rounds, dim, clock)
    server = grpc.server(ThreadPoolExecutor(num_sites), options=OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(copier.exchange)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
    )
    server.add_insecure_port(address)
    server.start()
    shift = copier.wait()
    server.stop(grace=5).wait()
    # Nothing is averaged between rounds, so one round's shift stands for all of them.
    clock.finish(shift * num_rounds)


def answer(address: str, site: int, num_rounds: int, dim: int) -> None:
    """Run a site: receive the model, send the site's own (prepared) update, every round."""
    received = np.empty(dim, dtype=np.float32)
    update = initial_parameters(dim) + site_constant(site)
    outgoing: SimpleQueue[bytes | None] = SimpleQueue()
    outgoing.put(str(site).encode())
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        messages = call(iter(outgoing.get, None), timeout=WAIT_SECONDS, wait_for_ready=True)
        for _ in range(num_rounds):
            receive_into(received.data.cast("B"), messages)
            for chunk in chunks_of(update.data.cast("B")):
                outgoing.put(chunk)
        outgoing.put(None)
        for _ in messages:  # wait until the server closes the stream
            raise RuntimeError("the server sent more than the agreed rounds")


def main() -> None:
    """Run one of the two programs."""
    program, address, *others = sys.argv[1:]
    number, num_rounds, dim, *clock = others  # of sites (server), or this site's (site)
    if program == "server":
        serve(address, int(number), int(num_rounds), int(dim), Path(clock[0]))
    else:
        answer(address, int(number), int(num_rounds), int(dim))


if __name__ == "__main__":
    main()
