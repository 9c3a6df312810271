"""The lines of a study's draft that say what is predicted."""

import math
import re
from collections.abc import Iterable

import numpy as np

from erosion.client.dataset.isolated_values import is_code
from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.draft_text import FEWEST, missing_line, quoted, short
from erosion.client.scaffold.known_units import header_unit
from erosion.client.scaffold.left_out import why_not
from erosion.client.scaffold.outcome_direction import Direction, direction, in_order
from erosion.client.scaffold.value_words import seems_unknown
from erosion.common.errors import DataError
from erosion.common.settings.names import canonical

MOST_CLASSES = 10


def outcome_lines(target: Profile) -> tuple[str, list[str]]:
    """The lines of the task that say what is predicted."""
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
        return f"{key}\n{before}classes = [{listed}]{which}", remarks
    if target.kind == "number":
        centre, spread = float(target.numbers.mean()), float(target.numbers.std())
        return (
            f'outcome = "regression"  # a number\n{key}\n'
            f"centre = {short(centre)}  # about the mean\n"
            f"spread = {short(max(spread, 1e-9))}  # about the standard deviation",
            [],
        )
    raise DataError(
        f"The target {target.name!r} cannot be predicted: {why_not(target)}. Name another as"
        " --target."
    )


def survival_lines(event: Profile, time: Profile) -> tuple[str, list[str]]:
    """The lines of the task where a time until an event is predicted."""
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
    unit = quoted(header_unit(time.name))
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
        + ("" if order.is_sure else ", since the words do not tell it"),
        f"{time.name}: the intervals were made from this hospital's times; look at `cut_points`",
    ]
    return text, remarks


def _is_unknown(text: str, texts: Iterable[str]) -> bool:
    """Whether a value of the target says that it is not known: a word, or 9 beside 0 and 1."""
    if seems_unknown(text, [*texts]):
        return True
    codes = {float(t) for t in texts if re.fullmatch(r"-?\d+(\.0*)?", t)}
    others = {code for code in codes if not is_code(code) and code != 9}
    is_other = re.fullmatch(r"-?\d+(\.0*)?", text) is not None and float(text) not in others
    return is_other and len(others) > 1 and others <= {0, 1, 2, 3}


def _positive(name: str, order: Direction) -> str:
    """The remark about the class that counts as the positive one, and what a person has to do."""
    last = repr(order.codes[1])
    if not order.is_sure:
        return (
            f"{name}: neither its name nor its values tell which of {order.codes[0]!r} and {last}"
            f" is the event; {last} counts as the positive one: change the order in `classes` if"
            " it is the other"
        )
    turned = ", because of the column's name" if order.is_turned else ""
    return (
        f"{name}: the last class, {last}, counts as the positive one{turned}; change the order in"
        " `classes` if it is another"
    )


def _nice(value: float) -> float:
    """Rounded to one significant digit and a half, so that it is nobody's time."""
    step = 10.0 ** math.floor(math.log10(max(value, 1e-9))) / 2
    return round(value / step) * step
