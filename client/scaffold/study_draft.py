"""`erosion study new`: a commented study file from one hospital's table, valid as it is."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from erosion.client.dataset.codes_for_unknown import CODES, to_be_asked_about
from erosion.client.dataset.column_values import toml_key
from erosion.client.scaffold.column_names import is_person, is_place
from erosion.client.scaffold.column_profile import Kind, Profile
from erosion.client.scaffold.known_units import header_unit
from erosion.client.scaffold.known_words import MISSING_WORDS, SAME_VALUES
from erosion.client.scaffold.patient_key import is_numbered, likely_key, repeats, rows_of_patients
from erosion.common.errors import DataError
from erosion.common.settings.codes import canonical

FEWEST = 10  # patients; a category of fewer is pointed out before the file is handed on
MOST_CLASSES = 10
FEWEST_FOR_TYPICAL = 20  # values
# Patients: a fifth of so many may be told of, and cross-fitting was measured up to about here.
# See docs/evaluation.md.
CROSS_FITTED = range(60, 401)
SHOWN = 8  # columns of a remark
WHY: Mapping[Kind, str] = {
    "identifier": "it seems to tell patients apart (patient under [data] of the site file)",
    "date": "it holds dates (make an age of them: [data.derive] of the site file)",
    "text": "it holds free text, or too many categories",
    "constant": "all its values are the same",
    "empty": "it has no values",
    "number": "it holds numbers",
    "category": "it has too many categories",
}
PLAINLY_NONE = (WHY["text"], WHY["constant"], WHY["empty"])  # said in the file alone
NUMBERED = (
    "it seems by its values to number patients or rows: whole numbers, nearly all different (if it"
    " is a measurement, add it to features, with its unit)"
)
NAMES = "it seems to hold people's names (if it holds none, add it to features)"
CODES_OF_MANY = (
    "it seems to hold codes, too many for categories (if it is a number, add it to features)"
)
NO = SAME_VALUES[1] | SAME_VALUES[3]  # no, or alive

_HEAD = """\
# {name}: predict {target}. A first draft, made from {file}; go through it before you hand it on.
# It goes to every hospital of the study. It holds names of columns, ranges rounded outwards and
# categories, and no patient's values. `erosion schema study` lists every key.

name = "{name}"  # of the study; limits of the sites and the run's folder use it
user = "{user}"  # the hospital that the model is made for; "all": one for each of them
hospitals = [{hospitals}]  # as each site file's `name` has it
rounds = 30  # of every arm; in each, every hospital trains and sends an update
seed = 0  # the same seed gives the same run

scaling = "federated"  # columns, by means and deviations over all hospitals' training patients

[model]  # the same at every hospital
name = "logistic"{model}

[training]  # of each hospital, in every round
epochs = 1  # passes over its patients
batch_size = 16  # patients of a step
learning_rate = 0.1  # size of a step

# What is compared. Every arm runs for all rounds, with the same hospitals.
[arms.weight_erosion]  # erodes the weight of hospitals that are unlike the user
preset = "recommended"  # slowly, by numbers of patients, with an output bias of each hospital's own
[arms.fedavg]          # averages everyone by number of patients
[arms.local]           # the user alone: what collaborating has to beat

[evaluation]  # on the user's patients, by models that were not trained on them
{tested}
compare = ["weight_erosion", "local"]  # the one comparison that the verdict is about

[federation]
start = "all"  # waits for every hospital; "quorum" begins without those that are late
quorum = {quorum}  # hospitals that a round needs, the user among them

