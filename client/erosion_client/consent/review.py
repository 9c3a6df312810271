"""A study in plain words for the person who decides: what it asks, what leaves, what changed."""

import json
import re
from collections.abc import Iterator

from erosion_client.consent.approvals import (
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
from erosion_common.algorithms.base import TRAIN
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


def review(site: Site, study: Study, records: Records) -> list[str]:
    """Return the whole text, line by line."""
    part, often = part_asked(site, study), _how_often(site, study)
    names = {entry.name for entry in records.studies.all()} - {study.name}
    like = sorted(name for name in names if skeleton(name) == skeleton(study.name))
    is_unlike = f" (looks like {', '.join(like)}, which is another study here)" if like else ""
    is_named = "" if site.name in study.everyone else f"; {site.name} is not among them"
    user = f"{study.user}{' (this hospital)' if study.user == site.name else ''}"
    if study.has_every_user:
        user = "every hospital in turn, this one included"
    values = _by_place(study.canonical_json())
    return [
        f"Study {study.name}{is_unlike}",
        f"  digest      {study.digest}",
        f"  for         {user}",
        f"  hospitals   {', '.join(_called(study))}{is_named}",
        *_looking_alike(study),
        "",
        "Its arms, by name",
        *(f"  - {line}" for line in _arms(study)),
        "",
        "What it asks of this hospital",
        *(f"  - {line}" for line in (*asked(site, part, records), *often)),
        "",
        "What leaves this hospital",
        *(f"  - {line}" for line in (*leaving(site, part), *often)),
        "",
        "What a run of it uses up here",
        *(f"  - {line}" for line in used_by_a_run(site, study)),
        *(f"  - too little is left: {line}" for line in too_little(site, study, records)),
        *_not_approved_yet(site, study, records),
        "",
        *_refused(site, part),
        *_decided(site, study, records),
        *_changed(study, records),
        "",
        f"Every setting of the study: {len(values)}",
        *(f"  {place} = {values[place]}" for place in sorted(values, key=_order)),
    ]


def _arms(study: Study) -> Iterator[str]:
    """Yield each arm with its method and the hospitals that it asks."""
    for name, arm in sorted(study.arms.items()):
        hospitals = "the user's hospital alone" if arm.user_only else "every hospital"
        other = ""
        if name != arm.algorithm and skeleton(name) in _METHODS:
            other = f" (the name is that of another method: it is {arm.algorithm})"
        yield f"{name}: the method {arm.algorithm}, in rounds that ask {hospitals}{other}"


def _called(study: Study) -> Iterator[str]:
    """Yield the hospitals, with what the study's pages call them."""
    for name in study.everyone:
        called = study.names.get(name)
        yield name if called is None else f"{name} (called {_column(called)})"


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
            yield f"  look alike  {kind}: {' and '.join(map(_column, group))}"


def asked(site: Site, study: Study, records: Records) -> Iterator[str]:
    """Yield the patients, the columns and the work."""
    yield f"patients with {_inputs(study)}"
    if names := _needed(study):  # two studies of other columns use sets that can be subtracted
        yield f"and only those who lack no value of {', '.join(names)}"
    is_user = site.name == study.user
    arms = study.arms_asking(site.name, is_user=is_user)
    each = "each of " if len(arms) > 1 else ""
    which = f"{each}{_many_of(len(arms), 'arm')} ({', '.join(arms)})"
    if arms:
        yield f"local training in {_many_of(study.rounds, 'round')} for {which}"
    else:
        alone = (
            "it only measures"
            if site.name in study.only_measuring
            else "its arms ask the user alone"
        )
        yield f"no local training: {alone}"
    if study.leaves_one_out and arms:
        yield (
            "after that the rounds of one arm again for each other hospital, without that one, and"
            " it measures the model (validation.leave_one_out)"
        )
    if study.validation is not None and not is_user:
        refused = "" if site.limits.validation else ", which limits.validation = false refuses"
        yield (
            f"that the final model of {study.user} is measured on all of these patients, when the"
            f" run ends or later (validation){refused}"
        )
    if trials := sum(num_trials(study, arm) for arm in arms):
        yield (
            f"before that {_many_of(trials, 'trial')} of {longest_arm(study)} rounds, to choose"
            " settings"
        )
        yield "after the trials one candidate for each arm, and no other in the same run"
    yield from _model(study)
    training = study.training
    amount = _many_of(training.steps or 0, "step")
    if training.epochs:
        amount = "1 pass" if training.epochs == 1 else f"{training.epochs:,} passes"
    if site.name in study.hospitals and (is_user or study.privacy is None):
        yield (
            f"a round is {amount} of mini-batches of {training.batch_size} patients"
            + (" in the file's order" if training.order == "sequential" else "")
            + (", in arms that ask nobody else" if study.privacy is not None else "")
        )
    yield from promised(site, study, records)
    if folds := len(folds_of(study)):
        yield (
            f"all of that {folds} times before, each time without one fold of the user's patients,"
            " and the models then predict that fold"
        )
    if site.name == study.user and not folds:
        declared = study.evaluation.split_column is not None
        share = "those" if declared else f"{study.evaluation.test_share:.0%} of the patients"
        yield f"{share} are set aside, and the models are measured on them"


def leaving(site: Site, study: Study) -> Iterator[str]:
    """Yield every kind of figure that is sent, and how often; masked or in the clear."""
    dim, number = _num_parameters(site, study)
    cell, is_user = site.limits.min_cell, site.name == study.user
    is_private = study.privacy is not None and not is_user
    is_masked = study.federation.sealed and not is_user
    yield (
        f"no figure, and no update as a whole, about fewer than {cell} patients (limits.min_cell);"
        " counts and figures of columns are rounded by that"
    )
    yield (
        "in the clear, as all but what is said to be masked or sealed: the coordinator reads it"
        if is_masked
        else "in the clear, all of it: the coordinator reads each of this hospital's updates"
    )
    samples, model = "patients" if study.privacy is not None else "rows or images", study.model
    shape = ""
    if not model.has_free_shapes or model.pretrained is not None or model.frozen:
        shape = ", and how large its model is, with a hash of its layers' shapes"
    yield f"once: the number of training {samples}, and this program's version{shape}"
    described = "patients by what the study predicts"
    if isinstance(study.task, TabularTask):
        described = (
            "patients and rows; of each column patients with and without a value, mean, deviation,"
            " quantiles, and patients by category; of the outcome the same"
        )
    if not is_private:  # also given to `erosion describe`
        yield f"before training, for a comparison with the others: {described}, rounded"
    if study.sends_sums(site.name):
        columns = study.task.input_shape[0]
        subject = "the pooled" if study.scaling == "federated" else "this hospital's"
        yield f"once: rounded sums, for {subject} means and deviations of {columns} columns"
    for name, arm in study.arms.items():
        if name not in study.arms_asking(site.name, is_user=is_user):
            continue
        more = sum(arm.attachment_sizes(dim).values())
        own = arm.own_attachments(len(study.hospitals)) if is_user else {}
        most = more + sum(terms.most_values for terms in own.values())
        further = f"{'up to ' if most > more else ''}{_many_of(most, 'further number')}"
        if is_masked:
            yield from _masked(site, name, number, "with noise, " if is_private else "")
            yield from _disclosed_of_masked(study, name, f", {further}" if most else "", dim)
        else:
            further = f" and {further}" if most else ""
            noise = ", with noise" if is_private else ""
            yield f"{name}: in every round that asks it, a model update of {number}{further}{noise}"
        if arm.discloses:
            yield f"{name}: {arm.discloses}"
        if study.reports_steps and arm.compares_steps:
            yield f"{name}: how many mini-batches each of its rounds took"
        if steps := [step for step in arm.site_steps() if step != TRAIN]:
            yield f"{name}: what the steps {', '.join(steps)} of its rounds ask for in addition"
    if (outputs := study.task.num_outputs) > 2 and not (is_private or is_masked):
        yield (
            f"each update has a part for each of {outputs} classes or intervals of time, which can"
            f" be of a few patients, or of one (limits.min_class = {site.limits.min_class})"
        )
    if is_user:
        yield from _as_user(study, cell)
    elif study.validation is not None and site.limits.validation:
        yield (
            "at the end, or later: how well the final model ranks the patients here, and whether"
            " its predictions come true: figures over all of them with intervals, to three digits,"
            f" only with {cell} patients or more of each class, or with the event and without"
        )
    if folds := len(folds_of(study)):
        yield f"all of this {folds} more times, once for each fold of the user's patients"
    yield (
        "with every answer: what it answers, how long it took and the hash of this site's log; with"
        " an update how many samples it saw; with a refusal why, and the limits concerned"
    )
    yield "never: a patient's row, an image, a date, a name or an identifier"


def _masked(site: Site, arm: str, number: str, noise: str) -> Iterator[str]:
    """Yield what leaves of a peer's update in a sealed round."""
    fewest, share = site.limits.min_summed, site.limits.largest_share
    yield (
        f"{arm}: under masks, in every round that asks it, a model update of {number}, {noise}times"
        f" its weight: nobody reads it, and the coordinator the sum of {fewest + 1} hospitals' or"
        " more (limits.min_summed + 1)"
    )
    yield (
        f"{arm}: with the help of one hospital in the sum, the coordinator reads the sum of"
        f" {fewest} others' or more, none with above {share:g} of it (limits.largest_share); with"
        f" that of {fewest} it may read this hospital's update"
    )


def _disclosed_of_masked(study: Study, arm: str, further: str, dim: int) -> Iterator[str]:
    """Yield what a sealed round discloses of a masked update. `dim` 0: size not known."""
    lengths = ""
    if not dim:
        lengths = ", two lengths of the update where the method needs them"
    elif study.arms[arm].sealed_measure(study.build_context.layout).needs_lengths:
        lengths = ", two lengths of the update"
    yield (
        f"{arm}: sealed for the coordinator, which reads it: in every such round how far that"
        " update is from the user's"
    )
    yield (
        f"{arm}: in the clear, in every such round: public keys, signatures and shares of masks'"
        " secrets, this hospital's rules for a sum (limits.min_summed, largest_share and"
        f" summed_with){lengths}{further}"
    )


def _as_user(study: Study, cell: int) -> Iterator[str]:
    """Yield what the user's hospital sends its coordinator besides its updates."""
    yield "as the user: the models' figures on the test patients, every round and at the end"
    yield (
        "as the user: at the end the comparison of two arms, how many test patients there are, and"
        f" how many by class where these are {cell} or more"
    )
    if not study.federation.sealed and not all(arm.user_only for arm in study.arms.values()):
        yield "as the user: in every round its mean loss on the training patients"
    if isinstance(study.task, TabularTask):
        yield "as the user: at the end which column predicts best alone, and how well"
        is_scaled = study.scaling != "none"
        if is_scaled:
            yield (
                "as the user: at the end the means and deviations by which its columns are scaled,"
                " rounded"
            )
        if stands_in(study.task, scaled=is_scaled):
            yield "as the user: at the end what stands for missing values here, rounded"
    finished = any(arm.finish != "none" for arm in study.arms.values())
    layers = " (with the last layers that the finish fitted here)" if finished else ""
    yield f"as the user: its personal model{layers}, to its coordinator"
    if study.validation is not None:
        yield "as the user: its final model, to every other hospital, which measures it"


def _how_often(site: Site, study: Study) -> list[str]:
    """Return how often all of it is, in a study with every hospital as its user."""
    if not study.has_every_user:
        return []
    users = len(study.hospitals)
    if site.name in study.hospitals and not site.limits.as_user:
        others = f"the {users - 1} other hospitals as the user (limits.as_user = false)"
        return [f"all of it once for each of {others}"]
    return [f"all of it at most once for each of the {users} hospitals as the user"]


def _model(study: Study) -> Iterator[str]:
    """Yield installed code that trains, and the file that the model starts from."""
    model = study.model
    if isinstance(model, InstalledModel):
        yield (
            f"training by code that is installed here: the entry point {model.entry_point!r}, in a"
            f" package with the SHA-256 {model.sha256}"
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
    """Return the columns where a missing value leaves a patient out."""
    task = study.task
    if not isinstance(task, TabularTask):
        return []
    outcomes = () if task.missing == "refuse" else task.target_columns
    features = (feature for feature in task.features if task.policy(feature) == "drop")
    return [_column(column.name) for column in (*features, *outcomes)]


def _many_of(number: int, what: str) -> str:
    """Return the number with a plural: "1 round", "1,024 rounds"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def _column(name: str) -> str:
    """Quote a column that could be mistaken for more than a name; mark one like another's."""
    shown = marked(name)
    if shown != name or re.fullmatch(r"[\w.-]+", name):
        return shown
    return json.dumps(shown, ensure_ascii=False)


def _not_approved_yet(site: Site, study: Study, records: Records) -> Iterator[str]:
    entry = records.studies.get(study.digest)
    if (entry is None or entry.state != "approved") and (full := too_many_approved(site, records)):
        yield f"  - it cannot be approved yet: {full}"


def _refused(site: Site, study: Study) -> Iterator[str]:
    """Yield refusals that the study file alone shows, without counting patients."""
    try:
        check_study(site, study)
    except Refusal as problem:
        yield f"Refused in any case, also once approved: {problem}"


def _decided(site: Site, study: Study, records: Records) -> list[str]:
    """Return the decisions about this very study."""
    decisions = records.studies.decisions(study.digest)
    lines = [f"{state.capitalize()} by {by}, {at}" for state, by, at in decisions]
    holds = decision_about(study, records)
    if holds is not None and holds.digest != study.digest:
        which = f"{holds.state.capitalize()} with study {holds.digest[:12]}, which leads to it,"
        lines.append(f"{which} by {holds.decided_by}, {holds.decided}: that holds")
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
