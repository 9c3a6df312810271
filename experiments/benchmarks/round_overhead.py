"""Benchmark of one round: ours, stock Flower, and a bare gRPC copy.

    python -m experiments.benchmarks.round_overhead --json round_overhead.json

Every system runs as real processes on loopback, one after the other. All but the copy do the same
work: each site returns the parameters that it received plus its own constant, and the server
averages. "ours-app" is stock Flower's app over our link; "stock-torch" is stock Flower with a
ClientApp that imports torch, as any that trains does.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module

from erosion.simulation.program import run_program
from experiments.benchmarks.measurement import Measurement
from experiments.benchmarks.peers import grpc_copy, stock_flower
from experiments.benchmarks.processes import BenchmarkError
from experiments.benchmarks.report_line import ReportLine, parser_of, report

TINY_DIM = 62  # logistic regression, 30 features, two classes: 2 x (30 + 1)
LARGE_DIM = 11_181_642  # torchvision's resnet18 with ten classes: 45 MB

Measure = Callable[[int, int, int], Measurement]  # num_sites, num_rounds, dim


@dataclass(frozen=True, slots=True)
class Workload:
    """One model size."""

    name: str  # "tiny" or "large"
    dim: int
    num_rounds: int


def measure_ours(module: str, num_sites: int, num_rounds: int, dim: int) -> Measurement:
    """Measure our deployment; imported late, so that the peers run without it."""
    measured: Measurement = import_module(f"experiments.benchmarks.{module}").measure(
        num_sites, num_rounds, dim
    )
    return measured


OURS, OURS_APP = "ours", "ours-app"
SYSTEMS: dict[str, Measure] = {
    OURS: partial(measure_ours, "ours"),
    OURS_APP: partial(measure_ours, "ours_app"),
    "copy": grpc_copy.measure,
    "stock": stock_flower.measure,
    "stock-torch": partial(stock_flower.measure, import_torch=True),
}


def run(
    workloads: Sequence[Workload], systems: Sequence[str], num_sites: int
) -> tuple[dict[str, dict[str, Measurement]], list[str]]:
    """Measure every system on every workload: {workload: {system: measurement}}, and failures."""
    measured: dict[str, dict[str, Measurement]] = {}
    failures: list[str] = []
    for workload in workloads:
        measured[workload.name] = {}
        for system in systems:
            print(
                f"{workload.name}: {num_sites} sites x {workload.num_rounds} rounds x "
                f"{workload.dim:,} floats, {system} ...",
                file=sys.stderr,
                flush=True,
            )
            try:
                measured[workload.name][system] = SYSTEMS[system](
                    num_sites, workload.num_rounds, workload.dim
                )
            except (BenchmarkError, ImportError) as problem:
                failures.append(f"{workload.name}, {system}: {problem}")
    return measured, failures


def table(measured: dict[str, dict[str, Measurement]]) -> str:
    """Median and p95 seconds per round, and peak memory by role, one row per system."""
    lines: list[str] = []
    for workload, by_system in measured.items():
        if by_system:
            lines.append(
                f"{workload:6} {'':12} {'median s':>9} {'p95 s':>9} {'all MB':>7}  MB by role"
            )
        for system, result in by_system.items():
            roles = ", ".join(f"{role} {mb:.0f}" for role, mb in result.peak_memory_mb.items())
            lines.append(
                f"{'':6} {system:12} {result.median_seconds:9.4f} {result.p95_seconds:9.4f} "
                f"{result.total_peak_memory_mb:7.0f}  {roles}"
            )
            if result.seconds_by_part:
                parts = ", ".join(f"{k} {s:.4f}" for k, s in result.seconds_by_part.items())
                lines.append(f"{'':6} {'':12} of which {parts}")
    return "\n".join(lines)


def compare(measured: dict[str, dict[str, Measurement]]) -> list[ReportLine]:
    """Compare ours with each peer by the median round; an app over our link with stock Flower."""
    return [
        ReportLine(
            name=f"round_overhead.{workload}.{'app_' if ours == OURS_APP else ''}vs_{peer}",
            ours=by_system[ours].median_seconds,
            peer=result.median_seconds,
            unit="s/round",
        )
        for workload, by_system in measured.items()
        for ours in (OURS, OURS_APP)
        if ours in by_system
        for peer, result in by_system.items()
        if peer not in (OURS, OURS_APP) and (ours == OURS or peer.startswith("stock"))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is 1 if any system failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.sites or not options.large_dim:
        parser.error("--sites and --large-dim must be 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that clean-up runs
    systems = [s for s in options.only if not (options.skip_stock and s.startswith("stock"))]
    workloads = [
        Workload("tiny", TINY_DIM, options.rounds),
        Workload("large", options.large_dim, options.large_rounds),
    ]
    try:
        measured, failures = run(
            [workload for workload in workloads if workload.num_rounds], systems, options.sites
        )
    except KeyboardInterrupt:
        print("interrupted; every started process has been ended", file=sys.stderr)
        return 130
    print(table(measured))
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    details = {
        workload: {system: asdict(result) for system, result in by_system.items()}
        for workload, by_system in measured.items()
    }
    report(compare(measured), json_path=options.json, details=details)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--rounds", type=_count, default=20, help="of the tiny model; 0 leaves it out"
    )
    parser.add_argument("--sites", type=_count, default=4)
    parser.add_argument("--large-dim", type=_count, default=LARGE_DIM, help="float32 parameters")
    parser.add_argument(
        "--large-rounds", type=_count, default=12, help="of the large model; 0 leaves it out"
    )
    parser.add_argument("--skip-stock", action="store_true", help="stock Flower takes minutes")
    parser.add_argument(
        "--only",
        type=_systems,
        default=list(SYSTEMS),
        metavar="SYSTEM,...",
        help=f"measure these only, of {', '.join(SYSTEMS)}",
    )
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; give 0 or more")
    return count


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
