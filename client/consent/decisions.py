"""What people and the site file's rule decided, and which decision holds for a study."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from erosion.client.consent.derivation import leads_to
from erosion.client.consent.needs import most_runs
from erosion.client.consent.store import ConsentStore, State, StudyEntry, now
from erosion.client.site_file import Site
from erosion.common.errors import ErosionError
from erosion.common.study.study import Study, study_from_json

WITHIN_LIMITS = "limits"  # who decided, where the site file's rule did


def entry_of(study: Study, store: ConsentStore, coordinator: str = "") -> StudyEntry:
    """The entry of a study; new, and asked about by `coordinator`, where the book has none."""
    return store.study(study.digest) or StudyEntry(
        digest=study.digest,
        name=study.name,
        content=study.canonical_json(),
        coordinator=coordinator,
        asked=now(),
        state="pending",
        decided_by="",
        decided="",
    )


def too_many_approved(site: Site, store: ConsentStore) -> str | None:
    """Why no further study may be approved here, or None."""
    approved, most = len(store.studies("approved")), site.budget.studies
    return None if approved < most else f"approved studies: {approved} of {most} (budget.studies)"


def most_runs_of(site: Site, digest: str, store: ConsentStore) -> int:
    """Runs that are answered of the study that the book knows by this digest."""
    entry = store.study(digest)
    own = None if entry is None else study_of(entry)
    return site.budget.runs_per_study if own is None else most_runs(site, own)


def decide(store: ConsentStore, entry: StudyEntry, *, approve: bool, by: str) -> StudyEntry:
    """Write a person's decision about a study; where it is the latest of all, it stays as it is.

    Anything decided since may be about a part of the study, for which this decision is to hold.
    """
    state: State = "approved" if approve else "declined"
    for latest in store.decided()[:1]:
        if (latest.digest, latest.state, latest.decided_by) == (entry.digest, state, by):
            return latest
    decided = replace(entry, state=state, decided_by=by, decided=now())
    store.put(decided)
    return decided


def decision_about(study: Study, store: ConsentStore) -> StudyEntry | None:
    """The decision that holds for `study`: about it, or about one that leads to it.

    It is the latest that a person made, and that of the site file's rule where no person made any.
    """
    by_persons_first = sorted(store.decided(), key=lambda entry: entry.decided_by == WITHIN_LIMITS)
    return next(leading(study, by_persons_first), None)


def book_entry_of(study: Study, store: ConsentStore) -> StudyEntry | None:
    """By which the book knows `study`: the first that anything was decided about, and leads to it.

    A later decision about another one is no reason to answer the same question once more.
    """
    return next(leading(study, store.decided_first()), None)


def leading(study: Study, entries: Iterable[StudyEntry]) -> Iterator[StudyEntry]:
    """Those of the entries that lead to `study`, in their order."""
    for entry in entries:
        if (own := study_of(entry)) is not None and leads_to(own, study):
            yield entry


def decision_that_holds(entry: StudyEntry, store: ConsentStore) -> StudyEntry | None:
    """The same for the study of an entry; None also where that cannot be read any more."""
    own = study_of(entry)
    return None if own is None else decision_about(own, store)


def study_of(entry: StudyEntry) -> Study | None:
    """The study of an entry; None for one that this version cannot read, nor anybody ask for."""
    return _read_text(entry.content)


@lru_cache(maxsize=256)  # a list of studies holds each against all that were decided
def _read_text(content: str) -> Study | None:
    try:
        return study_from_json(content)
    except ErosionError:
        return None
