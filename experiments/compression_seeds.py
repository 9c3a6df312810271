"""Measures the accuracy that compression costs, over seeds, on both networks.

    python -m experiments.compression_seeds --seeds 3 --json FILE [--page docs/compression.md]

Every network is trained for ROUNDS rounds. Simulated: a deployment ends with the same parameters. A
run that is in FILE already is not run again.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from erosion.simulation.program import output_file, run_program
from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion_client.training.hospital import Hospital
from erosion_common.compression.codec import KINDS, Compression
from erosion_common.program.command import add_data_dir
from erosion_common.study.study import load_study
from experiments.benchmarks.harness import provenance
from experiments.compression import ARM, WORKLOADS, Workload, part_of, put_between
from experiments.tables import in_words

ROUNDS = 30
MARK = "<!-- seeds -->"  # the page's table stands between two of these


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run."""

    network: str
    compression: str
    seed: int
    accuracy: float  # on the user's test images, after the last round
    log_loss: float


def run(workload: Workload, compression: Compression, seed: int, data_dir: Path) -> Run:
    """Simulate one study to its end."""
    whole = load_study(study_path("mnist")).model_copy(update={"seed": seed})
    study = part_of(whole, replace(workload, rounds=ROUNDS), compression)
    with tempfile.TemporaryDirectory(prefix="erosion-compression-") as folder:
        files = make_hospitals(whole, Path(folder), data_dir)
        hospitals = {name: Hospital(site_of(name, files[name])) for name in study.hospitals}
        metrics = simulate(study, hospitals, clock=timeless).evaluation.arms[ARM]
    return Run(workload.network, compression, seed, metrics["accuracy"], metrics["log_loss"])


def table(runs: Sequence[Run]) -> str:
    """Means with their standard errors; differences from no compression at the same seed."""
    lines = [
        "| network | compression | seeds | accuracy | differs by | log loss | differs by |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for network in dict.fromkeys(run.network for run in runs):
        lines += _rows(network, [run for run in runs if run.network == network])
    return "\n".join(lines)


def _rows(network: str, runs: Sequence[Run]) -> Iterator[str]:
    by_kind = {kind: {r.seed: r for r in runs if r.compression == kind} for kind in KINDS}
    seeds = sorted(set.intersection(*(set(of_kind) for of_kind in by_kind.values())))
    for kind, of_kind in by_kind.items():
        cells = [network, kind, str(len(seeds))]
        for figure in ("accuracy", "log_loss"):
            values = [float(getattr(of_kind[seed], figure)) for seed in seeds]
            plain = [float(getattr(by_kind["none"][seed], figure)) for seed in seeds]
            apart = [value - other for value, other in zip(values, plain, strict=True)]
            cells.append(in_words(values))
            cells.append("" if kind == "none" else in_words(apart, "+.3f"))
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Read the command line, run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--page", type=output_file, metavar="FILE", help="the page with the table to replace"
    )
    parser.add_argument("--network", action="append", default=[], help="only this one")
    add_data_dir(parser)
    options = parser.parse_args()
    runs = read(options.json)
    workloads = [w for w in WORKLOADS if w.network in options.network or not options.network]
    for workload, seed, kind in product(workloads, range(options.seeds), KINDS):
        cell = (workload.network, kind, seed)
        if not any((r.network, r.compression, r.seed) == cell for r in runs):
            runs.append(run(workload, kind, seed, options.data_dir))
            content = {"runs": [asdict(each) for each in runs], **provenance()}
            options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(table(runs))
    if options.page is not None:
        put_between(MARK, table(runs), options.page)
    return 0


def read(path: Path) -> list[Run]:
    """Return the runs that a file has; none where there is no file."""
    if not path.exists():
        return []
    return [Run(**each) for each in json.loads(path.read_text(encoding="utf-8"))["runs"]]


if __name__ == "__main__":
    run_program(main)
