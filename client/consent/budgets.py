"""The rest of a hospital's budgets, the cost of a run, and the list of its studies."""

from collections.abc import Iterator

from erosion.client.connection.credentials import credentials_for, known_as
from erosion.client.consent.approvals import decision_that_holds, first_entry_of, most_runs_of
from erosion.client.consent.needs import lacking, needs_of
from erosion.client.disclosure.control import DisclosureControl
from erosion.client.records.account import dataset_of
from erosion.client.records.records import Records
from erosion.client.records.studies import StudyEntry
from erosion.client.site_file import Site
from erosion.client.training.privacy import spent_here
from erosion.common.errors import SiteError, StudyError
from erosion.common.study.study import Study


def used_by_a_run(site: Site, study: Study) -> Iterator[str]:
    """Yield what a run uses up, with all parts of a run for every user."""
    needs, budget = needs_of(site, study), site.budget
    yield f"up to {needs.rounds} rounds of arms, of {budget.rounds} (budget.rounds)"
    if needs.evaluations:
        yield f"final figures once, of {budget.evaluations} times (budget.evaluations)"
    users = f", for each of {needs.runs} users" if needs.runs > 1 else ""
    yield f"one of {budget.runs_per_study} runs{users} (budget.runs_per_study)"


def too_little(site: Site, study: Study, records: Records) -> list[str]:
    """Return why a further run for the site file's coordinator would be refused."""
    try:
        coordinator = known_as(credentials_for(site.coordinator))
    except SiteError:  # no keys yet: nothing was answered
        coordinator = ""
    dataset = dataset_of(site)
    problems = [
        *lacking(site.budget, records.answers.used(coordinator, dataset), needs_of(site, study))
    ]
    if (entry := first_entry_of(study, records)) is not None:
        runs = len(records.answers.runs(coordinator, dataset, entry.digest))
        if runs >= most_runs_of(site, entry.digest, records):
            most = site.budget.runs_per_study
            problems.append(f"{runs} runs of it were answered (budget.runs_per_study = {most})")
    return problems


def was_answered(study: Study, records: Records) -> bool:
    """Return whether a run of it was answered, and may continue."""
    entry = first_entry_of(study, records)
    return entry is not None and any(
        records.answers.runs(coordinator, dataset, entry.digest)
        for coordinator, dataset in records.answers.pairs()
    )


def listing(site: Site, records: Records) -> list[str]:
    """Return every study with its state, each coordinator's use of the budgets, and disclosures."""
    return [
        *_studies(site, records),
        "",
        *used_up(site, records),
        *DisclosureControl(site, records=records).disclosed(),
    ]


def _studies(site: Site, records: Records) -> Iterator[str]:
    entries = records.studies.all()
    if not entries:
        yield f"No coordinator has asked {site.name} to take part in a study yet."
    waits = False
    for entry in entries:
        holds = decision_that_holds(entry, records) or entry
        decided = f"waits for a decision since {entry.asked}"
        if holds.decided:
            of = "" if holds.digest == entry.digest else f" with {holds.digest[:12]}"
            decided = f"{holds.state}{of} by {holds.decided_by}, {holds.decided}"
        waits |= not holds.decided
        yield f"{entry.digest[:12]}  {entry.name}  {decided}"
    if waits:
        yield "Look at one with `erosion review SITE.toml DIGEST`."
    if site.approval.automatic == "within_limits":
        yield (
            'approval.automatic = "within_limits": this site'
            " approves every study that its limits allow without a person."
        )


def used_up(site: Site, records: Records) -> list[str]:
    """Return the used budgets of this site's data, coordinator by coordinator."""
    budget, dataset = site.budget, dataset_of(site)
    approved = len(records.studies.all("approved"))
    lines = [f"Approved studies: {approved} of {budget.studies} (budget.studies)"]
    for coordinator, data in records.answers.pairs():
        if data == dataset:
            used = records.answers.used(coordinator, data)
            lines.append(
                f"Coordinator {coordinator}: {used.studies} studies in {used.runs} runs;"
                f" {used.rounds} of {budget.rounds} rounds answered, final figures given"
                f" {used.evaluations} of {budget.evaluations} times"
            )
            column, variants = records.answers.most_variants(coordinator, data)
            if variants > 1:
                lines.append(
                    f"Coordinator {coordinator}: {column} compared with {variants} of"
                    f" {budget.variants} different ranges or categories (budget.variants)"
                )
    return [*lines, *spent_here(site, records)]


def named(digest: str, records: Records) -> StudyEntry:
    """Return the study with this beginning of a digest; raises StudyError for none or several."""
    found = [entry for entry in records.studies.all() if entry.digest.startswith(digest.lower())]
    if len(found) == 1:
        return found[0]
    known = (
        ", ".join(entry.digest[:12] for entry in (found or records.studies.all())[:10]) or "none"
    )
    what = "Several studies begin" if found else "No study that was put to this site begins"
    raise StudyError(f"{what} with {digest!r}; there are: {known}.")
