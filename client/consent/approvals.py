"""What people and the site file's rule decided, and which studies a decision covers.

A study with `user = "all"` becomes one study per user; one that leaves settings open becomes
trials, which hold out a fold, and finally the study with its settings chosen. A person approves the
study that leads to them; what it does not lead to is not approved.

A declined study stays declined for every study that asks no less: for all of its columns (or more)
of this hospital, in the same role (or as the user), without better protection of updates. Names,
seeds, rounds, arms and training settings do not count.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from erosion.client.consent.needs import most_runs
from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.records.records import Records
from erosion.client.records.studies import State, StudyEntry, now
from erosion.client.site_file import Site
from erosion.client.training.limits import part_asked
from erosion.common.errors import ErosionError
from erosion.common.rounds.selection import candidates, fold_studies, trials
from erosion.common.settings.base import validate
from erosion.common.study.study import Study, study_from_json
from erosion.common.tasks.inputs import ImageTask, TabularTask

_KEPT = ("name", "hospitals", "rounds", "seed")  # by everything that a study leads to


def leads_to(approved: Study, study: Study) -> bool:
    """Return whether `study` is the approved one or follows from it by its own rules."""
    if study.digest == approved.digest:
        return True
    if any(getattr(approved, key) != getattr(study, key) for key in _KEPT):
        return False  # compared at once, where the next step derives studies
    if approved.has_every_user:
        if study.user not in approved.hospitals:
            return False
        approved = approved.for_user(study.user)
        if study.digest == approved.digest:
            return True
    if approved.evaluation.folds is not None:
        return any(fold.digest == study.digest for fold in fold_studies(approved))
    if approved.selection is None:
        return False
    return _is_trial(approved, study) if study.fold is not None else _is_chosen(approved, study)


def derived(approved: Study) -> Iterator[Study]:
    """Yield the studies that it leads to, except those with chosen settings, which may be many."""
    if approved.has_every_user:
        for user in approved.hospitals:
            yield from derived(approved.for_user(user))
        return
    yield approved
    if approved.evaluation.folds is not None:
        yield from fold_studies(approved)
    elif approved.selection is not None:
        for arm in approved.arms:
            for folds in trials(approved, arm):
                yield from folds


def _is_trial(approved: Study, study: Study) -> bool:
    arms = [arm for arm in study.arms if arm in approved.arms]
    if len(arms) != 1:
        return False
    return any(
        trial.digest == study.digest for folds in trials(approved, arms[0]) for trial in folds
    )


def _is_chosen(approved: Study, study: Study) -> bool:
    """Return whether each arm has one of its candidates, and nothing else differs."""
    if list(study.arms) != list(approved.arms):
        return False
    arms = {}
    for name, arm in study.arms.items():
        own = approved.arms[name].model_dump()
        found = arm.model_dump()
        if not any(
            {**own, **_as_written(approved, name, tried)} == found
            for tried in candidates(approved, name)
        ):
            return False
        arms[name] = found
    chosen = Study.model_validate({**approved.model_dump(), "arms": arms, "selection": None})
    return chosen.digest == study.digest


def _as_written(approved: Study, arm: str, tried: object) -> dict[str, object]:
    """Return a candidate's settings with the values that validation makes of them."""
    raw = {**approved.arms[arm].model_dump(mode="json"), **dict(tried)}  # type: ignore[call-overload]
    try:
        settings = validate(type(approved.arms[arm]), raw, "candidate", ErosionError)
    except ErosionError:
        return {"": None}  # unequal to everything
    return settings.model_dump()


def contracts_of(study: Study) -> dict[str, str]:
    """Return, by column, everything that decides whether a hospital's values are accepted."""
    task = study.task
    contracts = {column.name: repr(column) for column in task.target_columns}
    if isinstance(task, TabularTask):
        for feature in task.features:
            said = feature.model_dump_json(include={"type", "range", "categories"})
            contracts[feature.name] = f"{said} {task.policy(feature)}"
        for column in task.target_columns:  # a patient without an outcome may be left out
            contracts[column.name] += " refuse" if task.missing == "refuse" else " drop"
    if (split := study.evaluation.split_column) is not None:  # neither a feature nor a target
        contracts[split] = "which part"
    return contracts


def contracts_at(site: Site, study: Study) -> dict[str, str]:
    """Return the same for this hospital's data, also under a column's local name.

    A study may name a column either way, or both: it is one column, and everything asked about it
    at once is one question.
    """
    said: dict[str, set[str]] = {}
    for name, contract in contracts_of(study).items():
        for known_as in (name, local_name(site, name)):
            said.setdefault(known_as, set()).add(contract)
    return {name: " and ".join(sorted(contracts)) for name, contracts in said.items()}


