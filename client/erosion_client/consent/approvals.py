"""What people and the site file's rule decided, and which studies a decision covers.

A study with `user = "all"` becomes one study per user; one that leaves settings open becomes
trials, which hold out a fold, and finally the study with its settings chosen. A person approves the
study that leads to them; what it does not lead to is not approved.

A declined study stays declined for every study that asks no less: for all of its columns (or more)
of this hospital, in the same role (or as the user), without better protection of updates. Names,
seeds, rounds, arms and training settings do not count."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import isfinite

from erosion_client.connection.credentials import credentials_for, known_as
from erosion_client.dataset.sources.data_source import TableSource
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.records.account import dataset_of
from erosion_client.records.answers import State, StudyEntry, now
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.limits import lacking, needs_of, part_asked
from erosion_client.training.privacy import spent_here
from erosion_common.errors import ErosionError, SiteError, StudyError
from erosion_common.rounds.selection import candidates, fold_studies, trials
from erosion_common.settings.base import validate
from erosion_common.study.privacy import epsilon_of
from erosion_common.study.study import Study, study_from_json
from erosion_common.support.status import STATUS_NAME
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.survival import Survival

_KEPT = ("name", "hospitals", "rounds", "seed")  # by everything that a study leads to


def leads_to(approved: Study, study: Study) -> bool:
    """Return whether `study` is the approved one or follows from it by its own rules."""
    if study.digest == approved.digest:
        return True
    if any(getattr(approved, key) != getattr(study, key) for key in _KEPT):
        return False  # compared at once, where the next step derives studies
    if approved.has_every_user:
        return study.user in approved.hospitals and leads_to(approved.for_user(study.user), study)
    parts = (part for part in derived(approved, study) if part.fold == study.fold)
    if any(part.digest == study.digest for part in parts):  # a large study's takes a while
        return True
    return study.fold is None and approved.selection is not None and _is_chosen(approved, study)


def derived(approved: Study, like: Study | None = None) -> Iterator[Study]:
    """Yield the studies that it leads to, except those with chosen settings, which may be many.

    `like`: only those that may be this one.
    """
    if approved.has_every_user:
        for user in approved.hospitals:
            yield from derived(approved.for_user(user))
        return
    yield approved
    if approved.evaluation.folds is not None:
        yield from fold_studies(approved)
    elif approved.selection is not None and (like is None or like.fold is not None):
        for arm in approved.arms if like is None else like.arms:
            for folds in trials(approved, arm):
                yield from folds


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
    raw = {**approved.arms[arm].model_dump(mode="json"), **dict(tried)}  # type: ignore[call-overload]
    try:
        settings = validate(type(approved.arms[arm]), raw, "candidate", ErosionError)
    except ErosionError:
        return {"": None}  # unequal to everything
    return settings.model_dump()


def contracts_of(study: Study, hospital: str = "") -> dict[str, str]:
    """Return, by column, everything that decides whether a hospital's values are accepted.

    Also how they are prepared, because sums and updates are of prepared values, and where the user
    cuts them into groups.
    """
    task = study.task
    keys = {"range", "categories", "winsorise", "log", "knots"}
    cuts = study.evaluation.subgroups if hospital == study.user else {}
    contracts = {column.name: repr(column) for column in task.target_columns}
    if isinstance(task, TabularTask):
        for feature in task.features:
            said = feature.model_dump_json(include=keys, exclude_defaults=True)
            groups = f" in groups {cuts[feature.name]}" if feature.name in cuts else ""
            contracts[feature.name] = f"{said} {task.policy(feature)}{groups}"
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
    found, task = contracts_of(study, site.name), study.task
    if isinstance(task, Survival) and site.limits.min_class > 1:
        # A refusal reveals that few patients fall into some interval.
        found[task.target_columns[0].name] += f" cut at {task.cut_points}"
    for name, contract in found.items():
        for each in (name, local_name(site, name)):
            said.setdefault(each, set()).add(contract)
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


def no_run_left(
    site: Site,
    records: Records,
    key: tuple[str, str],
    digest: str,
    run: str = "",
    user: str | None = None,
) -> str | None:
    """Return why no further run of the approved study with this digest is answered, or None.

    `key`: the coordinator and the data set; `run`: one that may be known already, for the `user`.
    """
    table, most = records.answers, site.budget.runs_per_study
    if user is not None and not table.is_answered_for(key, digest, run, user):
        number = table.num_runs_for(key, digest, user)
        if number >= most:
            known = f"{number} runs of this study were answered for {user}"
            return f"{known} (budget.runs_per_study = {most})"
    if table.has_run(key, digest, run):
        return None
    runs = table.runs(key, digest)
    if len(runs) < most:
        return None
    entry = records.studies.get(digest)
    own = None if entry is None else study_of(entry)
    users = 1 if own is None else max(1, needs_of(site, own).runs)
    if len(runs) < most * users:
        return None
    each = f" for each of {users} users" if users > 1 else ""
    return f"{len(runs)} runs of this study were answered (budget.runs_per_study = {most}{each})"


def decide(
    records: Records, entry: StudyEntry, *, approve: bool, by: str, people: int = 1
) -> StudyEntry:
    """Record a person's decision about a study, unless it is already the latest of all.

    Where two people approve, the first one leaves it pending. Raises StudyError where somebody
    decided since `entry` was read, and this person has not seen that: only declining stands then.
    """
    with records.transaction():
        for latest in records.studies.decided()[:1]:
            wanted = "approved" if approve else "declined"
            if (latest.digest, latest.state, latest.decided_by) == (entry.digest, wanted, by):
                return latest
        found = records.studies.get(entry.digest) or entry
        read, holds = ((each.state, each.decided_by, each.decided) for each in (entry, found))
        if approve and holds != read:
            raise StudyError(
                f"Nothing was decided: {found.decided_by} decided about it meanwhile"
                f" ({found.state}, {found.decided}).",
                remedy="Look at it again with `erosion review`, and decide then.",
            )
        state: State = "approved" if approve else "declined"
        if approve and people == 2:
            by_rule = found.decided_by == WITHIN_LIMITS
            first = found.decided_by if found.state == "pending" else ""
            if (found.state == "approved" and not by_rule) or first == by:
                return found
            state, by = ("approved", f"{first} and {by}") if first else ("pending", by)
        decided = replace(entry, state=state, decided_by=by, decided=now())
        records.studies.put(decided)
    return decided


def decision_about(site: Site, study: Study, records: Records) -> StudyEntry | None:
    """Return the decision that covers `study`: about it, or about one that leads to it.

    It is the latest by a person, or by the site file's rule where no person decided, and for as
    long as the file has that rule.
    """
    decided = [entry for entry in records.studies.decided() if not _rule_ended(site, entry)]
    by_persons_first = sorted(decided, key=lambda entry: entry.decided_by == WITHIN_LIMITS)
    return next(leading(study, by_persons_first), None)


def _rule_ended(site: Site, entry: StudyEntry) -> bool:
    return entry.decided_by == WITHIN_LIMITS and site.approval.automatic != "within_limits"


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


def study_of(entry: StudyEntry) -> Study | None:
    """Return an entry's study; None for one that this version cannot read."""
    return _study_in(entry.content)


