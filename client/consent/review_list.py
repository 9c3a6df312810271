"""The list that `erosion review` shows, and how one of its studies is named."""

from collections.abc import Iterator

from erosion.client.cells.cells import Cells
from erosion.client.consent.account import dataset_of
from erosion.client.consent.decisions import decision_that_holds
from erosion.client.consent.store import ConsentStore, StudyEntry
from erosion.client.privacy.privacy_words import spent_here
from erosion.client.site_file import Site
from erosion.common.errors import StudyError


def listing(site: Site, store: ConsentStore) -> list[str]:
    """Every study with its state, what every coordinator has used up, and what was told."""
    return [*_studies(site, store), "", *used_up(site, store), *Cells(site).told()]


def _studies(site: Site, store: ConsentStore) -> Iterator[str]:
    entries = store.studies()
    if not entries:
        yield f"No coordinator has asked {site.name} to take part in a study yet."
    waits = False
    for entry in entries:
        holds = decision_that_holds(entry, store) or entry
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
            'approval.automatic = "within_limits": this site approves by itself every study that'
            " its limits allow."
        )


def used_up(site: Site, store: ConsentStore) -> list[str]:
    """The budgets of this site's data, coordinator by coordinator."""
    budget, dataset = site.budget, dataset_of(site)
    approved = len(store.studies("approved"))
    lines = [f"Approved studies: {approved} of {budget.studies} (budget.studies)"]
    for coordinator, data in store.pairs():
        if data == dataset:
            used = store.used(coordinator, data)
            lines.append(
                f"Coordinator {coordinator}: {used.studies} studies in {used.runs} runs;"
                f" {used.rounds} of {budget.rounds} rounds answered, final figures given"
                f" {used.evaluations} of {budget.evaluations} times"
            )
            column, variants = store.most_variants(coordinator, data)
            if variants > 1:
                lines.append(
                    f"Coordinator {coordinator}: {column} held against {variants} of"
                    f" {budget.variants} different ranges or categories (budget.variants)"
                )
    return [*lines, *spent_here(site)]


def named(digest: str, store: ConsentStore) -> StudyEntry:
    """The study whose digest begins so; raises StudyError for none and for several."""
    found = [entry for entry in store.studies() if entry.digest.startswith(digest.lower())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(entry.digest[:12] for entry in (found or store.studies())[:10]) or "none"
    what = "Several studies begin" if found else "No study that was put to this site begins"
    raise StudyError(f"{what} with {digest!r}; there are: {known}.")
