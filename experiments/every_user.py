"""A study with every hospital as its user in turn, simulated: one personal model each.

    python -m experiments.every_user heart-disease --data-dir data

The hospitals' patients and the study's settings are those of the study file; the test part is taken
from the patients of whoever is the user.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from client.hospital import Hospital
from client.site_file import Coordinator, DataSource, Site
from common.messages import FinalMetrics
from common.study import Study, load_study
from experiments.simulator import Simulation, simulate
from experiments.sources import HospitalFiles, make_hospitals
from experiments.testbed import study_path


def for_every_user(study: Study, hospitals: Mapping[str, Hospital]) -> dict[str, Simulation]:
    """One simulation for each hospital as the user."""
    return {
        user: simulate(study.model_copy(update={"user": user}), hospitals)
        for user in study.hospitals
    }


def table(simulations: Mapping[str, Simulation]) -> str:
    """Accuracy, AUROC and log loss of every arm: one line for each user and one for their mean."""
    lines = []
    arms = list(next(iter(simulations.values())).evaluation.arms)
    for arm in arms:
        lines += [arm, f"  {'user':20} {'test':>5} {'accuracy':>9} {'majority':>9} AUROC  log loss"]
        found = {user: s.evaluation.arms[arm] for user, s in simulations.items()}
        lines += [_line(user, metrics) for user, metrics in found.items()]
        mean = sum(metrics.log_loss for metrics in found.values()) / len(found)
        lines.append(f"  {'mean log loss':47} {mean:.3f}")
    return "\n".join(lines)


def _line(user: str, metrics: FinalMetrics) -> str:
    auroc = f"{metrics.auroc:.3f}" if metrics.auroc is not None else "    -"
    return (
        f"  {user:20} {metrics.num_samples:5} {metrics.accuracy:9.3f}"
        f" {metrics.majority_accuracy:9.3f} {auroc} {metrics.log_loss:9.3f}"
    )


def site_of(name: str, files: HospitalFiles) -> Site:
    """A site that is never connected to anything."""
    return Site(
        name=name,
        data=DataSource(path=files.data, columns=dict(files.columns)),
        coordinator=Coordinator(address="127.0.0.1:1"),
    )


def main() -> int:
    """Read the command line, simulate, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("study", help="a study file, or the name of one that comes with erosion")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("EROSION_DATA"))
    options = parser.parse_args()
    study = load_study(study_path(options.study))
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(options.data_dir) if options.data_dir else None
        files = make_hospitals(study, Path(folder), data_dir)
        hospitals = {name: Hospital(site_of(name, f)) for name, f in files.items()}
        print(table(for_every_user(study, hospitals)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