@lru_cache(maxsize=256)  # many studies are compared with each decided one
def _study_in(content: str) -> Study | None:
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


_WEAKEST_PROMISE = 8.0  # epsilon: with more, a declined study is hardly kept better than without


def _asks_no_less(site: Site, study: Study, declined: Study) -> bool:
    new, old = part_asked(site, study), part_asked(site, declined)
    is_private, was_private = (
        each.privacy is not None and each.privacy.epsilon <= _WEAKEST_PROMISE for each in (new, old)
    )
    is_better_kept = is_private > was_private or new.federation.sealed > old.federation.sealed
    measures, measured = (site.name in each.only_measuring for each in (new, old))
    is_smaller_role = (old.user == site.name and new.user != site.name) or measures > measured
    asks_for_all = _columns(site, old) <= _columns(site, new)
    return asks_for_all and not is_better_kept and not is_smaller_role


def _columns(site: Site, study: Study) -> set[str]:
    """Return the local names of its columns, under each name that the study uses."""
    names = {local_name(site, name) for name in contracts_of(study)}
    return names | ({"images"} if isinstance(study.task, ImageTask) else set())


def used_by_a_run(site: Site, study: Study) -> Iterator[str]:
    """Yield what a run uses up, with all parts of a run for every user."""
    needs, budget = needs_of(site, study), site.budget
    yield f"up to {needs.rounds} rounds of arms, of {budget.rounds} (budget.rounds)"
    if needs.evaluations:
        often = "once" if needs.evaluations == 1 else f"{needs.evaluations} times"
        yield f"final figures {often}, of {budget.evaluations} times (budget.evaluations)"
    users = f", for each of {needs.runs} users" if needs.runs > 1 else ""
    yield f"one of {budget.runs_per_study} runs{users} (budget.runs_per_study)"


def too_little(site: Site, study: Study, records: Records) -> list[str]:
    """Return why a further run for the site file's coordinator would be refused."""
    try:
        coordinator = known_as(credentials_for(site.coordinator))
    except SiteError:  # no keys yet: nothing was answered
        coordinator = ""
    key = coordinator, dataset_of(site)
    problems = [*lacking(site.budget, records.answers.used(key), needs_of(site, study))]
    if (entry := first_entry_of(study, records)) is not None:
        problems += filter(None, [no_run_left(site, records, key, entry.digest)])
    return problems


