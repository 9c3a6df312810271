"""A study in plain words for the person who decides: what it asks, what leaves, what changed."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from erosion.client.consent.needs import longest_arm, num_trials
from erosion.client.consent.store import ConsentStore, StudyEntry
from erosion.client.privacy.privacy_words import promised
from erosion.client.site_file import Site
from erosion.client.training.limits import part_asked, problem_with_code
from erosion.common.algorithms.base import TRAIN
from erosion.common.errors import ModelError
from erosion.common.learning.installed import Installed
from erosion.common.rounds.cross_fitting import folds_of
from erosion.common.study.study import Study
from erosion.common.support.plain_text import printable

_MOST_CHANGES = 40  # lines
_MANY_CATEGORIES = 20  # of a column


def review(site: Site, study: Study, store: ConsentStore) -> list[str]:
    """The whole text, line by line."""
    part = part_asked(site, study)
    return [
        f"Study {study.name}",
        f"  digest      {study.digest}",
        f"  for         {_whom(site, study)}",
        f"  hospitals   {', '.join(study.hospitals)}{_unnamed(site, study)}",
        "",
        "What it asks of this hospital",
        *(f"  - {line}" for line in asked(site, part)),
        *(f"  - all of it {often}" for often in _how_often(site, study)),
        "",
        "What leaves this hospital",
        *(f"  - {line}" for line in leaving(site, part)),
        *(f"  - all of it {often}" for often in _how_often(site, study)),
        "",
        *_decided(study, store),
        *_changed(study, store),
    ]


def asked(site: Site, study: Study) -> Iterator[str]:
    """The patients, the columns and the work."""
    yield f"patients with {_inputs(study)}"
    arms = ", ".join(study.arms)
    yield f"local training in {study.rounds} rounds for each of {len(study.arms)} arms ({arms})"
    if study.selection is not None:
        trials = sum(num_trials(study, arm) for arm in study.arms)
        yield f"before that {trials} trials of {longest_arm(study)} rounds, to choose settings"
        yield "after the trials one candidate for each arm, and no other in the same run"
    yield from _model(study)
    training = study.training
    amount = f"{training.epochs} passes" if training.epochs else f"{training.steps} steps"
    yield (
        f"a round is {amount} of mini-batches of {training.batch_size} patients"
        + (" in the file's order" if training.order == "sequential" else "")
        + (", in arms that ask nobody else" if study.privacy is not None else "")
    )
    yield from promised(site, study)
    if folds := len(folds_of(study)):
        yield (
            f"before that all of it {folds} times, each without a fold of the user's patients,"
            " whom the models then predict"
        )
    if site.name == study.user and not folds:
        declared = study.evaluation.split_column is not None
        share = "those" if declared else f"{study.evaluation.test_share:.0%} of the patients"
        yield f"{share} are set aside, and the models are measured on them"


def leaving(site: Site, study: Study) -> Iterator[str]:
    """Every kind of figure that is sent, and how often."""
    dim, number = _num_parameters(site, study)
    cell = site.limits.min_cell
    yield f"nothing about fewer than {cell} patients (limits.min_cell), figures rounded by that"
    yield "once: the number of training patients, and this program's version"
    is_private = study.privacy is not None and site.name != study.user
    if not is_private:
        yield (
            "where asked before training: missing shares, means and quantiles of each column,"
            " rounded"
        )
    if study.sends_sums(site.name):
        columns = study.task.input_shape[0]
        whose = "the pooled" if study.scaling == "federated" else "this hospital's"
        yield f"once: rounded sums, for {whose} means and deviations of {columns} columns"
    for name, arm in study.arms.items():
        more = sum(arm.attachment_sizes(dim).values())
        own = arm.own_attachments(len(study.hospitals)) if site.name == study.user else {}
        most = more + sum(terms.most_values for terms in own.values())
        up_to = "up to " if most > more else ""
        beside = f" and {up_to}{most:,} further numbers" if most else ""
        noise = ", with noise" if is_private else ""
        yield f"{name}: in every round that asks it, a model update of {number}{beside}{noise}"
        if steps := [step for step in arm.site_steps() if step != TRAIN]:
            yield f"{name}: what the steps {', '.join(steps)} of its rounds ask beside that"
    if site.name == study.user:
        yield "as the user: the models' figures on the test patients, every round and at the end"
        yield "as the user: its personal model, to its coordinator"
    if folds := len(folds_of(study)):
        yield f"all of this {folds} times more, for as many folds of the user's patients"
    yield "never: a patient's row, an image, a date, a name or an identifier"


def _how_often(site: Site, study: Study) -> Iterator[str]:
    """Of a study with every hospital as its user."""
    if not study.has_every_user:
        return
    if site.name in study.hospitals and not site.limits.as_user:
        others = len(study.hospitals) - 1
        yield f"once for each of the {others} other hospitals as the user (limits.as_user = false)"
    else:
        yield f"once for each of the {len(study.hospitals)} hospitals as the user"


def _model(study: Study) -> Iterator[str]:
    """Whose code trains, where it is not the program's own, and from which file it starts."""
    model = study.model
    if isinstance(model, Installed):
        yield (
            f"training by code that is installed here: the entry point {model.entry_point!r}, whose"
            f" package has the SHA-256 {model.sha256}"
        )
    if model.pretrained is not None:
        yield (
            f"a model that starts from the file {model.pretrained.file} with the SHA-256"
            f" {model.pretrained.sha256}"
        )
    if model.frozen:
        yield f"the parameters {', '.join(model.frozen)} stay as they are and never leave"
    if study.training.augmentation is not None:
        yield "images changed at random while the model is trained (training.augmentation)"