[task]
kind = "tabular"  # a row of a table for each patient
{outcome}
missing = "impute"  # a number: the mean; a category: an input of its own. "refuse" or "drop"
"""


def study_draft(
    profiles: Sequence[Profile],
    target: str,
    *,
    name: str,
    hospitals: Sequence[str],
    user: str,
    file: Path,
    time: str | None = None,
) -> tuple[str, list[str]]:
    """The file's text, and what a person should look at. Raises DataError.

    With a column `time` of how long patients were followed, `target` is whether the event happened.
    """
    by_name = {profile.name: profile for profile in profiles}
    if target not in by_name:
        raise DataError(
            f"{file} has no column {target!r}; it has {', '.join(by_name)}. Name one as --target."
        )
    if time is None:
        outcome, remarks = _outcome(by_name[target])
    elif time in by_name:
        outcome, remarks = _survival(by_name[target], by_name[time])
    else:
        raise DataError(f"{file} has no column {time!r}; it has {', '.join(by_name)}.")
    features: list[str] = []
    left_out: dict[str, list[str]] = {}  # why -> columns
    for profile in profiles:
        if profile.name in (target, time):
            continue
        if why := why_no_feature(profile):
            left_out.setdefault(why, []).append(profile.name)
        else:
            features.append(_feature(profile))
            remarks += _remarks(profile)
    remarks += [
        f"{_some(names)}: left out, {why if len(names) == 1 else why.replace('it', 'each', 1)}"
        for why, names in left_out.items()
        if why not in PLAINLY_NONE
    ]
    remarks += _two_marks([p for p in profiles if p.kind == "number" and not why_no_feature(p)])
    key, num_patients = likely_key(profiles), by_name[target].num_rows
    if key is not None and repeats(key):
        num_patients = len(key.counts)
        remarks.append(
            f'{rows_of_patients(key)}: each site file names it (patient = "{_escaped(key.name)}"'
            " under [data]; `erosion site new` writes it), or rows are counted as patients"
        )
    if not features:
        reasons = "".join(f" {_some(names)}: {why}." for why, names in left_out.items())
        raise DataError(
            f"{file} has no column that a model could read, but for the target.{reasons}"
        )
    text = _HEAD.format(
        name=name,
        target=target,
        file=file.name,
        user=user,
        hospitals=", ".join(f'"{hospital}"' for hospital in hospitals),
        quorum=min(2, len(hospitals)),
        model='  # or "mlp", with hidden = [32]',
        outcome=outcome,
        tested=_tested(num_patients, is_class="classes = [" in outcome),
    )
    lines = [
        text,
        "# Fill in the units, so that a wrong one is noticed. Values out of range are refused.",
        "# `typical` is about the middle half of the values. Nothing is refused by it; it tells",
        "# columns and units apart (`erosion site new`, `check`). You may leave it out.",
        "features = [",
        *features,
        "]",
    ]
    lines += [f"# {_escaped(n)}: left out, {why}" for why, names in left_out.items() for n in names]
    return "\n".join(lines) + "\n", remarks


def _tested(num_patients: int, *, is_class: bool) -> str:
    """Cross-fitting where it was measured and is cheap, else a test part."""
    if is_class and num_patients in CROSS_FITTED:
        return (
            "folds = 5  # each patient is predicted by runs of every arm without a fifth of them,\n"
            "repeats = 5  # for as many cuts: 25 runs before the final one. In place of both,\n"
            "# `test_share = 0.3` sets a test part aside: one run, which seldom finds a difference."
        )
    return "test_share = 0.3  # of them, set aside"


def _outcome(target: Profile) -> tuple[str, list[str]]:
    """The lines of the task that say what is predicted."""
    key = f'target = "{_escaped(target.name)}"  # what is predicted'
    if target.kind == "category" and len(target.counts) <= MOST_CLASSES:
        told = [text for text in target.counts if not _is_unknown(text, target.counts)]
        classes = _in_order(told if len(told) > 1 else target.counts)
        listed = ", ".join(f'"{_escaped(value)}"' for value in classes)
        remarks = [
            f"{target.name}: the last class, {classes[-1]!r}, counts as the positive one; change"
            " the order in `classes` if it is another"
        ]
        unsaid = [text for text in target.counts if canonical(text) not in classes]
        if unsaid:
            listed_words = ", ".join(map(repr, unsaid))
            remarks.append(
                f"{target.name}: {listed_words} is no class; each site file says that it is"
                f" missing ({_missing(unsaid[0], target.name)})"
            )
        rare = [text for text in told if target.counts[text] < FEWEST]
        if rare:
            remarks.append(
                f"{target.name}: {', '.join(map(repr, rare[:5]))} are of fewer than {FEWEST}"
                " patients, too few to measure a model on; see whether classes can be joined"
            )
        return f"{key}\nclasses = [{listed}]  # the last is the positive one", remarks
    if target.kind == "number":
        centre, spread = float(target.numbers.mean()), float(target.numbers.std())
        return (
            f'outcome = "regression"  # a number\n{key}\n'
            f"centre = {_short(centre)}  # about the mean\n"
            f"spread = {_short(max(spread, 1e-9))}  # about the standard deviation",
            [],
        )
    raise DataError(
        f"The target {target.name!r} cannot be predicted: {_why(target)}. Name another as --target."
    )


def _survival(event: Profile, time: Profile) -> tuple[str, list[str]]:
    """The lines of the task where a time until an event is predicted."""
    if time.kind == "date" or not time.values:
        raise DataError(f"--time {time.name!r} must be a number; {_why(time)}.")
    codes = _in_order(event.counts)
    if len(codes) != 2:
        raise DataError(
            f"The target {event.name!r} must say whether the event happened: two values. It has"
            f" {len(codes)}."
        )
    times = [value for text, value in time.values.items() for _ in range(time.counts[text])]
    cuts = sorted({_nice(float(np.quantile(times, share))) for share in (0.2, 0.4, 0.6, 0.8)})
    cuts = [cut for cut in cuts if cut > 0]  # many may have died at once
    if len(cuts) < 2:
        raise DataError(f"--time {time.name!r} has too few different values for intervals.")
    unit = _escaped(header_unit(time.name))
    text = (
        f'outcome = "survival"  # when an event happens\n'
        f"cut_points = [{', '.join(f'{cut:.12g}' for cut in cuts)}]"
        "  # ends of the intervals; nothing is predicted beyond the last\n"
        f'target = {{ time = "{_escaped(time.name)}", event = "{_escaped(event.name)}",'
        f' unit = "{unit}", happened = ["{_escaped(codes[1])}"],'
        f' censored = ["{_escaped(codes[0])}"] }}'
    )
    remarks = [
        f"{event.name}: {codes[1]!r} is taken for the event; change `happened` if it is not",
        f"{time.name}: the intervals were made from this hospital's times; look at `cut_points`",
    ]
    return text, remarks


def _is_unknown(text: str, texts: Iterable[str]) -> bool:
    """Whether a value of the target says that it is not known: a word, or 9 beside 0 and 1."""
    if text.lower() in MISSING_WORDS:
        return True
    codes = {float(t) for t in texts if re.fullmatch(r"-?\d+(\.0*)?", t)}
    others = codes - CODES - {9}
    is_code = re.fullmatch(r"-?\d+(\.0*)?", text) is not None and float(text) not in others
    return is_code and len(others) > 1 and others <= {0, 1, 2, 3}


def _in_order(texts: Iterable[str]) -> list[str]:
    """Codes as a study has them, the one that means no or alive first: the last is positive."""
    return sorted(
        dict.fromkeys(map(canonical, texts)), key=lambda code: (code.casefold() not in NO, code)
    )


def _nice(value: float) -> float:
    """Rounded to one significant digit and a half, so that it is nobody's time."""
    step = 10.0 ** math.floor(math.log10(max(value, 1e-9))) / 2
    return round(value / step) * step


