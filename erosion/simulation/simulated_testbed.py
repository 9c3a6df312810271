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
from erosion_server.coordination.run_end import result_of
from erosion_server.output.tables import print_overview
from erosion_server.output.words import absences, data_check, metric_text
from erosion_server.run.overview import Overview, line_of, overview


def simulate_testbed(
    study_file: Path,
    *,
    data_dir: Path | None,
    weights: Path | None = None,
    device: str = "cpu",
    workers: int | None = None,
    console: Console | None = None,
) -> None:
    """Simulate, with a progress bar on standard error, and print the outcome.

    `device`: what all hospitals train on. `workers` and what is raised: see `simulate`.
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
            )
    console = console or Console(highlight=False)
    if study.has_every_user:
        print_overview(console, side_by_side(study, simulations, time.monotonic() - clock), None)
    else:
        _print(console, simulations[study.user])


def _say(console: Console, found: DataCheck) -> None:
    for sentence in data_check(found):
        console.print(Text(sentence, style="bold yellow"), soft_wrap=True)


def _print(console: Console, found: Simulation) -> None:
    ended = result_of(found, _now(), seconds=0.0)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("arm", *(metric.column for metric in ended.task.metrics), style="dim")
    lines = {**found.evaluation.arms, **ended.references}
    if ended.base_rate:
        lines["base rate"] = ended.base_rate
    for arm, metrics in lines.items():
        table.add_row(arm, *(metric_text(m, metrics.get(m.name)) for m in ended.task.metrics))
    _say(console, found.data_check)
    if ended.leak is not None:
        console.print(Text(ended.leak.sentence(ended.task), style="bold yellow"), soft_wrap=True)
    console.print(table)
    console.print()
    console.print(Text(ended.verdict.text))
    for sentence in absences(ended.absent, named_in=""):
        console.print(Text(sentence))


def side_by_side(study: Study, simulations: Mapping[str, Simulation], seconds: float) -> Overview:
    """Return what a deployment of the study would end with."""
    users = {user: line_of(result_of(found, _now(), 0.0)) for user, found in simulations.items()}
    return overview(study, users, started=_now(), seconds=seconds)


def _now() -> str:
    return datetime.now(UTC).isoformat("T", "seconds")
