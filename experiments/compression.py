"""Measures what compression saves on a slow network, and what it costs in accuracy.

    python -m experiments.compression --json FILE [--page docs/compression.md]
    python -m experiments.compression --seeds 3 --json FILE [--page docs/compression.md]

The first runs real programs, four hospitals over 50 Mbit/s and 40 ms in each direction for each of
them (`experiments.slow_line`): the MNIST network for 30 rounds, resnet18 for fewer. The second
simulates 30 rounds of each network over seeds. A cell that is in FILE already is not run again.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed import deploy, study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion_client.training.hospital import Hospital
from erosion_common.program.command import add_data_dir
from erosion_common.protocol.compression import KINDS, Compression
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import write_atomically
from erosion_server.run.journal import read_journal
from erosion_server.run.result import read_result
from erosion_server.run.run_folder import open_run_folder
from experiments.benchmarks.harness import provenance
from experiments.program import output_file, run_program
from experiments.slow_line import SlowLine
from experiments.tables import in_words

HOSPITALS = 4  # of the study's ten, the user first
ARM = "fedavg"
ROUNDS_OF_A_SEED = 30
ROUNDS = {"mnist_cnn": 30, "resnet18": 3}  # on the slow line
TRAINING: Mapping[str, Mapping[str, Any]] = {
    "mnist_cnn": {"steps": 8, "batch_size": 32, "learning_rate": 0.1},
    "resnet18": {"steps": 2, "batch_size": 8, "learning_rate": 0.02},
}
MARKS = {"cells": "<!-- measured -->", "runs": "<!-- seeds -->"}  # a table stands between two

Cell = Mapping[str, Any]  # one run: what was varied, and its figures


def study_of(whole: Study, network: str, compression: Compression, rounds: int) -> Study:
    """Return the first hospitals of a study, with that network."""
    values = whole.model_dump()
    return Study.model_validate(
        {
            **values,
            "name": f"compression-{compression}",
            "hospitals": whole.hospitals[:HOSPITALS],
            "rounds": rounds,
            "model": {"name": network},
            "training": dict(TRAINING[network]),
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


def on_a_slow_line(network: str, compression: Compression, data_dir: Path) -> Cell:
    """Return figures of real programs: bytes in both directions of all hospitals, and seconds."""
    whole, rounds = load_study(study_path("mnist")), ROUNDS[network]
    study = study_of(whole, network, compression, rounds)
    with tempfile.TemporaryDirectory(prefix="erosion-compression-") as name:
        folder = open_run_folder(Path(name) / "run", study)
        files = make_hospitals(whole, folder.path / "data", data_dir)
        hospitals = {hospital: files[hospital] for hospital in study.hospitals}
        if code := deploy(study, folder, hospitals, by_way_of=SlowLine().to):
            raise SystemExit(f"{network}, {compression}: exit code {code}")
        found = read_result(folder.result).arms[ARM]
        sent = [
            (each["bytes_sent"] or 0) + (each["bytes_received"] or 0)
            for line in read_journal(folder.journal)
            for each in line["hospitals"].values()
        ]
    return {
        "rounds": rounds,
        "megabytes_per_round": sum(sent) / rounds / 1e6,
        "seconds_per_round": found.seconds_per_round.median,
        "accuracy": found.metrics["accuracy"],
        "log_loss": found.metrics["log_loss"],
    }


def simulated(network: str, compression: Compression, seed: int, data_dir: Path) -> Cell:
    """Return the user's figures after the last round; a deployment ends with the same."""
    whole = load_study(study_path("mnist")).model_copy(update={"seed": seed})
    study = study_of(whole, network, compression, ROUNDS_OF_A_SEED)
    with tempfile.TemporaryDirectory(prefix="erosion-compression-") as folder:
        files = make_hospitals(whole, Path(folder), data_dir)
        hospitals = {name: Hospital(site_of(name, files[name])) for name in study.hospitals}
        metrics = simulate(study, hospitals, clock=timeless).evaluation.arms[ARM]
    return {"accuracy": metrics["accuracy"], "log_loss": metrics["log_loss"]}


def table(key: str, cells: Sequence[Cell]) -> str:
    """Return the page's table of what a result file holds under `key`."""
    if key == "cells":
        lines = [
            f"| {c['network']} | {c['compression']} | {c['rounds']}"
            f" | {c['megabytes_per_round']:.2f} | {c['seconds_per_round']:.2f}"
            f" | {c['accuracy']:.3f} | {c['log_loss']:.3f} |"
            for c in cells
        ]
        figures = "rounds | MB a round | seconds a round | accuracy | log loss"
    else:
        lines = [
            row
            for network in dict.fromkeys(cell["network"] for cell in cells)
            for row in _rows(network, [cell for cell in cells if cell["network"] == network])
        ]
        figures = "seeds | accuracy | differs by | log loss | differs by"
    head = [f"| network | compression | {figures} |", "|---|---|--:|--:|--:|--:|--:|"]
    return "\n".join([*head, *lines])


def _rows(network: str, runs: Sequence[Cell]) -> Iterator[str]:
    """Means with their standard errors; differences from no compression at the same seed."""
    by_kind = {kind: {r["seed"]: r for r in runs if r["compression"] == kind} for kind in KINDS}
    seeds = sorted(set.intersection(*(set(of_kind) for of_kind in by_kind.values())))
    for kind, of_kind in by_kind.items():
        row = [network, kind, str(len(seeds))]
        for figure in ("accuracy", "log_loss"):
            values = [float(of_kind[seed][figure]) for seed in seeds]
            plain = [float(by_kind["none"][seed][figure]) for seed in seeds]
            apart = [value - other for value, other in zip(values, plain, strict=True)]
            row += [in_words(values), "" if kind == "none" else in_words(apart, "+.3f")]
        yield f"| {' | '.join(row)} |"


def main() -> None:
    """Read the command line, run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", type=output_file, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, help="how many seeds to simulate")
    parser.add_argument(
        "--page", type=output_file, metavar="FILE", help="the page with the table to replace"
    )
    parser.add_argument("--network", nargs="+", default=list(ROUNDS), help="only these")
    add_data_dir(parser)
    options = parser.parse_args()
    key = "cells" if options.seeds is None else "runs"
    cells = read(key, options.json)
    seeds = [None] if options.seeds is None else range(options.seeds)
    for network, seed, kind in product(options.network, seeds, KINDS):
        wanted = {"network": network, "compression": kind}
        wanted |= {} if seed is None else {"seed": seed}
        if any(wanted.items() <= cell.items() for cell in cells):
            continue
        found = (
            on_a_slow_line(network, kind, options.data_dir)
            if seed is None
            else simulated(network, kind, seed, options.data_dir)
        )
        cells.append({**wanted, **found})
        content = {key: cells, **provenance()}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(table(key, cells))
    if options.page is not None:
        mark = MARKS[key]
        before, _, after = options.page.read_text(encoding="utf-8").split(mark)
        write_atomically(options.page, f"{before}{mark}\n{table(key, cells)}\n{mark}{after}")


def read(key: str, path: Path) -> list[Cell]:
    """Return the cells that a file has; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8"))[key] if path.exists() else []


if __name__ == "__main__":
    run_program(main)
