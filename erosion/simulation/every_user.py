"""Simulates a study with every hospital as its user in turn: one personal model each.

    python -m erosion.simulation.every_user heart-disease --data-dir data --html every-user.html

In a deployment, `user = "all"` in the study file does the same. The hospitals' patients are those
that the study file's [testbed] makes; the test set is taken from the current user.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from erosion.simulation.program import output_file, run_program
from erosion.simulation.simulator import Simulation, simulate
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion_client.training.hospital import Hospital
from erosion_common.program.command import add_data_dir
from erosion_common.study.study import EVERY_USER, Study, load_study
from erosion_common.support.files import write_atomically
from erosion_server.output.overview_page import write_overview
from erosion_server.output.tables import print_overview
from erosion_server.run.findings import contributions, leak_of
from erosion_server.run.overview import EarlyStop, Overview, UserResult, mean_weights, overview
from erosion_server.run.result import CrossFitting


def for_every_user(study: Study, hospitals: Mapping[str, Hospital]) -> dict[str, Simulation]:
    """Return one simulation for each hospital as the user."""
    return {user: simulate(study.for_user(user), hospitals) for user in study.hospitals}


def side_by_side(study: Study, simulations: Mapping[str, Simulation], seconds: float) -> Overview:
    """Return what a deployment of the study would end with."""
    users = {user: _line(study, user, found) for user, found in simulations.items()}
    now = datetime.now(UTC).isoformat("T", "seconds")
    return overview(study, users, started=now, seconds=seconds)


def _line(study: Study, user: str, found: Simulation) -> UserResult:
    records = next(iter(found.records.values()))
    folds, repeats = study.evaluation.folds, study.evaluation.repeats
    ledger = contributions(study.hospitals, records)
    return UserResult(
        arms=found.evaluation.arms,
        references=found.evaluation.references,
        class_counts=found.evaluation.class_counts,
        cross_fitting=None if folds is None else CrossFitting(folds=folds, repeats=repeats),
        base_rate=found.evaluation.base_rate,
        comparison=found.evaluation.comparison,
        data_check=found.data_check,
        leak=leak_of(type(study.task), found.evaluation.arms, found.evaluation.best_column),
        weights=mean_weights(ledger, user),
        stopped={
            arm: EarlyStop(round=final.round, reason=found.records[arm][-1].note)
            for arm, final in found.finals.items()
            if final.stopped
        },
    )


def main() -> int:
    """Read the command line, simulate, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("study", help="a study file, or the name of one that comes with erosion")
    add_data_dir(parser)
    parser.add_argument("--html", type=output_file, metavar="FILE", help="also write the page")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="also write the figures as JSON"
    )
    options = parser.parse_args()
    study = load_study(study_path(options.study))
    study = Study.model_validate({**study.model_dump(), "user": EVERY_USER})
    clock = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), options.data_dir)
        hospitals = {name: Hospital(site_of(name, f, study)) for name, f in files.items()}
        simulations = for_every_user(study, hospitals)
    found = side_by_side(study, simulations, time.monotonic() - clock)
    if options.html:
        write_overview(options.html, found)
    if options.json:
        write_atomically(options.json, found.model_dump_json(indent=2) + "\n")
    print_overview(Console(highlight=False), found, options.html)
    return 0


if __name__ == "__main__":
    run_program(main)
