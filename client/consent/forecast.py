"""What a run of a study would use up of this hospital's budgets, for people here."""

from collections.abc import Iterator

from erosion.client.connection.credentials import credentials_for, known_as
from erosion.client.consent.account import dataset_of
from erosion.client.consent.decisions import book_entry_of, most_runs_of
from erosion.client.consent.needs import lacking, needs_of
from erosion.client.consent.store import ConsentStore
from erosion.client.site_file import Site
from erosion.common.errors import SiteError
from erosion.common.study.study import Study


def used_by_a_run(site: Site, study: Study) -> Iterator[str]:
    """By a run of it, with all parts of one for every user."""
    needs, budget = needs_of(site, study), site.budget
    yield f"up to {needs.rounds} rounds of arms, of {budget.rounds} (budget.rounds)"
    if needs.evaluations:
        yield f"final figures once, of {budget.evaluations} times (budget.evaluations)"
    users = f", for each of {needs.runs} users" if needs.runs > 1 else ""
    yield f"one of {budget.runs_per_study} runs{users} (budget.runs_per_study)"


def too_little(site: Site, study: Study, store: ConsentStore) -> list[str]:
    """Why a further run for the coordinator that the site file names would be refused."""
    try:
        coordinator = known_as(credentials_for(site.coordinator))
    except SiteError:  # no keys yet: nothing was answered
        coordinator = ""
    dataset = dataset_of(site)
    problems = [*lacking(site.budget, store.used(coordinator, dataset), needs_of(site, study))]
    if (entry := book_entry_of(study, store)) is not None:
        runs = len(store.runs(coordinator, dataset, entry.digest))
        if runs >= most_runs_of(site, entry.digest, store):
            most = site.budget.runs_per_study
            problems.append(f"{runs} runs of it were answered (budget.runs_per_study = {most})")
    return problems


def was_answered(study: Study, store: ConsentStore) -> bool:
    """Whether a run of it was answered, which may go on."""
    entry = book_entry_of(study, store)
    return entry is not None and any(
        store.runs(coordinator, dataset, entry.digest) for coordinator, dataset in store.pairs()
    )
