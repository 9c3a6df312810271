"""A study in plain words for the person who decides: what it asks, what leaves, what changed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from erosion_client.consent.approvals import (
    WITHIN_LIMITS,
    decision_about,
    declined_before,
    too_little,
    too_many_approved,
    used_by_a_run,
)
from erosion_client.records.answers import StudyEntry
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.limits import (
    check_study,
    longest_arm,
    num_trials,
    part_asked,
    problem_with_code,
)
from erosion_client.training.privacy import promised
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import ArmBase
from erosion_common.errors import ModelError, Refusal
from erosion_common.learning.installed import InstalledModel
from erosion_common.rounds.selection import folds_of
from erosion_common.study.study import Study
from erosion_common.support.text import looking_alike, marked, skeleton
from erosion_common.tasks.inputs import TabularTask, stands_in

_METHODS = {skeleton(name) for name in REGISTRY}
# Keys by how much they say about what a hospital is asked; then all others.
_FIRST = ("user", "hospitals", "rounds", "arms", "training", "federation", "privacy", "evaluation",
          "selection", "model", "scaling", "seed", "task")  # fmt: skip
_MANY_CATEGORIES = 20  # of a column
_NONE = "(not there)"
_TEXTS = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: str(value).replace("\n", "\ufffd"),
)


def review(site: Site, study: Study, records: Records) -> list[str]:
    """Return the whole text, line by line."""
    part, often = part_asked(site, study), _how_often(site, study)
    names = {entry.name for entry in records.studies.all()} - {study.name}
    entry, values = records.studies.get(study.digest), _by_place(study.canonical_json())
    refused = None  # what the study file alone shows, without counting patients
    try:
        check_study(site, part)
    except Refusal as problem:
        refused = str(problem)
    called = {name: f"{name} (called {_column(own)})" for name, own in study.names.items()}
    text = _TEXTS.get_template("review.j2").render(
        site=site,
        study=study,
        like=sorted(name for name in names if skeleton(name) == skeleton(study.name)),
        called=[called.get(name, name) for name in study.everyone],
        alike=_looking_alike(study),
        arms=sorted(study.arms.items()),
        is_named_as_another=lambda name, arm: name != arm.algorithm and skeleton(name) in _METHODS,
        asked=[*asked(site, part, records), *often],
        leaving=[*leaving(site, part), *often],
        used=used_by_a_run(site, study),
        too_little=too_little(site, study, records),
        full=None if entry and entry.state == "approved" else too_many_approved(site, records),
        refused=refused,
        decided=_decided(site, study, records),
        changed=_changed(study, records),
        settings=[f"{place} = {values[place]}" for place in sorted(values, key=_order)],
    )
    return text.rstrip("\n").split("\n")


def _looking_alike(study: Study) -> Iterator[str]:
    """Yield names of one kind that could be mistaken for each other."""
    task = study.task
    features = getattr(task, "features", ())
    kinds = {
        "hospitals": (*study.everyone, *study.names.values()),
        "arms": study.arms,
        "columns": [column.name for column in (*features, *task.target_columns)],
    }
    for feature in features:
        kinds[f"categories of {_column(feature.name)}"] = getattr(feature, "categories", ())
    labels = getattr(task, "classes", ())
    kinds["classes"] = [label.name for label in labels]
    kinds["values of the classes"] = [value for label in labels for value in label.values]
    for kind, names in kinds.items():
        for group in looking_alike(names):
            yield f"{kind}: {' and '.join(map(_column, group))}"


def asked(site: Site, study: Study, records: Records) -> list[str]:
    """Return the patients, the columns and the work."""
    arms = study.arms_asking(site.name, is_user=site.name == study.user)
    return _lines(
        "asked.j2",
        site,
        study,
        arms=arms,
        inputs=_inputs(study),
        needed=_needed(study),  # two studies of other columns use sets that can be subtracted
        trials=sum(num_trials(study, arm) for arm in arms),
        longest=longest_arm(study),
        is_installed=isinstance(study.model, InstalledModel),
        promised=promised(site, study, records),
    )


def leaving(site: Site, study: Study) -> list[str]:
    """Return every kind of figure that is sent, and how often; masked or in the clear."""
    is_user, model, task = site.name == study.user, study.model, study.task
    dim, number = _num_parameters(site, study)
    asking = study.arms_asking(site.name, is_user=is_user)
    arms = [
        (name, arm, _further(study, arm, dim, is_user=is_user))
        for name, arm in study.arms.items()
        if name in asking
    ]
    is_table = isinstance(task, TabularTask)
    return _lines(
        "leaving.j2",
        site,
        study,
        arms=arms,
        dim=dim,  # 0: not known
        number=number,
        is_private=study.privacy is not None and not is_user,
        is_masked=study.federation.sealed and not is_user,
        is_table=is_table,
        shows_model=not model.has_free_shapes or model.pretrained is not None or model.frozen,
        asks_nobody=all(arm.user_only for arm in study.arms.values()),
        stands_in=is_table and stands_in(task, scaled=study.scaling != "none"),
        has_finish=any(arm.finish != "none" for arm in study.arms.values()),
    )


def _lines(template: str, site: Site, study: Study, **values: Any) -> list[str]:
    """Return the template's bullets; a value of the study stays within its own."""
    text = _TEXTS.get_template(template).render(
        site=site,
        study=study,
        is_user=site.name == study.user,
        folds=len(folds_of(study)),
        many=_many_of,
        **values,
    )
    bullets = text.removeprefix("- ").rstrip("\n").split("\n- ")
    return [re.sub(r"\n *", " ", bullet) for bullet in bullets]


