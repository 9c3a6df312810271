"""Checks what a site tells at most, and how much of its budgets is left."""

from collections.abc import Iterator
from contextlib import closing

from erosion.client.cells.cell_book import FILE_NAME as CELLS
from erosion.client.cells.cells import Cells
from erosion.client.consent.forecast import too_little, used_by_a_run, was_answered
from erosion.client.consent.needs import lacking, needs_of
from erosion.client.consent.review_list import used_up
from erosion.client.consent.store import FILE_NAME, NOTHING, ConsentStore
from erosion.client.finding import Finding, failed, ok, warning
from erosion.client.site_file import Site
from erosion.common.errors import SiteError
from erosion.common.study.study import Study


def check_budgets(site: Site) -> Iterator[Finding]:
    """The smallest cell, and what every coordinator has used up; nothing is written."""
    budget, cell = site.budget, site.limits.min_cell
    yield ok("smallest cell", f"{cell} patients: no figure about fewer leaves (limits.min_cell)")
    if not (site.consent_folder / FILE_NAME).exists():
        yield ok(
            "budgets",
            f"nothing is used up of {budget.studies} studies, {budget.rounds} rounds,"
            f" {budget.evaluations} final figures, {budget.sets} sets of patients for each column",
        )
        return
    try:
        with closing(ConsentStore(site.consent_folder)) as store:
            told = Cells(site).told()[1:] if (site.consent_folder / CELLS).exists() else []
            yield ok("budgets", "\n".join([*used_up(site, store), *told]))
    except SiteError as problem:
        yield failed("budgets", str(problem), "restore the file, or name another compute.state")


def check_run(site: Site, study: Study) -> Finding:
    """Whether there is enough left for a run of the study; nothing is written."""
    what, is_begun = "a run", False
    problems = [*lacking(site.budget, NOTHING, needs_of(site, study))]
    try:
        if (site.consent_folder / FILE_NAME).exists():
            with closing(ConsentStore(site.consent_folder)) as store:
                problems = too_little(site, study, store)
                is_begun = was_answered(study, store)
    except SiteError as problem:
        return failed(what, str(problem), "restore the file, or name another compute.state")
    if problems and is_begun:
        return warning(
            what,
            f"one that has begun can go on, not a new one: {'; '.join(problems)}",
            "for a new one raise that under [budget]; it is your decision",
        )
    if problems:
        return failed(what, "; ".join(problems), "raise that under [budget]; it is your decision")
    return ok(what, "\n".join(used_by_a_run(site, study)))
