"""Runs every check and shows the table."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion_client.finding import Finding, Severity, failed, skipped
from erosion_client.preflight.network import check_network
from erosion_client.preflight.site_checks import (
    check_approval,
    check_budgets,
    check_compute,
    check_keys,
    check_proposals,
    check_run,
    check_site_file,
    check_state,
    check_weaker,
)
from erosion_client.preflight.study_checks import (
    KINDS,
    check_model,
    check_sealed,
    check_study_here,
    column_counts,
)
from erosion_client.records.records import Records
from erosion_client.site_file import AppSite, Site, is_for_app, load_app_site, load_site
from erosion_client.training.limits import allow_only_these, part_asked
from erosion_common.errors import DataError
from erosion_common.rounds.bounds import problem_with_heads
from erosion_common.study.study import Study, load_study
from erosion_common.support.text import shown
from erosion_common.tasks.inputs import TabularTask

STYLES = {
    Severity.OK: "green",
    Severity.WARNING: "yellow",
    Severity.FAILED: "red",
    Severity.SKIPPED: "dim",
}


def check_site(site_file: Path, study_file: Path | None, console: Console) -> bool:
    """Show each finding as it is made; return whether nothing failed."""
    if study_file is None and is_for_app(site_file):
        app_site = load_app_site(site_file)
        return _is_well(_show_all(_findings_of_app(app_site, site_file), console), console)
    site = load_site(site_file)
    allow_only_these(site.limits)
    study = load_study(study_file) if study_file else None
    num_failed = _show_all(_findings(site, site_file, study, study_file), console)
    if study is not None and isinstance(study.task, TabularTask):
        _show_columns(site, study.task, console)
    is_well = _is_well(num_failed, console)
    if study is None:
        console.print("Name the study to check the data too: --study STUDY.toml")
    return is_well


def _show_all(findings: Iterator[Finding], console: Console) -> int:
    """Show each finding once it is known; return how many failed."""
    num_failed = 0
    for finding in findings:
        num_failed += finding.outcome is Severity.FAILED
        _show(finding, console)
    return num_failed


def _is_well(num_failed: int, console: Console) -> bool:
    verdict = "This site can take part."
    if num_failed:
        things = "1 thing keeps" if num_failed == 1 else f"{num_failed} things keep"
        verdict = f"{things} this site from taking part."
    console.print()
    console.print(Text(verdict, style="bold"))
    return num_failed == 0


def _findings_of_app(site: AppSite, site_file: Path) -> Iterator[Finding]:
    yield check_site_file(site, site_file)
    yield from check_weaker(site)
    yield from check_keys(site)
    yield from check_network(site)


def _findings(
    site: Site, site_file: Path, study: Study | None, study_file: Path | None
) -> Iterator[Finding]:
    yield check_site_file(site, site_file)
    yield from check_weaker(site)
    yield from check_proposals(site_file, study_file)
    yield from check_keys(site)
    yield from site.data.check()
    yield (state := check_state(site))
    yield check_compute(site)
    if state.outcome is Severity.FAILED:
        yield skipped("budgets", "not until the state is fixed")
        yield from _findings_of_study(site, study, None)
    else:
        with closing(Records.existing(site)) as records:
            yield from check_budgets(site, records)
            yield from _findings_of_study(site, study, records)
            if study is not None:
                files = f"{quote(str(site_file))} --study {quote(str(study_file))}"
                yield check_approval(site, study, f"erosion review {files}", records)
                yield check_run(site, study, records)
    yield from check_sealed(site, study)
    yield from check_network(site)


def _findings_of_study(
    site: Site, study: Study | None, records: Records | None
) -> Iterator[Finding]:
    if study is None:
        return
    if problem := problem_with_heads(study):
        yield failed("study", *problem)
    part = part_asked(site, study)
    yield from check_model(site, part)
    yield from check_study_here(site, part, records)


def _show(finding: Finding, console: Console) -> None:
    line = Table.grid(padding=(0, 2, 0, 0), expand=False)
    line.add_column(width=8, no_wrap=True)
    line.add_column(width=16, no_wrap=True)
    line.add_column(overflow="fold")
    text = Text(shown(finding.text))
    if finding.remedy:
        text.append(f"\n→ {shown(finding.remedy)}", style="bold")
    line.add_row(
        Text(finding.outcome.value, style=STYLES[finding.outcome]), Text(finding.what), text
    )
    console.print(line)


def _show_columns(site: Site, task: TabularTask, console: Console) -> None:
    try:
        counts = list(column_counts(site, task))
    except DataError:
        return  # reported above
    table = Table(title="Patients by column", title_justify="left", title_style="bold", box=SIMPLE)
    table.add_column("column")
    for heading in KINDS:
        table.add_column(heading, justify="right")
    for name, numbers in counts:
        cells = zip(numbers, ("", "yellow", "red", "red"), strict=True)
        table.add_row(
            Text(shown(name)), *(Text(str(n), style=style if n else "") for n, style in cells)
        )
    console.print()
    console.print(table)
