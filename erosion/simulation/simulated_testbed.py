"""`erosion testbed --simulate`: the same study without a network, and its figures at the end."""

import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from erosion.simulation.simulator import Simulation, simulate
from erosion.simulation.testbed_sites import sites_of_testbed
from erosion_client.training.hospital import Hospital
from erosion_common.rounds.data_check import DataCheck
from erosion_common.study.study import Study, load_study
from erosion_server.output.tables import print_overview
from erosion_server.output.words import absences, data_check, metric_text
from erosion_server.run.findings import absences as absent
from erosion_server.run.findings import contributions, leak_of
from erosion_server.run.overview import EarlyStop, Overview, UserResult, mean_weights, overview
from erosion_server.run.result import CrossFitting, p_of_last_rounds, verdict, words_for_tested


def simulate_testbed(
    study_file: Path,
    *,
    data_dir: Path | None,
    weights: Path | None = None,
    device: str = "cpu",
    workers: int | None = None,
    stacked: bool | None = None,
    console: Console | None = None,
) -> None:
    """Simulate, with a progress bar on standard error, and print the outcome.

    `device`: what all hospitals train on. `workers`, `stacked` and what is raised: see `simulate`.
    """
    study, clock = load_study(study_file), time.monotonic()
    users = study.hospitals if study.has_every_user else (study.user,)
    simulations: dict[str, Simulation] = {}
    with tempfile.TemporaryDirectory() as made, Progress(console=Console(stderr=True)) as bar:
        folder = study_file.resolve().parent
        sites = sites_of_testbed(study, folder, Path(made), data_dir, weights, device=device)
        hospitals = {name: Hospital(site) for name, site in sites.items()}
        task = bar.add_task(study.name, total=len(users) * study.rounds * len(study.arms))
        for user in users:
            simulations[user] = simulate(
                study.for_user(user) if study.has_every_user else study,
                hospitals,
                lambda _: bar.advance(task),
                weights,
                on_check=lambda compared: _say(bar.console, compared),
                workers=workers,
                stacked=stacked,
            )
    console = console or Console(highlight=False)
    if study.has_every_user:
        print_overview(console, side_by_side(study, simulations, time.monotonic() - clock), None)
    else:
        _print(console, study, simulations[study.user])


def _say(console: Console, found: DataCheck) -> None:
    for sentence in data_check(found):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)


def _print(console: Console, study: Study, found: Simulation) -> None:
    task, ended = type(study.task), found.evaluation
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("arm", *(metric.column for metric in task.metrics), style="dim")
    lines = {**ended.arms, **ended.references}
    if ended.base_rate:
        lines["base rate"] = ended.base_rate
    for arm, metrics in lines.items():
        table.add_row(arm, *(metric_text(m, metrics.get(m.name)) for m in task.metrics))
    _say(console, found.data_check)
    measured = {**ended.arms, **ended.references}
    if (leak := leak_of(task, measured, ended.best_column)) is not None:
        console.print(Text(leak.sentence(task), style="bold yellow"), soft_wrap=True)
    console.print(table)
    console.print()
    tested = words_for_tested(study)
    said = verdict(
        task,
        ended.comparison,
        dict(ended.arms),
        ended.base_rate,
        references=ended.references,
        tested=tested,
        shifted_by=study.task.shifted_by,
        leak=leak,
        p_by_round=p_of_last_rounds(task, found.evaluated, found.records),
    )
    console.print(Text(said.text))
    missing = absent(study.hospitals, study.user, found.records)
    for sentence in absences(missing, named_in=""):
        console.print(Text(sentence))


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
        leak=leak_of(
            type(study.task),
            {**found.evaluation.arms, **found.evaluation.references},
            found.evaluation.best_column,
        ),
        weights=mean_weights(ledger, user),
        stopped={
            arm: EarlyStop(round=final.round, reason=found.records[arm][-1].note)
            for arm, final in found.finals.items()
            if final.stopped
        },
    )
