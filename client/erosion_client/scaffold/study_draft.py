"""`erosion study new`: a commented study file from one hospital's table, valid as it is."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import numpy as np

from erosion_client import scaffold
from erosion_client.dataset.single_column import is_code, to_be_asked_about
from erosion_client.scaffold.column_profile import YES_AND_NO, Profile
from erosion_client.scaffold.column_roles import (
    PLAINLY_NONE,
    likely_key,
    merged_cells,
    repeats,
    rows_of_patients,
    why_no_feature,
    why_not,
)
from erosion_client.scaffold.site_draft import FEWEST, escaped, missing_line, quoted, short
from erosion_client.scaffold.value_words import (
    Direction,
    direction,
    in_one_spelling,
    in_order,
    seems_unknown,
)
from erosion_client.scaffold.vocabulary import header_unit
from erosion_common.errors import DataError
from erosion_common.settings.names import canonical
from erosion_common.support.text import some

FEWEST_FOR_TYPICAL = 20  # values
# Patients: a fifth of these is enough for figures; cross-fitting was measured up to about here.
# See docs/evaluation.md.
CROSS_FITTED = range(60, 401)
SHOWN = 8  # columns of a remark


def study_draft(
    profiles: Sequence[Profile],
    target: str,
    *,
    name: str,
    hospitals: Sequence[str],
    user: str,
    file: Path,
    time: str | None = None,
    telling: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, list[str]]:
    """Return the file's text, and what a person should check. Raises DataError.

    `telling`: columns that may be target leakage, and why.

    `target` and `time` are existing columns. With `time`, the follow-up time, `target` is whether
    the event happened.
    """
    by_name = {profile.name: in_one_spelling(profile) for profile in profiles}
    if time is None:
        outcome, remarks = outcome_lines(by_name[target])
    else:
        outcome, remarks = survival_lines(by_name[target], by_name[time])
    for name_of_number in filter(None, (target, time)):
        if by_name[name_of_number].kind == "number":
            remarks += _remarks(by_name[name_of_number])
    profiles = [*by_name.values()]
    features: list[str] = []
    left_out: dict[str, list[str]] = {}  # why -> columns
    coded: list[str] = []
    for profile in profiles:
        if profile.name in (target, time):
            continue
        if why := why_no_feature(profile):
            left_out.setdefault(why, []).append(profile.name)
        else:
            if profile.name in telling:
                line = f"  # ? {escaped(profile.name)}: {telling[profile.name]}; take it out if it"
                features.append(f"{line} is known only after the outcome")
            features.append(_feature(profile))
            remarks += _remarks(profile)
            is_coded = all(re.fullmatch(r"-?\d+", text) for text in profile.counts)
            if profile.kind == "category" and is_coded and len(profile.counts) > YES_AND_NO:
                coded.append(profile.name)
    if coded:
        remarks.append(f"{', '.join(coded)}: taken for codes; give what is measured a range")
    remarks += [
        f"{some(names, SHOWN)}: left out,"
        f" {why if len(names) == 1 else why.replace('it', 'each', 1)}"
        for why, names in left_out.items()
        if why not in PLAINLY_NONE
    ]
    remarks += [
        f"{name}: {why}; make no feature of it if it is known only afterwards"
        for name, why in telling.items()
    ]
    key, num_patients = likely_key(profiles), by_name[target].num_rows
    remarks += filter(None, [merged_cells(key)])
    if key is not None and repeats(key):
        num_patients = len(key.counts)
        remarks.append(
            f"{rows_of_patients(key)}: each site file names it (patient = {quoted(key.name)}"
            " under [data]; `erosion site new` writes it), or rows are counted as patients"
        )
    if not features:
        reasons = "".join(f" {some(names, SHOWN)}: {why}." for why, names in left_out.items())
        raise DataError(
            f"{file} has no column that a model could read, but for the target.{reasons}"
        )
    head = files(scaffold).joinpath("study_file.template").read_text(encoding="utf-8")
    text = head.format(
        name=name,
        target=escaped(target),
        file=escaped(file.name),
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
    lines += [f"# {escaped(n)}: left out, {why}" for why, names in left_out.items() for n in names]
    return "\n".join(lines) + "\n", remarks


def _tested(num_patients: int, *, is_class: bool) -> str:
    """Choose cross-fitting where it was measured and is cheap, else a test part."""
    if is_class and num_patients in CROSS_FITTED:
        return (
            "folds = 5  # each patient is predicted by runs of every arm without a fifth of them,\n"
            "repeats = 5  # for as many cuts: 25 runs before the final one. In place of both,\n"
            "# `test_share = 0.3` sets a test part aside: one run, which seldom finds a difference."
        )
    return "test_share = 0.3  # of them, set aside"


def _feature(profile: Profile) -> str:
    name = quoted(profile.name)
    if profile.kind == "category":
        values = sorted(dict.fromkeys(map(canonical, profile.counts)))
        listed = ", ".join(map(quoted, values))
        return f"  {{ name = {name}, categories = [{listed}] }},{_share(profile)}"
    low, high = rounded_outwards(float(profile.numbers.min()), float(profile.numbers.max()))
    unit = quoted(header_unit(profile.name))
    keys = f"name = {name}, unit = {unit}, range = [{low:.15g}, {high:.15g}]{_typical(profile)}"
    return f"  {{ {keys} }},{_share(profile)}"


def _typical(profile: Profile) -> str:
    """Return the middle half of the values, where there are enough to identify nobody."""
    if len(profile.numbers) < FEWEST_FOR_TYPICAL:
        return ""
    low, high = (short(float(q)) for q in np.percentile(profile.numbers, (25, 75)))
    return f", typical = [{low}, {high}]" if float(low) < float(high) else ""


def _share(profile: Profile) -> str:
    if profile.num_missing == 0:
        return ""
    return f"  # {math.ceil(20 * profile.num_missing / profile.num_rows) * 5} % missing, at most"


def rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """Return a rounded range that holds all values, a quarter wider on both sides.

    It discloses nobody's value and leaves room for other hospitals' patients. A range that is never
    negative stays so.
    """
    width = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(width / 4))
    wide_low, wide_high = low - width / 4, high + width / 4
    start = math.floor(wide_low / step) * step
    end = math.ceil(wide_high / step) * step
    return (max(start, 0.0) if low >= 0 else start), end


def _remarks(profile: Profile) -> list[str]:
    """Return values that may not be measurements, and categories to be looked at."""
    found = []
    if profile.mixed is not None:
        found.append(
            f"{profile.name}: {profile.mixed}; if they are, export the column in one unit"
            + (". The range is that of the others" if profile.mixed.is_named else "")
        )
    if profile.unsaid:
        codes = ", ".join(map(repr, profile.unsaid[:SHOWN]))
        found.append(
            f"{profile.name}: read as “not known”: {codes}; each site file says so"
            f" ({missing_line(profile.unsaid[0], profile.name)}), or widen the range"
        )
    asked = to_be_asked_about(profile.values, profile.counts) if profile.mixed is None else ()
    if profile.kind in ("number", "category") and asked:
        rows = sum(profile.counts[text] for text in asked)
        taken = "measurements" if profile.kind == "number" else "categories"
        found.append(
            f"{profile.name}: far from all other values: {', '.join(map(repr, asked))} ({rows} of"
            f" {profile.num_rows} rows); for “not known” each site file says so"
            f" ({missing_line(asked[0], profile.name)}), else they are read as {taken}"
        )
    if profile.kind == "category":
        rare = [text for text, count in profile.counts.items() if count < FEWEST]
        if rare:
            found.append(
                f"{profile.name}: {', '.join(map(repr, rare[:5]))} are of fewer than {FEWEST}"
                " patients; see whether they may be disclosed to the other hospitals"
            )
        unsaid = [text for text in profile.counts if _is_unknown(text, profile.counts)]
        if unsaid:
            found.append(
                f"{profile.name}: {', '.join(map(repr, unsaid[:SHOWN]))} is read as a category; for"
                f" “not known” each site file says so ({missing_line(unsaid[0], profile.name)}),"
                " and the category goes"
            )
    return found


MOST_CLASSES = 10


def outcome_lines(target: Profile) -> tuple[str, list[str]]:
    """Return the task's lines that define what is predicted."""
    key = f"target = {quoted(target.name)}  # what is predicted"
    if target.kind == "category" and len(target.counts) <= MOST_CLASSES:
        told = [text for text in target.counts if not _is_unknown(text, target.counts)]
        classes = in_order(map(canonical, told if len(told) > 1 else target.counts))
        remarks: list[str] = []
        which = before = ""
        if len(classes) == 2:
            order = direction(target.name, classes)
            classes = [*order.codes]
            which = "  # the last is the positive one"
            remarks.append(_positive(target.name, order))
            if not order.is_sure:
                before = f"# ? {remarks[0]}\n"
        listed = ", ".join(map(quoted, classes))
        unsaid = [text for text in target.counts if canonical(text) not in classes]
        if unsaid:
            listed_words = ", ".join(map(repr, unsaid))
            remarks.append(
                f"{target.name}: {listed_words} is no class; each site file says that it is"
                f" missing ({missing_line(unsaid[0], target.name)})"
            )
        rare = [text for text in told if target.counts[text] < FEWEST]
        if rare:
            remarks.append(
                f"{target.name}: {', '.join(map(repr, rare[:5]))} are of fewer than {FEWEST}"
                " patients, too few to measure a model on; see whether classes can be joined"
            )
        if len(classes) > 2:  # the others may mean "not known"
            remarks += _if_count(target, "taken for classes", "in place of `classes`")
        return f"{key}\n{before}classes = [{listed}]{which}", remarks
    if target.kind == "number":
        centre, spread = float(target.numbers.mean()), float(target.numbers.std())
        return (
            f'outcome = "regression"  # a number\n{key}\n'
            f"centre = {short(centre)}  # about the mean\n"
            f"spread = {short(spread)}  # about the standard deviation",
            _if_count(target, "taken for a measurement", "instead"),
        )
    raise DataError(
        f"The target {target.name!r} cannot be predicted: {why_not(target)}",
        remedy="Name another column as --target.",
    )