def was_answered(study: Study, records: Records) -> bool:
    """Return whether a run of it was answered, and may continue."""
    entry = first_entry_of(study, records)
    return entry is not None and any(
        records.answers.runs((coordinator, dataset), entry.digest)
        for coordinator, dataset in records.answers.pairs()
    )


def listing(site: Site, records: Records) -> Iterator[str]:
    """Yield every study with its state, each coordinator's use of the budgets, and disclosures."""
    entries = records.studies.all()
    yield from records.forgotten(site.records_folder / STATUS_NAME)
    if number := records.answers.num_recovered():
        yield (
            f"{number} answers are known from the log alone: these records were restored or lost,"
            " and later decisions and disclosures may be missing. Restore the latest copy if there"
            " is one."
        )
    if not entries:
        yield f"No coordinator has asked {site.name} to take part in a study yet."
    waits = False
    for entry in entries:
        own = study_of(entry)
        holds = (None if own is None else decision_about(site, own, records)) or entry
        if _rule_ended(site, holds):
            holds = replace(holds, state="pending", decided="")
        decided = f"waits for a decision since {entry.asked}"
        if holds.state == "pending" and holds.decided:
            decided = f"approved by {holds.decided_by}, waits for a second person"
        elif holds.decided:
            of = "" if holds.digest == entry.digest else f" with {holds.digest[:12]}"
            decided = f"{holds.state}{of} by {holds.decided_by}, {holds.decided}"
        waits |= holds.state == "pending"
        yield f"{entry.digest[:12]}  {entry.name}  {decided}"
    if waits:
        yield "Look at one with `erosion review SITE.toml DIGEST`."
    if site.approval.automatic == "within_limits":
        yield (
            'approval.automatic = "within_limits": this site'
            " approves every study that its limits allow without a person."
        )
    yield ""
    yield from used_up(site, records)
    yield from DisclosureControl(site, records=records).disclosed()


def used_up(site: Site, records: Records) -> list[str]:
    """Return the used budgets of this site's data, coordinator by coordinator."""
    budget, table = site.budget, records.answers
    approved = len(records.studies.all("approved"))
    lines = [f"Approved studies: {approved} of {budget.studies} (budget.studies)"]
    for key in _pairs_of(site, records):
        used, (column, variants) = table.used(key), table.most_variants(key)
        lines.append(
            f"Coordinator {key[0]}: {used.studies} studies in {used.runs} runs; {used.rounds} of"
            f" {budget.rounds} rounds answered, final figures given {used.evaluations} of"
            f" {budget.evaluations} times"
        )
        if variants > 1:
            lines.append(
                f"Coordinator {key[0]}: {column} compared with {variants} of {budget.variants}"
                " different ranges or categories (budget.variants)"
            )
    return [*lines, *spent_here(site, records)]


def _pairs_of(site: Site, records: Records) -> Iterator[tuple[str, str]]:
    """Yield the coordinators that got answers about this site's data, with the data's name."""
    dataset = dataset_of(site)
    yield from (pair for pair in records.answers.pairs() if pair[1] == dataset)


def account_of(site: Site, records: Records) -> list[tuple[str, str, float | str, float | None]]:
    """Return each budget of this site's data for programs: key, coordinator, used, and limit.

    "": of all coordinators. "inf": privacy without bound. None: there is no limit.
    """
    budget, table = site.budget, records.answers
    found: list[tuple[str, str, float | str, float | None]] = [
        ("studies", "", len(records.studies.all("approved")), budget.studies)
    ]
    for key in _pairs_of(site, records):
        used = table.used(key)
        found += [
            ("rounds", key[0], used.rounds, budget.rounds),
            ("evaluations", key[0], used.evaluations, budget.evaluations),
            ("variants", key[0], table.most_variants(key)[1], budget.variants),
        ]
    strength, limit = records.privacy.spent(dataset_of(site)).in_all, site.lifetime_epsilon
    if strength or limit is not None:
        spent = epsilon_of(strength, site.limits.delta)
        found.append(("epsilon", "", spent if isfinite(spent) else "inf", limit))
    return found


def named(digest: str, records: Records) -> StudyEntry:
    """Return the study with this beginning of a digest; raises StudyError for none or several."""
    found = [entry for entry in records.studies.all() if entry.digest.startswith(digest.lower())]
    if len(found) == 1:
        return found[0]
    known = ", ".join(entry.digest[:12] for entry in (found or records.studies.all())[:10])
    what = "Several studies begin" if found else "No study that was put to this site begins"
    raise StudyError(f"{what} with {digest!r}; there are: {known or 'none'}.")
