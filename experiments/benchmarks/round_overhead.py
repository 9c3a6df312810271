"""Benchmark of one round: ours, stock Flower, and a bare gRPC copy.

    python -m experiments.benchmarks.round_overhead --json round_overhead.json

Every system runs as real processes on loopback, one after the other. "ours" is a deployment as
hospitals run it: its sites train for two steps, ask their records for consent, and log what leaves.
"bare" is our coordinator with sites that only add a constant, as those of all peers do: it shows
what the link and the coordinator take. "ours-app" is stock Flower's app over our link;
"stock-torch" is stock Flower with a ClientApp that imports torch, as any that trains does.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from erosion_common.support.network import LOOPBACK, free_ports
from experiments.benchmarks import bare, deployment
from experiments.benchmarks.harness import (
    BenchmarkError,
    Processes,
    ReportLine,
    Rounds,
    count,
    parser_of,
    read_rounds,
    report,
    say,
)
from experiments.benchmarks.peers import grpc_copy, stock_flower
from experiments.program import run_program

TINY_DIM = 62  # logistic regression, 30 features, two classes: 2 x (30 + 1)
APPS = "experiments.benchmarks.peers.stock_app"

Measure = Callable[[int, int, int], Rounds]  # num_sites, num_rounds, dim


def measure_ours(num_sites: int, num_rounds: int, dim: int) -> Rounds:
    """Run a deployment; one round more, for the first is not counted."""
    model = "62" if dim == TINY_DIM else "11.2M"
    found = deployment.measure(deployment.study_of(num_sites - 1, model, num_rounds + 1))
    processor = {f"processor, {who}": each for who, each in found.processor_seconds.items()}
    return Rounds(found.seconds_per_round, processor)


def measure_app(num_sites: int, num_rounds: int, dim: int) -> Rounds:
    """Run stock Flower's app with `erosion server --app` and `erosion client --app`."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes() as processes:
        clock = processes.folder / "rounds.jsonl"
        config = {"num-sites": num_sites, "num-rounds": num_rounds, "dim": dim}
        words = [f"{key}={value}" for key, value in config.items()]
        server = processes.start_module(
            "server",
            "erosion",
            *("server", "--app", f"{APPS}:server_app", "--insecure", "--address", address),
            *("--run-config", " ".join([*words, "import-torch=false", f'clock="{clock}"'])),
        )
        for site in range(num_sites):
            file = processes.folder / f"site{site}" / "site.toml"
            file.parent.mkdir()
            file.write_text(
                f'name = "site{site}"\n[coordinator]\naddress = {json.dumps(address)}\n'
                f"[app]\nsite = {site}\n"
            )
            processes.start_module(
                "client", "erosion", "client", file, "--app", f"{APPS}:client_app"
            )
        processes.wait_for_exit([server])
        return read_rounds(clock, num_sites, num_rounds)


OURS, BARE, OURS_APP = "ours", "bare", "ours-app"
SYSTEMS: dict[str, Measure] = {
    OURS: measure_ours,
    BARE: bare.measure,
    OURS_APP: measure_app,
    "copy": grpc_copy.measure,
    "stock": stock_flower.measure,
    "stock-torch": partial(stock_flower.measure, import_torch=True),
}


def compare(size: str, by_system: dict[str, Rounds]) -> list[ReportLine]:
    """Compare ours with each peer by the median round; an app over our link with stock Flower."""
    return [
        ReportLine(
            f"round_overhead.{size}.{prefix}vs_{peer}",
            by_system[ours].median_seconds,
            result.median_seconds,
            "s/round",
        )
        for ours, prefix in ((OURS, ""), (BARE, "bare_"), (OURS_APP, "app_"))
        if ours in by_system
        for peer, result in by_system.items()
        if peer.startswith("stock")
        or (peer == "copy" and ours != OURS_APP)
        or (peer == BARE and ours == OURS)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is 1 if any system failed."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=count, default=20, help="of the tiny model; 0: none")
    parser.add_argument("--large-rounds", type=count, default=12, help="of the large one; 0: none")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument(
        "--only",
        type=_systems,
        default=list(SYSTEMS),
        metavar="SYSTEM,...",
        help=f"measure these only, of {', '.join(SYSTEMS)}; stock Flower takes minutes",
    )
    options = parser.parse_args(arguments)
    if options.sites < 2:
        parser.error("--sites must be 2 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clean-up runs
    lines, failures, details = [], 0, {}
    for size, dim, num_rounds in (
        ("tiny", TINY_DIM, options.rounds),
        ("large", deployment.LARGE_DIM, options.large_rounds),
    ):
        found: dict[str, Rounds] = {}
        for system in options.only if num_rounds else ():
            say(f"{size}: {options.sites} sites x {num_rounds} rounds x {dim:,} floats, {system}")
            try:
                found[system] = SYSTEMS[system](options.sites, num_rounds, dim)
            except BenchmarkError as problem:
                failures += 1
                say(f"FAILED {size}, {system}: {problem}")
                continue
            parts = found[system].seconds_by_part or {}
            of_it = ", ".join(f"{part} {seconds:.4f}" for part, seconds in parts.items())
            print(
                f"{size:6} {system:12} {found[system].median_seconds:9.4f} s  {of_it}", flush=True
            )
        lines += compare(size, found)
        details[size] = {system: asdict(result) for system, result in found.items()}
    report(lines, json_path=options.json, details=details)
    return 1 if failures else 0


def _systems(text: str) -> list[str]:
    chosen = text.split(",")
    for system in chosen:
        if system not in SYSTEMS:
            raise argparse.ArgumentTypeError(
                f"{system!r} is not known; choose from {', '.join(SYSTEMS)}"
            )
    return chosen


if __name__ == "__main__":
    run_program(main)