def _if_count(target: Profile, taken: str, where: str) -> list[str]:
    """Return a remark where the outcome may be a count: whole numbers from 0 on."""
    rows = [target.counts[text] for text in target.values]
    counted = np.repeat([*target.values.values()], rows)
    if len(rows) < max(len(target.counts), 3) or counted.min() != 0 or (counted % 1).any():
        return []
    return [
        f'{target.name}: {taken}; if it is a count, write outcome = "count", centre ='
        f" {short(float(counted.mean()))} and spread = {short(float(counted.std()))} {where}"
    ]


def survival_lines(event: Profile, time: Profile) -> tuple[str, list[str]]:
    """Return the task's lines where a time until an event is predicted."""
    if time.kind == "date" or not time.values:
        raise DataError(f"--time {time.name!r} must be a number; {why_not(time)}.")
    found = list(dict.fromkeys(map(canonical, event.counts)))
    if len(found) != 2:
        raise DataError(
            f"The target {event.name!r} must say whether the event happened: two values. It has"
            f" {len(found)}."
        )
    order = direction(event.name, found)
    codes = order.codes
    times = [value for text, value in time.values.items() for _ in range(time.counts[text])]
    cuts = sorted({_nice(float(np.quantile(times, share))) for share in (0.2, 0.4, 0.6, 0.8)})
    cuts = [cut for cut in cuts if cut > 0]  # many may have died at once
    if len(cuts) < 2:
        raise DataError(f"--time {time.name!r} has too few different values for intervals.")
    in_name = re.search(r"(?:\b|_)(days|weeks|months|years)$", time.name.casefold())
    unit = quoted(header_unit(time.name) or (in_name[1] if in_name else ""))
    text = (
        f'outcome = "survival"  # when an event happens\n'
        f"cut_points = [{', '.join(f'{cut:.12g}' for cut in cuts)}]"
        "  # ends of the intervals; nothing is predicted beyond the last\n"
        f"target = {{ time = {quoted(time.name)}, event = {quoted(event.name)},"
        f" unit = {unit}, happened = [{quoted(codes[1])}],"
        f" censored = [{quoted(codes[0])}] }}"
    )
    remarks = [
        f"{event.name}: {codes[1]!r} is taken for the event; change `happened` if it is not"
        + ("" if order.is_sure else ", since the words do not say"),
        f"{time.name}: the intervals were made from this hospital's times; look at `cut_points`",
    ]
    return text, remarks


