"""Simulates a study over many seeds: the part that one split's luck plays in a result.

    python -m experiments.splits breast-cancer --seeds 20 --json experiments/results/splits.json
        python -m experiments.splits my-study/          with tables and a study.toml

The seed decides the training, the user's test patients, and (where the source splits patients)
which patient is at which hospital. Splits share patients, so the errors are about splits alone.
Where the study fixes its test part (evaluation.split_column), as many as evaluation.test_share says
are drawn in its place, and the other hospitals train on all of their patients."""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erosion.simulation.simulator import Simulation, simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import sites_of_testbed
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.program.command import add_data_dir
from erosion_common.protocol.messages import EvaluateReply, FinalMetrics, Metrics
from erosion_common.rounds.records import curve_of
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import write_atomically
from erosion_server.run import provenance
from experiments.cells import committed, notes_once
from experiments.program import output_file, run_program
from experiments.tables import mean_and_error


def after_each_round(simulation: Simulation, arm: str) -> list[Metrics]:
    """From the first round to the last; rounds without figures are left out."""
    records = simulation.records[arm]
    found = curve_of(records, len(records), simulation.evaluation.arms[arm])
    return [metrics for number, metrics in found if number > 0 and metrics is not None]


def shipped_study(name: str, **changed: Any) -> Study:
    """Return a shipped study with other values of some keys and few resamples."""
    study = load_study(study_path(name))
    evaluation = {"test_share": study.evaluation.test_share, "bootstrap": 100}
    raw = study.model_dump(mode="json") | {"evaluation": evaluation}
    return Study.model_validate(raw | changed)


def one_split(study: Study, data_dir: Path | None, **options: Any) -> EvaluateReply:
    """Return the final figures of the study with the seed that it has; see `simulated_split`."""
    return simulated_split(study, data_dir, **options).evaluation


def simulated_on(study: Study, sites: Mapping[str, Site]) -> Simulation:
    """Simulate the study with the hospitals of these sites."""
    hospitals = {name: Hospital(site) for name, site in sites.items()}
    return simulate(study, hospitals, clock=timeless)


def simulated_split(
    study: Study,
    data_dir: Path | None,
    *,
    min_local_steps: int | None = None,
    folder: Path = Path(),
    references: bool = False,
) -> Simulation:
    """Simulate the study with the seed that it has; with its local references only where asked.

    `min_local_steps`: the hospitals' own limit, where fewer steps than usual are wanted. `folder`:
    where the hospitals' own files are of a study without a [testbed] table.
    """
    if not references:
        evaluation = study.evaluation.model_copy(update={"references": ()})
        study = study.model_copy(update={"evaluation": evaluation})
    with tempfile.TemporaryDirectory() as made:
        sites = sites_of_testbed(
            study, folder, Path(made), data_dir, None, min_local_steps=min_local_steps
        )
        return simulated_on(study, sites)


def measured(
    found: Mapping[str, Metrics], names: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """Return some metrics of every arm, None where one is not defined."""
    return {arm: {name: metrics.get(name) for name in names} for arm, metrics in found.items()}


def figures_of_split(
    found: Mapping[str, Metrics], base_rate: FinalMetrics | None
) -> dict[str, Any]:
    """Return the metrics of classification of all that was found, and of the base rate."""
    assert base_rate is not None
    names = ("log_loss", "accuracy", "auroc")
    figures = measured({**found, "base rate": base_rate}, names)
    return {**figures, "patients": base_rate.num_patients}


def drawn(study: Study) -> Study:
    """Return the study with a test part that the seed decides."""
    if study.evaluation.split_column is None:
        return study
    evaluation = study.evaluation.model_copy(update={"split_column": None})
    print(
        f"{study.name} fixes its test part; here {evaluation.test_share:g} of the user's is drawn"
    )
    return study.model_copy(update={"evaluation": evaluation})


def _figures(study: Study, metrics: Sequence[Metrics]) -> dict[str, list[float]]:
    """Return the task's metrics over the splits where they are defined, and the errors."""
    by_name = {
        metric.name: [value for m in metrics if (value := m.get(metric.name)) is not None]
        for metric in study.task.metrics
    }
    if "accuracy" in by_name:
        return {
            "errors": [(1 - m["accuracy"]) * m.num_patients for m in metrics],
            "log_loss": by_name["log_loss"],
            "auroc": by_name["auroc"],
        }
    return by_name


def main() -> None:
    """Read the command line, simulate, print a line for each arm and the verdicts' counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "study",
        help="a study file, or a folder with study.toml and site files or tables; or"
        " the name of one that comes with erosion; its test part is drawn by evaluation.test_share,"
        " even where evaluation.split_column fixes it",
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0; at least 2")
    add_data_dir(parser)
    parser.add_argument("--json", type=output_file, help="write the figures here")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}; a standard error needs at least 2")
    commit = committed() if options.json else ""
    study_file = study_path(options.study)
    study = drawn(load_study(study_file))
    folder = study_file.resolve().parent
    with notes_once():
        simulated = [
            simulated_split(
                study.model_copy(update={"seed": seed}),
                options.data_dir,
                folder=folder,
                references=True,
            )
            for seed in range(options.seeds)
        ]
    replies = [split.evaluation for split in simulated]
    arms: dict[str, dict[str, tuple[float, float]]] = {}
    for arm in (*study.arms, *study.references):
        metrics = [{**reply.arms, **reply.references}[arm] for reply in replies]
        arms[arm] = {
            name: mean_and_error(values)
            for name, values in _figures(study, metrics).items()
            if len(values) > 1
        }
        figures = ", ".join(f"{name} {m:.3f} ± {e:.3f}" for name, (m, e) in arms[arm].items())
        print(f"{arm}: {figures}")
    reference = study.comparison[1][0] if study.comparison else next(iter(study.arms))
    loss = study.task.verdict_metric
    apart = {
        arm: [reply.arms[arm][loss] - reply.arms[reference][loss] for reply in replies]
        for arm in study.arms
        if arm != reference
    }
    for arm, differences in apart.items():
        m, e = mean_and_error(differences)
        print(f"{arm} minus {reference}: {loss} {m:+.4f} ± {e:.4f}")
    # Papers print the best round. It is chosen by the test patients, so it promises too much.
    best = {
        arm: mean_and_error(
            [min(each[loss] for each in after_each_round(split, arm)) for split in simulated]
        )
        for arm in study.arms
    }
    for arm, (m, e) in best.items():
        print(f"{arm}, in the round that suits the test patients best: {m:.3f} ± {e:.3f}")
    compared = [reply.comparison for reply in replies if reply.comparison]
    verdicts = Counter(each.conclusion for each in compared)
    print(f"verdicts: {dict(verdicts)}")
    opponents = {name: Counter[str]() for name in sorted({each.reference for each in compared})}
    for each in compared:
        opponents[each.reference][each.conclusion] += 1
    for name, conclusions in opponents.items():
        print(f"verdicts against {name}: {dict(conclusions)}")
    if options.json:
        result = {
            "command": provenance.command(),
            "commit": commit,
            "study": study.name,
            "seeds": options.seeds,
            "arms": arms,
            "verdicts": verdicts,
            "verdicts_by_reference": opponents,  # the one that each split's training part chose
            "best_round_loss": best,
            "reference": reference,
            "loss_minus_reference": apart,  # by seed, from 0
        }
        write_atomically(options.json, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    run_program(main)
