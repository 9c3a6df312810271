"""`erosion study new`: a commented study file from one hospital's table, valid as it is."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from erosion.client.scaffold.column_profile import Profile
from erosion.common.errors import DataError
from erosion.common.settings.codes import canonical

FEWEST = 10  # patients; a category of fewer is pointed out before the file is handed on
MOST_CLASSES = 10

_HEAD = """\
# {name}: predict {target}. A first draft, made from {file}; go through it before you hand it on.
# It goes to every hospital of the study. It holds names of columns, ranges rounded outwards and
# categories, and no patient's values. `erosion schema study` lists every key.

name = "{name}"
user = "{user}"  # the hospital that the model is made for; "all": one for each of them
hospitals = [{hospitals}]
rounds = 30
seed = 0  # the same seed gives the same run

# Columns are scaled by means and deviations over all hospitals' training patients.
scaling = "federated"

[model]
name = "logistic"{model}

[training]  # of each hospital, in every round
epochs = 1
batch_size = 16
learning_rate = 0.1

# What is compared. Every arm runs for all rounds, with the same hospitals.
[arms.weight_erosion]  # erodes the weight of hospitals that are unlike the user
[arms.fedavg]          # averages everyone by number of patients
[arms.local]           # the user alone: what collaborating has to beat

[evaluation]
test_share = 0.3
compare = ["weight_erosion", "local"]  # the one comparison that the verdict is about

[federation]
start = "all"  # waits for every hospital; "quorum" begins without those that are late
quorum = {quorum}

[task]
kind = "tabular"
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
) -> tuple[str, list[str]]:
    """The file's text, and what a person should look at. Raises DataError."""
    by_name = {profile.name: profile for profile in profiles}
    if target not in by_name:
        raise DataError(
            f"{file} has no column {target!r}; it has {', '.join(by_name)}. Name one as --target."
        )
    outcome, remarks = _outcome(by_name[target])
    features, left_out = [], []
    for profile in profiles:
        if profile.name == target:
            continue
        if profile.kind in ("number", "category"):
            features.append(_feature(profile))
            remarks += _remarks(profile)
        else:
            left_out.append(f"# {profile.name}: left out, {_why(profile)}")
    if not features:
        raise DataError(f"{file} has no column that a model could read, but for the target.")
    text = _HEAD.format(
        name=name,
        target=target,
        file=file.name,
        user=user,
        hospitals=", ".join(f'"{hospital}"' for hospital in hospitals),
        quorum=min(2, len(hospitals)),
        model='  # or "mlp", with hidden = [32]',
        outcome=outcome,
    )
    lines = [
        text,
        "# Fill in the units, so that a wrong one is noticed.",
        "features = [",
        *features,
        "]",
    ]
    return "\n".join([*lines, *left_out]) + "\n", remarks


def _outcome(target: Profile) -> tuple[str, list[str]]:
    """The lines of the task that say what is predicted."""
    key = f'target = "{_escaped(target.name)}"'
    if target.kind == "category" and len(target.counts) <= MOST_CLASSES:
        classes = sorted(dict.fromkeys(map(canonical, target.counts)))
        listed = ", ".join(f'"{_escaped(value)}"' for value in classes)
        remarks = [
            f"{target.name}: the last class, {classes[-1]!r}, counts as the positive one; change"
            " the order in `classes` if it is another"
        ]
        return f"{key}\nclasses = [{listed}]  # the last is the positive one", remarks
    if target.kind == "number":
        centre, spread = float(target.numbers.mean()), float(target.numbers.std())
        return (
            f'outcome = "regression"\n{key}\ncentre = {_short(centre)}  # about the mean\n'
            f"spread = {_short(max(spread, 1e-9))}  # about the standard deviation",
            [],
        )
    raise DataError(
        f"The target {target.name!r} cannot be predicted: {_why(target)}. Name another as --target."
    )


def _feature(profile: Profile) -> str:
    name = _escaped(profile.name)
    if profile.kind == "category":
        values = sorted(dict.fromkeys(map(canonical, profile.counts)))
        listed = ", ".join(f'"{_escaped(value)}"' for value in values)
        return f'  {{ name = "{name}", categories = [{listed}] }},{_share(profile)}'
    low, high = rounded_outwards(float(profile.numbers.min()), float(profile.numbers.max()))
    return f'  {{ name = "{name}", unit = "", range = [{low:g}, {high:g}] }},{_share(profile)}'


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
        found.append(f"{profile.name}: {some} are no numbers; map them in the site file")
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


def _why(profile: Profile) -> str:
    return {
        "identifier": "it seems to tell patients apart (patient under [data] of the site file)",
        "date": "it holds dates (make an age of them: [data.derive] of the site file)",
        "text": "it holds free text, or too many categories",
        "constant": "all its values are the same",
        "empty": "it has no values",
        "number": "it holds numbers",
        "category": "it has too many categories",
    }[profile.kind]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _short(value: float) -> str:
    """With two significant digits."""
    text = repr(float(np.format_float_positional(float(f"{value:.2g}"), trim="0")))
    return text