def _is_unknown(text: str, texts: Iterable[str]) -> bool:
    """Return whether a code seems to mean "not known": a word, or 9 with 0 and 1, or 1 to 4."""
    if seems_unknown(text, [*texts]):
        return True
    codes = sorted({float(t) for t in texts if re.fullmatch(r"-?\d+(\.0*)?", t)})
    others: list[float] = []  # that count on from 0 or 1
    for code in codes:
        if code in (0, 1) or (others and code == others[-1] + 1):
            others.append(code)
    is_other = re.fullmatch(r"-?\d+(\.0*)?", text) is not None and float(text) not in others
    return is_other and len(others) > 1 and (is_code(float(text)) or float(text) in (7, 8, 9))


def _positive(name: str, order: Direction) -> str:
    """Return the remark about the positive class, and what a person has to do."""
    last = repr(order.codes[1])
    if not order.is_sure:
        return (
            f"{name}: neither its name nor its values say which of {order.codes[0]!r} and {last}"
            f" is the event; {last} counts as the positive one: change the order in `classes` if"
            " it is the other"
        )
    turned = ", because of the column's name" if order.is_turned else ""
    return (
        f"{name}: the last class, {last}, counts as the positive one{turned}; change the order in"
        " `classes` if it is another"
    )


def _nice(value: float) -> float:
    """Round to one significant digit and a half, so that it is nobody's time."""
    step = 10.0 ** math.floor(math.log10(max(value, 1e-9))) / 2
    return round(value / step) * step
