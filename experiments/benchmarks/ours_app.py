"""Stock Flower's own app over our link: `erosion server --app` and `erosion client --app`."""

import json

from erosion.simulation.free_ports import LOOPBACK, free_ports
from experiments.benchmarks.measurement import Measurement, measured
from experiments.benchmarks.processes import Processes

APPS = "experiments.benchmarks.peers.stock_app"


def measure(
    num_sites: int, num_rounds: int, dim: int, *, deadline_seconds: float = 900
) -> Measurement:
    """Run `num_rounds` rounds of a `dim`-float model, with the programs that users start."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes(deadline_seconds=deadline_seconds) as processes:
        folder = processes.folder
        clock = folder / "rounds.jsonl"
        config = {"num-sites": num_sites, "num-rounds": num_rounds, "dim": dim}
        words = [f"{key}={value}" for key, value in config.items()]
        server = processes.start_module(
            "server",
            "erosion",
            *("server", "--app", f"{APPS}:server_app", "--insecure", "--address", address),
            *("--run-config", " ".join([*words, "import-torch=false", f'clock="{clock}"'])),
        )
        for site in range(num_sites):
            file = folder / f"site{site}" / "site.toml"
            file.parent.mkdir()
            file.write_text(
                f'name = "site{site}"\n[coordinator]\naddress = {json.dumps(address)}\n'
                f"[app]\nsite = {site}\n"
            )
            processes.start_module(
                "client", "erosion", "client", file, "--app", f"{APPS}:client_app"
            )
        processes.wait_for_exit([server])
        return measured(
            "ours-app", processes, clock, num_sites=num_sites, num_rounds=num_rounds, dim=dim
        )