def _feature(profile: Profile) -> str:
    name = _escaped(profile.name)
    if profile.kind == "category":
        values = sorted(dict.fromkeys(map(canonical, profile.counts)))
        listed = ", ".join(f'"{_escaped(value)}"' for value in values)
        return f'  {{ name = "{name}", categories = [{listed}] }},{_share(profile)}'
    low, high = rounded_outwards(float(profile.numbers.min()), float(profile.numbers.max()))
    unit = _escaped(header_unit(profile.name))
    keys = f'name = "{name}", unit = "{unit}", range = [{low:.12g}, {high:.12g}]{_typical(profile)}'
    return f"  {{ {keys} }},{_share(profile)}"


def _typical(profile: Profile) -> str:
    """The middle half of the values, where they are enough to tell nobody's."""
    if len(profile.numbers) < FEWEST_FOR_TYPICAL:
        return ""
    low, high = (_short(float(q)) for q in np.percentile(profile.numbers, (25, 75)))
    return f", typical = [{low}, {high}]" if float(low) < float(high) else ""


def _share(profile: Profile) -> str:
    if profile.num_missing == 0:
        return ""
    return f"  # {math.ceil(20 * profile.num_missing / profile.num_rows) * 5} % missing, at most"


def rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """A range that holds all values, a quarter wider on both sides and rounded.

    It tells nobody's value and leaves room for other hospitals' patients. What is never negative
    stays so.
    """
    width = high - low
    step = 10.0 ** math.floor(math.log10(width / 4))
    wide_low, wide_high = low - width / 4, high + width / 4
    start = math.floor(wide_low / step) * step
    end = math.ceil(wide_high / step) * step
    return (max(start, 0.0) if low >= 0 else start), end