def _further(study: Study, arm: ArmBase, dim: int, *, is_user: bool) -> str:
    more = sum(arm.attachment_sizes(dim).values())
    own = arm.own_attachments(len(study.hospitals)) if is_user else {}
    most = more + sum(terms.most_values for terms in own.values())
    up_to = "up to " if most > more else ""
    return f"{up_to}{_many_of(most, 'further number')}" if most else ""


def _how_often(site: Site, study: Study) -> list[str]:
    """Return how often all of it is, in a study with every hospital as its user."""
    if not study.has_every_user:
        return []
    users = len(study.hospitals)
    if site.name in study.hospitals and not site.limits.as_user:
        others = f"the {users - 1} other hospitals as the user (limits.as_user = false)"
        return [f"all of it once for each of {others}"]
    return [f"all of it at most once for each of the {users} hospitals as the user"]


def _num_parameters(site: Site, study: Study) -> tuple[int, str]:
    """Return how many numbers an update has, as a number and in words."""
    if isinstance(study.model, InstalledModel) and problem_with_code(study.model, site.limits):
        return 0, "as many numbers as the installed model has"
    try:
        layout = study.build_context.layout()
    except ModelError as problem:
        return 0, f"a size that is not known yet (the model cannot be made here: {problem})"
    dim = max(int(place.stop) for place in layout.values())
    return dim, f"{dim:,} numbers"


def _inputs(study: Study) -> str:
    """Return every column by its name: a person decides about each."""
    outcome = ", ".join(_column(column.name) for column in study.task.target_columns)
    split = study.evaluation.split_column
    also = ""
    if split is not None:
        also = f", and {_column(split)}, which names the patients that nobody trains on"
    features = getattr(study.task, "features", None)
    if features is None:
        return f"images of shape {tuple(study.task.input_shape)} and their {outcome}{also}"
    names = []
    for feature in features:  # patients are counted by each category
        number = len(getattr(feature, "categories", ()))
        many = f" ({number:,} categories)" if number > _MANY_CATEGORIES else ""
        names.append(_column(feature.name) + many)
    return f"{len(features)} columns ({', '.join(names)}), the outcome ({outcome}){also}"


def _needed(study: Study) -> list[str]:
    task = study.task
    if not isinstance(task, TabularTask):
        return []
    outcomes = () if task.missing == "refuse" else task.target_columns
    features = (feature for feature in task.features if task.policy(feature) == "drop")
    return [_column(column.name) for column in (*features, *outcomes)]


def _many_of(number: int, one: str, several: str = "") -> str:
    """Return the number with a plural: "1 round", "1,024 rounds"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def _column(name: str) -> str:
    """Quote a column that could be mistaken for more than a name; mark one like another's."""
    shown = marked(name)
    if shown != name or re.fullmatch(r"[\w.-]+", name):
        return shown
    return json.dumps(shown, ensure_ascii=False)


def _decided(site: Site, study: Study, records: Records) -> list[str]:
    decisions = records.studies.decisions(study.digest)
    lines = [f"{state.capitalize()} by {by}, {at}" for state, by, at in decisions]
    holds = decision_about(site, study, records)
    if holds is not None and holds.digest != study.digest:
        which = f"{holds.state.capitalize()} with study {holds.digest[:12]}, which leads to it,"
        lines.append(f"{which} by {holds.decided_by}, {holds.decided}: that holds")
    if holds is None and any(by == WITHIN_LIMITS for _, by, _ in decisions):
        lines.append('With approval.automatic = "never" now: waits for a person')
    before = declined_before(site, study, records)
    if before is not None and before.digest != study.digest:
        lines.append(
            f"It asks no less than study {before.name} ({before.digest[:12]}), declined by"
            f" {before.decided_by}, {before.decided}"
        )
    return lines


def _changed(study: Study, records: Records) -> list[str]:
    earlier = _last_approved(study, records)
    if earlier is None:
        return ["Nobody here has approved another study."]
    before, after = _by_place(earlier.content), _by_place(study.canonical_json())
    places = [place for place in {*before, *after} if before.get(place) != after.get(place)]
    lines = [
        f"  {place}: {before.get(place, _NONE)} -> {after.get(place, _NONE)}"
        for place in sorted(places, key=_order)
    ]
    other = "" if earlier.name == study.name else f" of another name, {earlier.name}"
    return [
        f"Changed since {earlier.digest[:12]}{other}, approved {earlier.decided}:"
        f" {_many_of(len(lines), 'setting')}",
        *(lines or ["  nothing"]),
    ]


def _last_approved(study: Study, records: Records) -> StudyEntry | None:
    """Return the last approved study of this name, or else the most similar one."""
    entries = [entry for entry in records.studies.all("approved") if entry.digest != study.digest]
    if named := [entry for entry in entries if entry.name == study.name]:
        return max(named, key=lambda entry: entry.decided)
    after = _by_place(study.canonical_json()).items()
    return max(
        entries, key=lambda entry: len(after & _by_place(entry.content).items()), default=None
    )


def _order(place: str) -> tuple[int, str]:
    """Sort key: what says how much is asked first, independent of the study's own order."""
    first = place.partition(".")[0]
    return (_FIRST.index(first) if first in _FIRST else len(_FIRST), place)


def _by_place(content: str) -> dict[str, str]:
    """Return a study's JSON values by their place: `arms.fedavg.weighting`."""
    return {place: json.dumps(value) for place, value in _flat(json.loads(content))}


def _flat(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        if place == "arms":
            yield place, [*value]
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{_key(key)}" if place else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        names = [inner.get("name") for inner in value]
        is_named = all(isinstance(name, str) for name in names) and len({*names}) == len(names)
        if is_named:
            yield place, names  # their order: the last class is the positive one
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{place}.{_key(names[number]) if is_named else number}")
    else:
        yield place, value


def _key(name: object) -> str:
    """Quote a name that could be read as several keys."""
    text = str(name)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text)
