"""Finds hospitals with figures of a column that do not fit the others': mostly another unit.

Or numbers that stand for missing values, such as a cholesterol of 0; categories and outcomes that
are coded the other way round; values that only one hospital lacks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, isinf, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from erosion_common.protocol.messages import QUANTILES, ColumnSummary, Summary
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study
from erosion_common.support.text import printable, significant
from erosion_common.tasks.features import CategoryFeature

OFF_BY = 2.0  # times the others' typical value, either way
OFF_BY_TIME = 5.0  # the same of how long patients were followed, which differs by more
FAR = 3.0  # deviations of a column; what is nearer may be other patients
NEAR_FACTOR = 0.12  # relative; the figures are rounded
MOST, FEW = 0.8, 0.2  # of a hospital's patients, and of the others': other patients are more alike
HALF = 0.5  # however far off the counts are
ROUNDING = 0.5  # deviations by which a figure may be off
NOTHING = 1e-9  # of a value: less is what sums of equal numbers leave over
ABOVE_ZERO = 0.3  # of the others' middle: where their lowest tenth is, a measured 0 is far
MANY = 200  # patients: of fewer, those of another category may be too few to count
LACKING, COMPLETE = 0.5, 0.1  # shares of patients without a value: here, and at the others
COMMON, EXPECTED = 0.25, 3  # share at the others, and smallest cells of patients that it makes here
TURNED, EXCHANGED, MATCHED = 0.35, 0.5, 0.15  # of the patients in other classes than the others':
# before the order of the classes is turned round, before classes are exchanged, and after either
FEWEST_CELLS = 4  # of patients, for their shares to be compared with others'
MIRRORED, TWICE = 0.5, 2.0  # deviations between a value and the others' with its sign changed, and
# between the two as they are
MOST_OTHERS = 30  # that a hospital is compared with
_LOWEST, _FIRST, _MIDDLE, _THIRD, _HIGHEST = range(len(QUANTILES))  # the places in it

# What one unit's number is in another's: only hints, by the size of the factor.
KNOWN = (
    (2.2, "pounds and kilograms"),
    (2.54, "inches and centimetres"),
    (7.5, "mmHg and kPa"),
    (10.0, "a step of ten, such as g/l and g/dl"),
    (12.0, "months and years"),
    (18.0, "mg/dl and mmol/l of glucose"),
    (30.4, "days and months"),
    (38.7, "mg/dl and mmol/l of cholesterol"),
    (88.4, "umol/l and mg/dl of creatinine"),
    (100.0, "shares and percent, or m and cm"),
    (1000.0, "a step of a thousand, such as mg and g"),
    (365.25, "days and years"),
)


class Misfit(Settings):
    """One hospital's column that does not fit the others'."""

    hospital: str
    column: str
    text: str


def problem_with_summary(summary: Summary, study: Study) -> str | None:
    """Return why a hospital's description cannot be used; None where it can."""
    features = getattr(study.task, "features", ())
    known = {feature.name for feature in features}
    known |= {column.name for column in study.task.target_columns}
    described = Counter(column.name for column in summary.columns)
    if strange := sorted(described.keys() - known):
        return f"it described {printable(strange[0], at_most=50)!r}, which the study has not"
    groups = {
        feature.name: frozenset(feature.categories)
        for feature in features
        if isinstance(feature, CategoryFeature)
    }
    groups[study.task.target_columns[-1].name] = study.task.group_names
    for column in summary.columns:
        if strange := sorted(column.shares.keys() - groups.get(column.name, frozenset())):
            what = f"{printable(strange[0], at_most=50)!r} of {column.name!r}"
            return f"it counted patients with {what}, which the study has not"
    if twice := sorted(name for name, times in described.items() if times > 1):
        return f"it described {printable(twice[0], at_most=50)!r} more than once"
    return None


def misfits(summaries: Mapping[str, Summary]) -> list[Misfit]:
    """Return all that looks wrong, by column and hospital."""
    cells = {hospital: summary.min_cell for hospital, summary in summaries.items()}
    by_column: dict[str, dict[str, ColumnSummary]] = {}
    for hospital, summary in summaries.items():
        for column in summary.columns:
            by_column.setdefault(column.name, {})[hospital] = column
    return [found for columns in by_column.values() for found in misfits_of(columns, cells)]


