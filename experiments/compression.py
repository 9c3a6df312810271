"""Measures what compression saves on a slow network, and what it costs in accuracy.

    python -m experiments.compression --json FILE [--page docs/compression.md]

Real programs, four hospitals, over 50 Mbit/s and 40 ms in each direction for each of them
(`experiments.slow_line`): the MNIST network for 30 rounds, resnet18 for fewer. A cell that is in
FILE already is not run again.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from erosion.simulation.program import output_file, run_program
from erosion.simulation.testbed import deploy, study_path
from erosion.sources import Data, make_hospitals
from erosion_common.compression.codec import KINDS, Compression
from erosion_common.program.command import add_data_dir
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import write_atomically
from erosion_server.run.journal import read_journal
from erosion_server.run.result import read_result
from erosion_server.run.run_folder import open_run_folder
from experiments.benchmarks.harness import provenance
from experiments.slow_line import SlowLine

HOSPITALS = 4  # of the study's ten, the user first
ARM = "fedavg"
MARK = "<!-- measured -->"  # the page's table stands between two of these


@dataclass(frozen=True, slots=True)
class Workload:
    """A network, and for how long it is trained."""

    network: str
    rounds: int
    training: Mapping[str, Any]


WORKLOADS = (
    Workload("mnist_cnn", 30, {"steps": 8, "batch_size": 32, "learning_rate": 0.1}),
    Workload("resnet18", 3, {"steps": 2, "batch_size": 8, "learning_rate": 0.02}),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    network: str
    compression: str
    rounds: int
    megabytes_per_round: float  # both directions, all hospitals
    seconds_per_round: float  # median
    accuracy: float  # on the user's test images, after the last round
    log_loss: float


def run_cell(workload: Workload, compression: Compression, data_dir: Path) -> Cell:
    """Run one study to its end."""
    whole = load_study(study_path("mnist"))
    study = part_of(whole, workload, compression)
    with tempfile.TemporaryDirectory(prefix="erosion-compression-") as name:
        folder = open_run_folder(Path(name) / "run", study)
        files = make_hospitals(whole, folder.path / "data", data_dir)
        hospitals: dict[str, Data | Mapping[str, Any]] = {
            hospital: files[hospital] for hospital in study.hospitals
        }
        code = deploy(study, folder, hospitals, by_way_of=SlowLine().to)
        if code:
            raise SystemExit(f"{workload.network}, {compression}: exit code {code}")
        result = read_result(folder.result)
        lines = list(read_journal(folder.journal))
    sent = [
        sum((h["bytes_sent"] or 0) + (h["bytes_received"] or 0) for h in line["hospitals"].values())
        for line in lines
    ]
    metrics = result.arms[ARM].metrics
    return Cell(
        workload.network,
        compression,
        workload.rounds,
        sum(sent) / len(sent) / 1e6,
        result.arms[ARM].seconds_per_round.median,
        metrics["accuracy"],
        metrics["log_loss"],
    )


def part_of(whole: Study, workload: Workload, compression: Compression) -> Study:
    """Return the first hospitals of a study, with the workload's network and training."""
    values = whole.model_dump()
    return Study.model_validate(
        {
            **values,
            "name": f"compression-{compression}",
            "hospitals": whole.hospitals[:HOSPITALS],
            "rounds": workload.rounds,
            "model": {"name": workload.network},
            "training": dict(workload.training),
            "arms": {ARM: {}},
            "evaluation": {**values["evaluation"], "compare": None},
            "federation": {
                "compression": compression,
                "round_deadline_seconds": 600.0,
                "join_deadline_seconds": 600.0,
                "quorum": HOSPITALS,
            },
        }
    )


def table(cells: Sequence[Cell]) -> str:
    """Return the page's table."""
    lines = [
        "| network | compression | rounds | MB a round | seconds a round | accuracy | log loss |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {c.network} | {c.compression} | {c.rounds} | {c.megabytes_per_round:.2f}"
        f" | {c.seconds_per_round:.2f} | {c.accuracy:.3f} | {c.log_loss:.3f} |"
        for c in cells
    ]
    return "\n".join(lines)


def main() -> int:
    """Read the command line, run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE")
    parser.add_argument(
        "--page", type=output_file, metavar="FILE", help="the page with the table to replace"
    )
    add_data_dir(parser)
    parser.add_argument("--network", action="append", default=[], help="only this one")
    options = parser.parse_args()
    cells = _cells(options.json)
    for workload in WORKLOADS:
        if options.network and workload.network not in options.network:
            continue
        for kind in KINDS:
            if not any((c.network, c.compression) == (workload.network, kind) for c in cells):
                cells.append(run_cell(workload, kind, options.data_dir))
                content = {"cells": [asdict(cell) for cell in cells], **provenance()}
                options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(table(cells))
    if options.page is not None:
        put_between(MARK, table(cells), options.page)
    return 0


def put_between(mark: str, text: str, page: Path) -> None:
    """Replace what stands between two marks of a page."""
    before, _, after = page.read_text(encoding="utf-8").split(mark)
    write_atomically(page, f"{before}{mark}\n{text}\n{mark}{after}")


def _cells(path: Path) -> list[Cell]:
    if not path.exists():
        return []
    return [Cell(**cell) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


if __name__ == "__main__":
    run_program(main)