def _num_parameters(site: Site, study: Study) -> tuple[int, str]:
    """How many numbers an update has, as a number and in words.

    Code of somebody else's is not run to find out before the site's limits allow it.
    """
    if isinstance(study.model, Installed) and problem_with_code(study.model, site.limits):
        return 0, "as many numbers as the installed model has"
    try:
        layout = study.build_context.layout()
    except ModelError as problem:
        return 0, f"a size that is not known yet (the model cannot be made here: {problem})"
    dim = max(int(place.stop) for place in layout.values())
    return dim, f"{dim:,} numbers"


def _unnamed(site: Site, study: Study) -> str:
    return "" if site.name in study.hospitals else f"; {site.name} is not among them"


def _whom(site: Site, study: Study) -> str:
    if study.has_every_user:
        return "every hospital in turn, this one included"
    return f"{study.user}{' (this hospital)' if study.user == site.name else ''}"


def _inputs(study: Study) -> str:
    """Every column by its name: a person decides about each."""
    outcome = ", ".join(_column(column.name) for column in study.task.target_columns)
    split = study.evaluation.split_column
    also = "" if split is None else f", and {_column(split)}, which says whom nobody trains on"
    features = getattr(study.task, "features", None)
    if features is None:
        return f"images of shape {tuple(study.task.input_shape)} and their {outcome}{also}"
    names = ", ".join(
        _column(feature.name) + _many(len(getattr(feature, "categories", ())))
        for feature in features
    )
    return f"{len(features)} columns ({names}), the outcome ({outcome}){also}"


def _many(categories: int) -> str:
    """How many categories a column has, where they are many: patients are counted by each."""
    return f" ({categories:,} categories)" if categories > _MANY_CATEGORIES else ""


def _column(name: str) -> str:
    """In quotes where it could be taken for more than a name."""
    shown = printable(name, at_most=80)
    return shown if re.fullmatch(r"[\w.-]+", shown) else json.dumps(shown, ensure_ascii=False)


def _decided(study: Study, store: ConsentStore) -> list[str]:
    """What was decided of this very study."""
    entry, decisions = store.study(study.digest), store.decisions(study.digest)
    if entry is not None and entry.decided and not decisions:  # by an earlier program
        decisions = [(entry.state, entry.decided_by, entry.decided)]
    return [f"{state.capitalize()} by {by}, {at}" for state, by, at in decisions]


def _changed(study: Study, store: ConsentStore) -> list[str]:
    earlier = _last_approved(study, store)
    if earlier is None:
        return ["Nobody here has approved another study of this name."]
    before = dict(_flat(json.loads(earlier.content)))
    after = dict(_flat(json.loads(study.canonical_json())))
    lines = [
        f"  {place}: {_word(before, place)} -> {_word(after, place)}"
        for place in sorted({*before, *after})
        if before.get(place) != after.get(place)
    ]
    more = [f"  ... and {len(lines) - _MOST_CHANGES} more"] if len(lines) > _MOST_CHANGES else []
    heading = f"Changed since {earlier.digest[:12]}, approved {earlier.decided}"
    return [heading, *(lines[:_MOST_CHANGES] or ["  nothing"]), *more]


def _last_approved(study: Study, store: ConsentStore) -> StudyEntry | None:
    entries = [
        entry
        for entry in store.studies("approved")
        if entry.name == study.name and entry.digest != study.digest
    ]
    return max(entries, key=lambda entry: entry.decided, default=None)


def _word(values: Mapping[str, Any], place: str) -> str:
    return json.dumps(values[place]) if place in values else "(not there)"


def _flat(value: object, place: str = "") -> Iterator[tuple[str, Any]]:
    """A study's values by their place: `arms.fedavg.weighting`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{place}.{inner.get('name', number)}")
    else:
        yield place, value
