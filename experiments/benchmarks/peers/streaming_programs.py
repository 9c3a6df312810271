"""The two programs of Flower's older streaming API: `server` and `client`, one process each.

Run as `python -m experiments.benchmarks.peers.streaming_programs server|client ...`. flwr 1.32
still has `start_server` and `start_client`; it calls them deprecated on every start.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import (
    NDArrays,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import ServerConfig, start_server
from flwr.server.client_manager import ClientManager
from flwr.server.strategy import FedAvg

from erosion.experiments.benchmarks.workload import RoundClock, initial_parameters, site_constant

CONNECT_SECONDS = 120


class ClockedFedAvg(FedAvg):
    """Stock FedAvg; the call that ends each round ticks the clock and evaluates nothing."""

    def __init__(self, *, num_sites: int, dim: int, clock: RoundClock) -> None:
        self._initial = initial_parameters(dim)
        self._num_sites = num_sites
        self._clock = clock
        self.latest: Parameters = ndarrays_to_parameters([self._initial])
        super().__init__(
            fraction_evaluate=0.0,
            min_fit_clients=num_sites,
            min_available_clients=num_sites,
            accept_failures=False,
            initial_parameters=self.latest,
        )

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Wait for all sites first, so that round 1 does not include their start."""
        client_manager.wait_for(self._num_sites, timeout=CONNECT_SECONDS)
        return super().initialize_parameters(client_manager)

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """End a round."""
        self.latest = parameters
        self._clock.tick()
        return None

    def shift(self) -> float:
        """How far the mean parameter has moved."""
        return float(np.mean(parameters_to_ndarrays(self.latest)[0] - self._initial))


class AddingClient(NumPyClient):
    """A site that returns the received parameters plus its own constant."""

    def __init__(self, site: int) -> None:
        self._site = site

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """One update, weighted like every other one."""
        return [parameters[0] + site_constant(self._site)], 1, {}


def serve(address: str, num_sites: int, num_rounds: int, dim: int, clock_path: Path) -> None:
    """Run the server to the end of the last round."""
    clock = RoundClock(clock_path)
    strategy = ClockedFedAvg(num_sites=num_sites, dim=dim, clock=clock)
    start_server(
        server_address=address, config=ServerConfig(num_rounds=num_rounds), strategy=strategy
    )
    clock.finish(strategy.shift())


def main() -> None:
    """Read the command line and run one of the two programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    server = programs.add_parser("server")
    server.add_argument("address")
    server.add_argument("num_sites", type=int)
    server.add_argument("num_rounds", type=int)
    server.add_argument("dim", type=int)
    server.add_argument("clock", type=Path)
    client = programs.add_parser("client")
    client.add_argument("address")
    client.add_argument("site", type=int)
    options = parser.parse_args()

    logging.getLogger("flwr").setLevel(logging.ERROR)  # the deprecation notices are warnings
    if options.program == "server":
        serve(options.address, options.num_sites, options.num_rounds, options.dim, options.clock)
    else:
        start_client(
            server_address=options.address,
            client=AddingClient(options.site).to_client(),
            insecure=True,
            max_wait_time=CONNECT_SECONDS,
        )


if __name__ == "__main__":
    main()