def _remarks(profile: Profile) -> list[str]:
    found = []
    if profile.not_numbers:
        some = ", ".join(map(repr, profile.not_numbers[:3]))
        found.append(
            f"{profile.name}: {some} are no numbers; each site file maps them to numbers, or says"
            f" that they are missing ({_missing(profile.not_numbers[0], profile.name)})"
        )
    if profile.unsaid:
        some = ", ".join(map(repr, profile.unsaid[:5]))
        found.append(
            f"{profile.name}: {some} is taken for “not known”; each site file says so"
            f" ({_missing(profile.unsaid[0], profile.name)}), or widen the range"
        )
    if profile.kind == "number" and (zeros := to_be_asked_about(profile.values)):
        found.append(
            f"{profile.name}: {zeros[0]!r} ({sum(profile.counts[text] for text in zeros)} of"
            f" {profile.num_rows} rows) lies far from all other values; if it stands for “not"
            f" known”, each site file says so ({_missing(zeros[0], profile.name)}), else it is"
            " taken for a measurement"
        )
    if profile.thousands:
        found.append(
            f'{profile.name}: digits seem to be grouped by "{profile.thousands}"; declare it as'
            " thousands in the site file"
        )
    if profile.kind == "category":
        rare = [text for text, count in profile.counts.items() if count < FEWEST]
        if rare:
            found.append(
                f"{profile.name}: {', '.join(map(repr, rare[:5]))} are of fewer than {FEWEST}"
                " patients; see whether they may be told to the other hospitals"
            )
        if all(re.fullmatch(r"-?\d+", text) for text in profile.counts):
            found.append(f"{profile.name}: taken for codes; if it is a measurement, give a range")
    return found


def _missing(text: str, column: str) -> str:
    """What a site file writes where a text stands for a missing value."""
    return f'"{_escaped(text)}" = "" under [data.values.{toml_key(column)}]'


def _two_marks(numbers: Sequence[Profile]) -> list[str]:
    """A remark where some features have a decimal comma and others a point."""
    with_mark = {
        mark: [p.name for p in numbers if p.decimal == mark and any(mark in t for t in p.values)]
        for mark in ".,"
    }
    if not all(with_mark.values()):
        return []
    return [
        f"numbers are written with a point in {_some(with_mark['.'])} and with a comma in"
        f" {_some(with_mark[','])}; a site file has one decimal mark, so take those out of features"
        " that are codes"
    ]


def why_no_feature(profile: Profile) -> str:
    """Why a column is left out; "" where it is none that a model should not read."""
    if profile.kind not in ("empty", "constant", "identifier", "date") and is_place(profile.name):
        return (
            "it seems to name a hospital, ward or centre (if several hospitals are in this table,"
            " make a table of each; if it is something else, add it to features)"
        )
    if profile.kind in ("number", "category"):
        return NUMBERED if is_numbered(profile) else ""
    return _why(profile)


def _why(profile: Profile) -> str:
    if profile.kind == "date" and not profile.date_formats:
        return "it seems to hold dates as numbers of days or seconds (write them as dates)"
    if profile.kind == "text" and is_person(profile.name):
        return NAMES
    if profile.kind == "text" and profile.values:
        return CODES_OF_MANY
    return WHY[profile.kind]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _escaped(text: str) -> str:
    """As TOML has it between quotation marks, in one line."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def _short(value: float) -> str:
    """With two significant digits."""
    text = repr(float(np.format_float_positional(float(f"{value:.2g}"), trim="0")))
    return text
