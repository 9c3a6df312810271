"""`erosion study new`: a commented study file from one hospital's table, valid as it is."""

import math
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from erosion_client import scaffold
from erosion_client.dataset.column_values import toml_key
from erosion_client.dataset.single_column import is_code, to_be_asked_about
from erosion_client.scaffold.column_profile import Profile
from erosion_client.scaffold.column_roles import (
    BY_NAME,
    PLAINLY_NONE,
    is_known_afterwards,
    likely_key,
    repeats,
    rows_of_patients,
    why_no_feature,
    why_not,
)
from erosion_client.scaffold.site_draft import escaped, quoted
from erosion_client.scaffold.value_words import (
    Direction,
    direction,
    in_one_spelling,
    in_order,
    one_spelling,
    seems_unknown,
)
from erosion_client.scaffold.vocabulary import header_unit
from erosion_common.errors import DataError
from erosion_common.settings.names import canonical
from erosion_common.support.text import some

FEWEST_FOR_TYPICAL = 20  # values
FEWEST = 10  # patients; a category of fewer is pointed out before the file is passed on
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
) -> tuple[str, list[str]]:
    """Return the file's text, and what a person should check. Raises DataError.

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
    other = [remark for profile in profiles if (remark := _other_spellings(profile))]
    profiles = [*by_name.values()]
    features: list[str] = []
    left_out: dict[str, list[str]] = {}  # why -> columns
    for profile in profiles:
        if profile.name in (target, time):
            continue
        if why := why_no_feature(profile):
            left_out.setdefault(why, []).append(profile.name)
        else:
            if is_known_afterwards(profile.name):
                features.append(
                    f"  # ? {escaped(profile.name)}: {BY_NAME}; take it out if it is so"
                )
            features.append(_feature(profile))
            remarks += _remarks(profile)
    remarks += [
        f"{_some(names)}: left out, {why if len(names) == 1 else why.replace('it', 'each', 1)}"
        for why, names in left_out.items()
        if why not in PLAINLY_NONE
    ]
    late = [name for name in by_name if is_known_afterwards(name) and name not in (target, time)]
    remarks += [f"{name}: {BY_NAME}; make no feature of it if it is so" for name in late]
    remarks += other
    key, num_patients = likely_key(profiles), by_name[target].num_rows
    if key is not None and repeats(key):
        num_patients = len(key.counts)
        remarks.append(
            f"{rows_of_patients(key)}: each site file names it (patient = {quoted(key.name)}"
            " under [data]; `erosion site new` writes it), or rows are counted as patients"
        )
    if not features:
        reasons = "".join(f" {_some(names)}: {why}." for why, names in left_out.items())
        raise DataError(
            f"{file} has no column that a model could read, but for the target.{reasons}"
        )
    template = files(scaffold).joinpath("study.template").read_text(encoding="utf-8")
    text = template.format(
        name=name,
        target=target,
        file=file.name,
        user=user,
        hospitals=", ".join(f'"{hospital}"' for hospital in hospitals),
        quorum=min(2, len(hospitals)),
        model='  # or "mlp", with hidden = [32]',
        outcome=outcome,
        tested=_tested(num_patients, is_class="classes = [" in outcome),
        features="\n".join(features),
        left_out="".join(
            f"# {escaped(column)}: left out, {why}\n"
            for why, columns in left_out.items()
            for column in columns
        ),
    )
    return text, remarks


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
    keys = f"name = {name}, unit = {unit}, range = [{low:.12g}, {high:.12g}]{_typical(profile)}"
    return f"  {{ {keys} }},{_share(profile)}"


def _typical(profile: Profile) -> str:
    """Return the middle half of the values, where there are enough to identify nobody."""
    if len(profile.numbers) < FEWEST_FOR_TYPICAL:
        return ""
    low, high = (_short(float(q)) for q in np.percentile(profile.numbers, (25, 75)))
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
    """Return what may not be measured, not known, or too rare to be disclosed."""
    name, counts, found = profile.name, profile.counts, []
    texts = [*profile.limits[:SHOWN], *profile.not_numbers]
    if profile.thousands:
        texts += [text for text in counts if profile.thousands in text][:1]
    if texts:
        rows = sum(counts[text] for text in {*profile.limits, *profile.not_numbers, *texts})
        found.append(f"{name}: {_some([*map(repr, texts)])} ({rows} of {profile.num_rows} rows)")
        found[-1] += ": each site file says how these are read; `erosion site new` proposes it"
    if profile.mixed is not None:
        found.append(f"{name}: {profile.mixed}; if they are, export it in one unit")
        found[-1] += ". The range is that of the others"
    asked = to_be_asked_about(profile.values, counts) if profile.mixed is None else ()
    asked = asked if profile.kind in ("number", "category") else ()
    if unsaid := [*profile.unsaid, *asked]:
        rows = sum(counts.get(text, 0) for text in unsaid)  # those that the range holds
        often = f" ({rows} of {profile.num_rows} rows)" if rows else ", left out of the range"
        found.append(
            f"{name}: “not known”? {_some([*map(repr, unsaid)])}{often}; each site file says so"
            f" ({_missing(unsaid[0], name)})"
        )
    if profile.kind == "category":
        if rare := [text for text, count in counts.items() if count < FEWEST]:
            found.append(
                f"{name}: {', '.join(map(repr, rare[:5]))} are of fewer than {FEWEST} patients; see"
                " whether they may be disclosed to the other hospitals"
            )
        if unsaid := [text for text in counts if _is_unknown(text, counts)]:
            found.append(
                f"{name}: {_some([*map(repr, unsaid)])} is read as a category; for “not known” each"
                f" site file says so ({_missing(unsaid[0], name)}), and the category goes"
            )
        if all(re.fullmatch(r"-?\d+", text) for text in counts):
            found.append(f"{name}: taken for codes; if it is a measurement, give a range")
    return found


def _missing(text: str, column: str) -> str:
    return f'{quoted(text)} = "" under [data.values.{toml_key(column)}]'


def _other_spellings(profile: Profile) -> str:
    spelt = one_spelling(profile.counts) if profile.kind == "category" else {}
    others = [f"{quoted(t)} = {quoted(to)}" for t, to in spelt.items() if canonical(t) != to]
    if not others:
        return ""
    return f"{profile.name}: counted as one: {_some(others)} (`erosion site new` proposes it)"


def _some(names: Sequence[str]) -> str:
    return some(names, most=SHOWN)


def _short(value: float) -> str:
    return repr(float(np.format_float_positional(float(f"{value:.2g}"), trim="0")))


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
        if unsaid := [text for text in target.counts if canonical(text) not in classes]:
            remarks.append(
                f"{target.name}: {', '.join(map(repr, unsaid))} is no class; each site file says"
                f" that it is missing ({_missing(unsaid[0], target.name)})"
            )
        if rare := [text for text in told if target.counts[text] < FEWEST]:
            remarks.append(
                f"{target.name}: {some(map(repr, rare))} are of fewer than {FEWEST} patients, too"
                " few to measure a model on; see whether classes can be joined"
            )
        return f"{key}\n{before}classes = [{listed}]{which}", remarks
    if target.kind == "number":
        centre, spread = float(target.numbers.mean()), float(target.numbers.std())
        return (
            f'outcome = "regression"  # a number\n{key}\n'
            f"centre = {_short(centre)}  # about the mean\n"
            f"spread = {_short(max(spread, 1e-9))}  # about the standard deviation",
            [],
        )
    raise DataError(
        f"The target {target.name!r} cannot be predicted: {why_not(target)}. Name another as"
        " --target."
    )


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
    names = f"time = {quoted(time.name)}, event = {quoted(event.name)}"
    meant = f"happened = [{quoted(codes[1])}], censored = [{quoted(codes[0])}]"
    text = (
        f'outcome = "survival"  # when an event happens\n'
        f"cut_points = [{', '.join(f'{cut:.12g}' for cut in cuts)}]"
        "  # ends of the intervals; nothing is predicted beyond the last\n"
        f"target = {{ {names}, unit = {quoted(header_unit(time.name))}, {meant} }}"
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