def local_name(site: Site, name: str) -> str:
    """Return the name of a study's column in this hospital's data."""
    return site.data.local_name(name) if isinstance(site.data, TableSource) else name


WITHIN_LIMITS = "limits"  # who decided, where it was the site file's rule


def entry_of(study: Study, records: Records, coordinator: str = "") -> StudyEntry:
    """Return a study's entry; a new one, asked about by `coordinator`, where there is none."""
    return records.studies.get(study.digest) or StudyEntry(
        digest=study.digest,
        name=study.name,
        content=study.canonical_json(),
        coordinator=coordinator,
        asked=now(),
        state="pending",
        decided_by="",
        decided="",
    )


def too_many_approved(site: Site, records: Records) -> str | None:
    """Return why no further study may be approved here, or None."""
    approved, most = len(records.studies.all("approved")), site.budget.studies
    return None if approved < most else f"approved studies: {approved} of {most} (budget.studies)"


def most_runs_of(site: Site, digest: str, records: Records) -> int:
    """Return how many runs are answered of the study with this digest."""
    entry = records.studies.get(digest)
    own = None if entry is None else study_of(entry)
    return site.budget.runs_per_study if own is None else most_runs(site, own)


def decide(records: Records, entry: StudyEntry, *, approve: bool, by: str) -> StudyEntry:
    """Record a person's decision about a study, unless it is already the latest of all.

    A later decision may be about a part of the study, which this decision then overrides.
    """
    state: State = "approved" if approve else "declined"
    for latest in records.studies.decided()[:1]:
        if (latest.digest, latest.state, latest.decided_by) == (entry.digest, state, by):
            return latest
    decided = replace(entry, state=state, decided_by=by, decided=now())
    records.studies.put(decided)
    return decided


def decision_about(study: Study, records: Records) -> StudyEntry | None:
    """Return the decision that covers `study`: about it, or about one that leads to it.

    It is the latest by a person, or by the site file's rule where no person decided.
    """
    by_persons_first = sorted(
        records.studies.decided(), key=lambda entry: entry.decided_by == WITHIN_LIMITS
    )
    return next(leading(study, by_persons_first), None)


def first_entry_of(study: Study, records: Records) -> StudyEntry | None:
    """Return the entry that answers to `study` count for: the first decided one that leads to it.

    A later decision about another one is no reason to answer the same question again.
    """
    return next(leading(study, records.studies.decided_first()), None)


def leading(study: Study, entries: Iterable[StudyEntry]) -> Iterator[StudyEntry]:
    """Yield the entries that lead to `study`, in their order."""
    for entry in entries:
        if (own := study_of(entry)) is not None and leads_to(own, study):
            yield entry


def decision_that_holds(entry: StudyEntry, records: Records) -> StudyEntry | None:
    """Return the decision that covers an entry's study; None also where it is unreadable."""
    own = study_of(entry)
    return None if own is None else decision_about(own, records)


def study_of(entry: StudyEntry) -> Study | None:
    """Return an entry's study; None for one that this version cannot read."""
    return _read_text(entry.content)


@lru_cache(maxsize=256)  # many studies are compared with each decided one
def _read_text(content: str) -> Study | None:
    try:
        return study_from_json(content)
    except ErosionError:
        return None


def declined_before(site: Site, study: Study, records: Records) -> StudyEntry | None:
    """Return the study last declined by a person of which this one asks no less."""
    for entry in records.studies.decided():
        if entry.state != "declined" or entry.decided_by == WITHIN_LIMITS:
            continue
        if (declined := study_of(entry)) is not None and _asks_no_less(site, study, declined):
            return entry
    return None


def _asks_no_less(site: Site, study: Study, declined: Study) -> bool:
    new, old = part_asked(site, study), part_asked(site, declined)
    is_better_kept = (new.privacy is not None and old.privacy is None) or (
        new.federation.sealed and not old.federation.sealed
    )
    is_smaller_role = old.user == site.name and new.user != site.name
    asks_for_all = _columns(site, old) <= _columns(site, new)
    return asks_for_all and not is_better_kept and not is_smaller_role


def _columns(site: Site, study: Study) -> set[str]:
    """Return the local names of its columns, under each name that the study uses."""
    names = {local_name(site, name) for name in contracts_of(study)}
    return names | ({"images"} if isinstance(study.task, ImageTask) else set())