def misfits_of(columns: Mapping[str, ColumnSummary], cells: Mapping[str, int]) -> list[Misfit]:
    """Return the hospitals with figures of a column that differ; `cells`: their smallest ones."""
    off = _values_off(columns)
    for name, column in columns.items():
        others = _others(name, columns)
        text = (
            off.get(name)
            or _which_category_is_off(column, others, cells[name])
            or _are_relabelled(column, others, cells[name])
            or _lacks_category(column, others, cells[name])
            or _lacks(column, others)
        )
        if text:
            off[name] = text
    return [
        Misfit(hospital=name, column=columns[name].name, text=off[name])
        for name in columns
        if name in off
    ]


def _others(name: str, columns: Mapping[str, ColumnSummary]) -> list[ColumnSummary]:
    """Return the other hospitals' columns; of very many a sample, evenly over their order."""
    names = [*columns][:: 1 + len(columns) // MOST_OTHERS]
    return [columns[hospital] for hospital in names if hospital != name]


def _values_off(columns: Mapping[str, ColumnSummary]) -> dict[str, str]:
    known = {name: column for name, column in columns.items() if middle_of(column) is not None}
    if _are_of_0_and_1([*known.values()]):
        return {}  # of which a hospital may have only one, and mostly either
    off = {name: text for name in known if (text := _one_value(name, known))}
    fitting = {name: column for name, column in known.items() if name not in off}
    while len(fitting) > 1:
        found = {
            name: (_deviations_apart(name, fitting), text)
            for name in fitting
            if (text := _middle_off(name, fitting))
        }
        if not found:
            break
        # Of three, the one that is off makes the usual of the others wrong; of two, it may be each.
        worst = [max(found, key=lambda name: found[name][0])] if len(fitting) > 2 else [*found]
        off |= {name: found[name][1] for name in worst}
        fitting = {name: column for name, column in fitting.items() if name not in worst}
    return off | {name: text for name in fitting if (text := _which_end_is_off(name, fitting))}


def _one_value(name: str, columns: Mapping[str, ColumnSummary]) -> str:
    """Return the finding if all patients here have the same number, and others' have not."""
    value = middle_of(columns[name])
    if value is None or columns[name].deviation is None or _varies(columns[name]):
        return ""
    varying = [column for column in _others(name, columns) if _varies(column)]
    if not varying:
        return ""
    quarters = [
        median(found)
        for place in (_FIRST, _MIDDLE, _THIRD)
        if (found := [q for column in varying if (q := _quantile(column, place)) is not None])
    ]
    if value == 0 and quarters and quarters[0] > 0:
        baseline = median(
            [middle for column in varying if (middle := middle_of(column)) is not None]
        )
        elsewhere = f"(other hospitals: {significant(baseline)})"
        return f"all are 0 {elsewhere}. Does 0 stand for missing values?"
    if len({*quarters}) < 3:
        return ""
    return f"all are {significant(value)}; at other hospitals they differ. Is it recorded there?"


def _are_of_0_and_1(columns: Sequence[ColumnSummary]) -> bool:
    """Return whether they hold 0 and 1 alone: at most one quantile of each lies between."""
    reported = [([q for q in column.quantiles if q is not None], column) for column in columns]
    return any(quantiles for quantiles, _ in reported) and all(
        sum(min(abs(q), abs(q - 1)) > ROUNDING * (column.deviation or 0.0) for q in quantiles) <= 1
        if quantiles
        else 0 <= (column.mean or 0.0) <= 1
        for quantiles, column in reported
    )


def _varies(column: ColumnSummary) -> bool:
    return (column.deviation or 0.0) > NOTHING * abs(middle_of(column) or 0.0)


def _deviations_apart(name: str, columns: Mapping[str, ColumnSummary]) -> float:
    value, baseline, own, spread = _beside(name, columns)
    typical = min(own, spread) or max(own, spread)
    return abs(value - baseline) / typical if typical else inf


def _middle_off(name: str, columns: Mapping[str, ColumnSummary]) -> str:
    own, others = _side(columns[name]), {_side(column) for column in _others(name, columns)}
    least = OFF_BY_TIME if columns[name].kind == "time" else 0.0
    is_turned = own != 0 and others == {-own}
    return _what_is_off(*_beside(name, columns), least=least, is_turned=is_turned)


def _side(column: ColumnSummary) -> int:
    reported = [quantile for quantile in column.quantiles if quantile is not None]
    if not reported or min(reported) <= 0 <= max(reported):
        return 0
    return 1 if min(reported) > 0 else -1


def _beside(name: str, columns: Mapping[str, ColumnSummary]) -> tuple[float, float, float, float]:
    """Return its typical value and that of the others, and the same of the deviations."""
    others = _others(name, columns)
    middles = [value for column in others if (value := middle_of(column)) is not None]
    value = middle_of(columns[name])
    assert value is not None
    return (
        value,
        median(middles),
        columns[name].deviation or 0.0,
        median([column.deviation or 0.0 for column in others]),
    )


def _which_category_is_off(
    column: ColumnSummary, others: Sequence[ColumnSummary], cell: int
) -> str:
    """Return a category that nearly all have here and hardly any elsewhere, or all here."""
    reported = [other for other in others if other.shares and other.count]
    if not reported or not column.count:
        return ""
    for category, number in column.shares.items():
        share = number / column.count
        baseline = median(other.shares.get(category, 0) / other.count for other in reported)
        elsewhere = f"(other hospitals: {f'{baseline:.0%}' if baseline else 'few'})"
        at_least = column.share_range(category, cell).low
        if share >= MOST and at_least >= HALF and baseline <= FEW:
            return (
                f"{share_text(share)} are {category!r} {elsewhere}. Is it coded differently there?"
            )
        if share == 1 and column.count >= MANY and baseline <= MOST:
            return f"nearly all are {category!r} {elsewhere}. Is it recorded there?"
    return ""


def _are_relabelled(column: ColumnSummary, others: Sequence[ColumnSummary], cell: int) -> str:
    """Return an outcome that fits once its classes are turned round, or any are exchanged."""
    from scipy.optimize import linear_sum_assignment

    reported = [other for other in others if other.count]
    if column.kind != "outcome" or len(column.shares) < 3 or not reported:
        return ""
    if column.count < FEWEST_CELLS * cell:
        return ""
    classes = [*column.shares]
    own = np.array([column.shares[name] / column.count for name in classes])
    baseline = np.array(
        [median(o.shares.get(name, 0) / o.count for o in reported) for name in classes]
    )
    if baseline.sum() == 0:
        return ""
    baseline /= baseline.sum()
    moved = np.abs(own - baseline).sum() / 2
    _, exchanged = linear_sum_assignment(np.abs(own[:, None] - baseline[None, :]))
    for order, how, least in (
        (np.arange(len(classes))[::-1], "the other way round", TURNED),
        (exchanged, "with classes exchanged", EXCHANGED),
    ):
        if moved >= least and np.abs(own - baseline[order]).sum() / 2 <= MATCHED:
            return (
                f"{_listed(classes, own)} (other hospitals: {_listed(classes, baseline)}). Is it"
                f" coded {how} there?"
            )
    return ""


def _listed(classes: Sequence[str], shares: NDArray[np.float64]) -> str:
    return ", ".join(
        f"{share:.0%} {name!r}" for name, share in zip(classes, shares.tolist(), strict=True)
    )


def _lacks_category(column: ColumnSummary, others: Sequence[ColumnSummary], cell: int) -> str:
    """Return a category that is common elsewhere, and of which fewer than a cell are here."""
    reported = [other for other in others if other.shares and other.count]
    for category, number in column.shares.items():
        if number or not reported:
            continue
        baseline = median(other.shares.get(category, 0) / other.count for other in reported)
        if baseline >= COMMON and baseline * column.count >= EXPECTED * cell:
            said = f"few or none are {category!r} (other hospitals: {baseline:.0%})"
            return f"{said}. Is it recorded there?"
    return ""


def _lacks(column: ColumnSummary, others: Sequence[ColumnSummary]) -> str:
    """Return a value that most patients here are without, and hardly any of the others'."""
    shares = [share for other in others if (share := _missing(other)) is not None]
    own = _missing(column)
    if own is None or own < LACKING or not shares or median(shares) > COMPLETE:
        return ""
    baseline = f"{median(shares):.0%}" if median(shares) else "few or none"
    return f"missing for {share_text(own)} (other hospitals: {baseline}). Is it recorded there?"


def share_text(share: float) -> str:
    """Return percent; "nearly all" at 100 %: fewer than a cell of others are not counted."""
    said = f"{share:.0%}"
    return "nearly all" if said == "100%" else said


def _missing(column: ColumnSummary) -> float | None:
    """Return the share of patients without a value; None where nobody is counted."""
    total = column.count + column.missing
    return column.missing / total if total else None


def middle_of(column: ColumnSummary) -> float | None:
    """Return the median; the mean where too few patients have a value for it."""
    middle = _quantile(column, _MIDDLE)
    return column.mean if middle is None else middle


def _quantile(column: ColumnSummary, place: int) -> float | None:
    return column.quantiles[place] if len(column.quantiles) > place else None


def _what_is_off(
    value: float, baseline: float, own: float, spread: float, *, least: float, is_turned: bool
) -> str:
    """Return what is off: a wrong unit moves a column by many deviations, other patients do not.

    `least`: the smallest factor that is none of other patients'. `is_turned`: nearly all values are
    on the other side of 0 than the others'.
    """
    apart = abs(value - baseline)
    typical = min(own, spread) or max(own, spread)
    is_mirrored = (
        is_turned and abs(value + baseline) <= MIRRORED * typical and apart >= TWICE * typical > 0
    )
    if apart <= FAR * typical and not is_mirrored:
        return ""
    here = f"typically {significant(value)} (other hospitals: {significant(baseline)})."
    if 0 in (value, baseline):  # of which there is no factor; where all have it, it may be no value
        which, varies = ("0", own) if value == 0 else ("0 there", spread)
        if varies or not typical:
            return ""
        return f"{here} Does {which} stand for missing values?"
    if (value < 0) != (baseline < 0):
        return f"{here} Another sign, or other patients?"
    factor = abs(value / baseline)
    larger = max(factor, 1 / factor) if factor else inf
    if larger < least:
        return ""
    if larger < OFF_BY and not apart > FAR * max(own, spread) > 0:
        return ""
    if larger < OFF_BY or isinf(larger):  # the latter where one of the two is next to nothing
        return f"{here} Another unit, or other patients?"
    times = (
        f"{significant(factor, 2)} times" if factor >= 1 else f"1/{significant(1 / factor, 2)} of"
    )
    elsewhere = f"{times} the {significant(baseline)} of other hospitals"
    return f"typically {significant(value)}, {elsewhere}. Is it in another unit{_unit_of(larger)}?"


def _which_end_is_off(name: str, columns: Mapping[str, ColumnSummary]) -> str:
    """Return the end that a number for missing values moved; the other half is as elsewhere."""
    others = _others(name, columns)
    own = [_quantile(columns[name], place) for place in range(len(QUANTILES))]
    reported = [
        [found for column in others if (found := _quantile(column, place)) is not None]
        for place in range(len(QUANTILES))
    ]
    if not (reported[_LOWEST] and reported[_MIDDLE] and reported[_HIGHEST]):
        return ""
    low, middle, high = min(reported[_LOWEST]), median(reported[_MIDDLE]), max(reported[_HIGHEST])
    if not low < middle < high:
        return ""  # nearly all of the others' patients have one value, as of a column of 0 and 1
    own_low, own_high = own[_LOWEST], own[_HIGHEST]
    if own_low == 0 and low > ABOVE_ZERO * middle:
        elsewhere = f"(other hospitals: the lowest tenth is {significant(low)} or above)"
        return f"a tenth or more is 0 {elsewhere}. Does 0 stand for missing values?"
    ends = [value for value in (own_low, own_high, low) if value is not None]
    scale = log if min(ends) > 0 else float  # of a skewed column the factors count
    span = scale(high) - scale(low)

    def stays(*places: int) -> bool:
        return all(
            scale(min(reported[place])) - span / 2
            <= scale(value)
            <= scale(max(reported[place])) + span / 2
            for place in places
            if (value := own[place]) is not None and reported[place]
        )

    if own_low is not None and scale(own_low) <= scale(low) - span and stays(_MIDDLE, _THIRD):
        what = f"lowest tenth is {significant(own_low)}"
        elsewhere = f"{significant(low)} or above"
    elif own_high is not None and scale(own_high) >= scale(high) + span and stays(_FIRST, _MIDDLE):
        what = f"highest tenth is {significant(own_high)}"
        elsewhere = f"{significant(high)} or below"
    else:
        return ""
    return f"the {what} (other hospitals: {elsewhere}). Does a number stand for missing values?"


def _unit_of(factor: float) -> str:
    nearest, what = min(KNOWN, key=lambda known: abs(log(known[0]) - log(factor)))
    if abs(log(nearest / factor)) > log(1 + NEAR_FACTOR):
        return ""
    return f" ({what} are {nearest:g} apart)"
