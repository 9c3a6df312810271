"""What the values of one column show: codes for "not known", assigned numbers, target leakage.

Numbers far from all others are found by the quartiles. For leakage, each column is divided into its
categories or ranges, including one for missing values. A patient's prediction is the mean outcome
of the others in the same one. So a column that exists only where the event happened is found, too.
Numbers are also used directly, increasing and decreasing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from erosion_common.tasks.features import CategoryFeature, Feature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.survival import concordances
from erosion_common.tasks.task import Floats, Targets, Task

FEWEST_MEASURED = 20  # distinct measured values; among fewer, 0 may be ordinary
FAR = 2.0  # deviations: a measured 0 is nearer to the middle of the others
GAP = 1.0  # deviations from an unmeasured 0 to the next value, at least
HALF = 0.5  # of the distance between the quartiles
HEAPED = 3  # times as many rows as the commonest of the last tenth before it
HEAP = 2  # more rows of a code than of all values just below it
QUARTILES_APART = 1.35  # deviations, of a normal distribution
FEWEST_ROWS = 20  # needed to judge a distribution
FEWEST_DISTINCT = 8
MOST_DISTINCT = 10_000  # of more, some represent all
MANY_ROWS = 60
LONG_TAILS = 2.6  # quartile ranges from the 5th to the 95th percentile; of a normal one 2.4
MOST_FAR = 0.1  # of the rows, with values that are not codes
MOST_NEGATIVE = 0.2  # of the rows; with more, a column has measured values below 0
MOST_NEGATIVE_CODES = 6  # distinct values
ONE_VALUE = 0.4  # of the rows: a value that stands apart from a distribution, mostly 0
FENCES = 3.0  # quartile ranges beyond a quartile
SKEWED = 1.5  # how many times as wide as the lower part the upper one is
LONGER = 1.2  # the same, of values that are no codes
SHARE_OF_LOGARITHM = 0.8  # of the distance from the middle, for a gap before a code in a skewed
# column; twice that before any other value, because real tails are long
_CODE = re.compile(r"(7{2,}|8{2,}|9{2,}|9+[5-8])")
_LEAST_NEGATIVE_CODE = -10


_Found = NDArray[np.bool_]  # (n,)
_Numbers = NDArray[np.int64]  # (n,)


@lru_cache(maxsize=2 * MOST_DISTINCT)
def is_code(value: float) -> bool:
    """Return whether people write this number for "not known": 77, 999, 9998, 99.9, -1."""
    if value < 0 and value == int(value) and value >= _LEAST_NEGATIVE_CODE:
        return True
    return _CODE.fullmatch(f"{abs(value):.10g}".replace(".", "")) is not None


def standing_apart(
    values: Mapping[str, float], counts: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return the texts of a number column (text -> value) that seem not to be measurements.

    They are codes farther from all other values than those are from one another, values far outside
    the distribution, and negative ones where hardly any other is. `counts`: rows of each text; else
    1.
    """
    return _texts_found(lambda x, rows: x[_apart(x, rows)], values, counts)


def to_be_asked_about(
    values: Mapping[str, float], counts: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return the texts of a number column (text -> value) that may mean "not known"."""
    return _texts_found(odd_among, values, counts)


def _texts_found(
    find: Callable[[Floats, _Numbers], Floats],
    values: Mapping[str, float],
    counts: Mapping[str, int] | None,
) -> tuple[str, ...]:
    rows = np.array([1 if counts is None else counts.get(text, 1) for text in values])
    found = {*find(*few_of(*distinct(np.array([*values.values()]), rows))).tolist()}
    return tuple(text for text, value in values.items() if value in found)


def odd_among(x: Floats, rows: _Numbers) -> Floats:
    """Return which sorted values x (n,) may mean "not known"; rows (n,) counts each."""
    is_apart = _apart(x, rows)
    found, x, rows = x[is_apart], x[~is_apart], rows[~is_apart]
    return np.concatenate([found, x[_zero_standing_apart(x) | _below_zero(x) | _heaped(x, rows)]])


def few_of(x: Floats, rows: _Numbers) -> tuple[Floats, _Numbers]:
    """Return the least, the largest, and some between, of many sorted values (n,), and the rows."""
    if len(x) <= MOST_DISTINCT:
        return x, rows
    end, step = MOST_DISTINCT // 10, len(x) // MOST_DISTINCT + 1
    few = np.r_[:end, end : len(x) - end : step, len(x) - end : len(x)]
    return x[few], rows[few]


def _apart(x: Floats, rows: _Numbers) -> _Found:
    found = np.zeros(len(x), dtype=bool)
    left = np.arange(len(x))
    while len(left):
        apart = _codes(x[left]) | _far(x[left], rows[left])
        if not apart.any():
            apart = _negative(x[left], rows[left])
        if not apart.any():
            break
        found[left[apart]] = True
        left = left[~apart]
    return found


def _codes(x: Floats) -> _Found:
    """Return codes beyond all other values by more than their whole range."""
    are_measured = (x < 0).sum() > MOST_NEGATIVE_CODES // 2

    def no_code(value: float) -> bool:
        return not is_code(value) or bool(are_measured and abs(value) <= -_LEAST_NEGATIVE_CODE)

    ordered = x.tolist()
    low, high = next(filter(no_code, ordered), None), next(filter(no_code, ordered[::-1]), None)
    if low is None or high is None:
        return np.zeros(len(x), dtype=bool)
    return np.asarray((x < low - (high - low)) | (x > high + (high - low)))


def _negative(x: Floats, rows: _Numbers) -> _Found:
    """Return a few whole numbers below 0, where hardly any value is."""
    below = x < 0
    are_codes = below.sum() <= MOST_NEGATIVE_CODES and (x[below] == np.floor(x[below])).all()
    return below & bool(are_codes and rows[below].sum() <= MOST_NEGATIVE * rows.sum())


def _far(values: Floats, counts: _Numbers) -> _Found:
    """Return values outside the others' distribution, with a gap as wide as half of it."""
    x, rows = values, counts
    if len(x) and rows.max() > ONE_VALUE * rows.sum():
        x, rows = np.delete(x, rows.argmax()), np.delete(rows, rows.argmax())
    if len(x) < FEWEST_DISTINCT or rows.sum() < FEWEST_ROWS:
        return np.zeros(len(values), dtype=bool)
    lows, highs = _first_far(-x[::-1], rows[::-1]), _first_far(x, rows)
    low, high = -min(lows), min(highs)
    # A 0 is far from all others where no dose was given, and is asked about separately.
    found: _Found = (values != 0) & ~((low < values) & (values < high))
    for index in np.flatnonzero(found).tolist():
        code = is_code(float(values[index]))
        found[index] = not -lows[code] < values[index] < highs[code]
    return found


def distinct(values: Floats, rows: _Numbers) -> tuple[Floats, _Numbers]:
    """Return the distinct values, sorted, and the rows of each; rows (n,) counts each value."""
    if (values[1:] > values[:-1]).all() and (rows > 0).all():
        return values, rows
    x, place = np.unique(values[rows > 0], return_inverse=True)
    return x, np.bincount(place, rows[rows > 0], len(x)).astype(np.int64)


def quantiles_of(
    x: NDArray[np.float64], up_to: NDArray[np.int64], shares: Sequence[float]
) -> Floats:
    """Return `np.quantile` of sorted values x (n,) in several rows; `up_to`: rows up to each."""
    places = np.asarray(shares) * (up_to[-1] - 1)
    low, high = x[np.searchsorted(up_to, [np.floor(places), np.ceil(places)], side="right")]
    between: Floats = low + (high - low) * (places % 1)
    return between


def _first_far(x: NDArray[np.float64], rows: NDArray[np.int64]) -> list[float]:
    """Return the first of sorted values (n,) far above those below: as measured, and as a code."""
    up_to = np.cumsum(rows)
    share_from = (up_to[-1] - up_to + rows) / up_to[-1]
    end = max(FEWEST_DISTINCT, int((share_from > MOST_FAR).sum()))
    shares = (0.1, 0.25, 0.5, 0.75, 0.9)
    tenth, quarter, middle, third, last_tenth = quantiles_of(x[:end], up_to[:end], shares)
    value, last = x[end:], x[end - 1 : -1]
    is_far = value > third + FENCES * (third - quarter)
    # In long tails and few rows, the last value may be far from the one before it by chance.
    tails = quantiles_of(x, up_to, (0.05, 0.95))
    is_sure = up_to[:end][-1] >= MANY_ROWS and np.ptp(tails) < LONG_TAILS * (third - quarter)
    near = rows[:end][x[:end] > last_tenth].max(initial=1)
    is_heap = rows[end:] >= HEAPED * near  # no chance has put these there
    is_far &= value - last > np.where(is_sure | is_heap, 1, 2) * (last - middle)
    found = []
    for longer, share in ((LONGER, 2 * SHARE_OF_LOGARITHM), (SKEWED, SHARE_OF_LOGARITHM)):
        far = value[is_far]
        if len(far) and last_tenth - middle > longer * (middle - tenth):
            # In a tail of that length, the next value lies a part of the logarithm further.
            start = 0.0 if x[0] >= 0 and middle > 0 else 1.5 * x[0] - 0.5 * middle
            done = np.log((last[is_far] - start) / (middle - start))
            far = far[np.log((far - start) / (last[is_far] - start)) > share * done]
        found.append(float(far[0]) if len(far) else np.inf)
    return found


def _quarters(x: Floats) -> tuple[float, float, float]:
    first, middle, third = np.quantile(x, (0.25, 0.5, 0.75), method="weibull").tolist()
    return first, middle, third


def _zero_standing_apart(x: Floats) -> _Found:
    """Return the zeros, where other values lie far above them."""
    zeros = x == 0
    others = x[~zeros]
    if not zeros.any() or len(others) < FEWEST_MEASURED:
        return np.zeros(len(x), dtype=bool)
    first, middle, third = _quarters(others)
    deviation = (third - first) / QUARTILES_APART
    apart: _Found = zeros & bool(others[0] >= GAP * deviation and middle >= FAR * deviation)
    return apart


def _below_zero(x: Floats) -> _Found:
    """Return a few numbers below 0, where all others lie well above."""
    below = x < 0
    if not 0 < below.sum() <= MOST_NEGATIVE_CODES or (~below).sum() < FEWEST_MEASURED:
        return np.zeros(len(x), dtype=bool)
    first, _, third = _quarters(x[~below])
    return below & bool(x[~below].min() - x[below].max() > third - first)


def _heaped(x: Floats, rows: _Numbers) -> _Found:
    """Return a code that is the largest value, and far commoner than those below it."""
    found = np.zeros(len(x), dtype=bool)
    if len(x) >= FEWEST_MEASURED and is_code(float(x[-1])):
        first, _, third = _quarters(x)
        near = rows[x >= x[-1] - HALF * (third - first)].sum() - rows[-1]
        found[-1] = rows[-1] > HEAP + near
    return found


FEWEST_NUMBERED = 20  # values; fewer say nothing
LEAST_EXPECTED = 10.0  # expected pairs of equal values, for measurements between the ends
MOST_OF_EXPECTED = 0.1  # times these
LONG = 100_000  # without zeros at the end; longer whole numbers are not measured
NEARLY_ALL = 0.95  # of the values are distinct
ROUND = 0.5  # of the values end with 0
EXCEL_DAYS = (36_526, 49_710)  # since 1900, for 2000 to 2036
UNIX_SECONDS = (946_684_800, 2_082_758_400)  # since 1970, for the same years
LEAST_DATE = 5_000  # days since 1900, 1960 or 1970; for half of the dates, and for all seconds


def seem_assigned(values: NDArray[np.float64]) -> bool:
    """Return whether whole numbers (n,) differ from one another as measurements do not.

    Of the n (n - 1) / 2 pairs of measurements anywhere between the least and the largest, one is
    equal for each whole number between them, and more where some values are common. Numbers of six
    digits and more that are nearly all distinct are assigned, regardless of their values.
    """
    times = np.unique(values, return_counts=True)[1]
    num, num_distinct = len(values), len(times)
    if num_distinct <= FEWEST_NUMBERED or not (values == np.floor(values)).all():
        return False
    expected = num * (num - 1) / 2 / (values.max() - values.min() + 1)
    found = (times * (times - 1) / 2).sum()
    if expected >= LEAST_EXPECTED and found <= MOST_OF_EXPECTED * expected:
        return True
    is_long = values.min() >= LONG and (values % 10 == 0).mean() < ROUND
    return bool(is_long and num_distinct >= NEARLY_ALL * num)


def seem_counted_dates(values: NDArray[np.float64], *, is_called_date: bool) -> bool:
    """Return whether numbers (n,) are a spreadsheet's days, or seconds or milliseconds."""
    if is_called_date:
        return bool(np.median(np.abs(values)) >= LEAST_DATE)
    if len(np.unique(values)) <= FEWEST_NUMBERED or not (values == np.floor(values)).all():
        return False
    low, high = float(values.min()), float(values.max())
    milliseconds = (UNIX_SECONDS[0] * 1000, UNIX_SECONDS[1] * 1000)
    return any(
        first <= low and high <= last for first, last in (EXCEL_DAYS, UNIX_SECONDS, milliseconds)
    )


Kind = Literal["classification", "regression", "survival"]

MEASURES = {"classification": "AUROC", "regression": "R²", "survival": "concordance"}
TELLS = {"classification": 0.9, "regression": 0.9, "survival": 0.88}  # from which a column is
# suspected: data from before the outcome seldom predicts that well alone
FOLDS = 5
MOST_RANGES = 16
PRIOR = 2.0  # patients with the mean outcome, added to each category or range
FEWEST = 10  # patients of a class, with the event, or with a value
MOST_ROWS, MOST_SURVIVAL = 20_000, 3_000  # more are not used


@dataclass(frozen=True, slots=True)
class OutcomeValues:
    """The outcome to predict: (n,) classes from 0, (n,) numbers, or (n, 2) times and events."""

    kind: Kind
    targets: Floats

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def signal(self) -> Floats:
        """The values that are averaged: (n, k)."""
        if self.kind == "classification":
            classes = np.unique(self.targets)
            shown = classes[1:] if len(classes) == 2 else classes
            of_classes: Floats = np.equal.outer(self.targets, shown).astype(np.float64)
            return of_classes
        if self.kind == "regression":
            return self.targets[:, None].astype(np.float64)
        return _martingale(self.targets)[:, None]

    def measured(self, scores: Floats, rows: NDArray[np.bool_]) -> float:
        """Return how well scores (m, k) predict m of the rows; NaN where too few have the outcome.

        `rows`: (n,) which they are. They may lack a class.
        """
        if self.kind == "classification":
            found = [_auroc(s, t > 0) for s, t in zip(scores.T, self.signal[rows].T, strict=True)]
            known = [area for area in found if np.isfinite(area)]
            return float(np.mean(known)) if known else np.nan
        targets = self.targets[rows]
        if self.kind == "regression":
            apart = float(np.square(targets - targets.mean()).sum())
            left = float(np.square(targets - scores[:, 0]).sum())
            return 1 - left / apart if apart > 0 and len(targets) >= 2 * FEWEST else np.nan
        if targets[:, 1].sum() < FEWEST:
            return np.nan
        ones = np.ones((1, len(targets)))
        return float(concordances(scores[:, 0], targets, ones, ones)[0, 0])

    def of(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "OutcomeValues":
        """Return the outcome of some rows."""
        return OutcomeValues(self.kind, self.targets[rows])


def outcome_of(task: Task, targets: Targets) -> OutcomeValues:
    """Return the targets (n, ...) of a study's task as an outcome."""
    kinds: dict[str, Kind] = {"classification": "classification", "survival": "survival"}
    return OutcomeValues(kinds.get(task.outcome, "regression"), targets.astype(np.float64))


def columns_of(
    task: TabularTask, rows: NDArray[np.generic], groups: NDArray[np.int64]
) -> Iterator[tuple[Feature, Floats]]:
    """Yield every feature, and each patient's value of it (patients,), NaN where it has none.

    For several rows, it is the mean of the patient's numbers, or its commonest category.
    """
    _, places = np.unique(groups, return_inverse=True)
    for feature, column in zip(task.features, rows.T, strict=True):
        values = column.astype(np.float64)
        known = ~np.isnan(values)
        if isinstance(feature, CategoryFeature):
            counts = np.zeros((int(places.max(initial=-1)) + 1, len(feature.categories)))
            np.add.at(counts, (places[known], values[known].astype(np.int64)), 1)
            yield feature, np.where(counts.any(axis=1), counts.argmax(axis=1), np.nan)
            continue
        num = np.bincount(places[known], minlength=int(places.max(initial=-1)) + 1)
        sums = np.bincount(places[known], weights=values[known], minlength=len(num))
        yield feature, np.where(num > 0, sums / np.maximum(num, 1), np.nan)


def suspicion(values: Floats, outcome: OutcomeValues, *, is_category: bool) -> str:
    """Return why a column seems to be target leakage; "" where it does not."""
    asked = [outcome]
    if outcome.kind == "survival":
        asked.append(OutcomeValues("classification", outcome.targets[:, 1]))
    for each in asked:
        found = strength(values, each, is_category=is_category)
        if found >= TELLS[each.kind]:
            return f"alone it predicts the outcome ({MEASURES[each.kind]} {found:.2f})"
    return ""


def strength(values: Floats, outcome: OutcomeValues, *, is_category: bool) -> float:
    """Return the measure of a column (n,), NaN where a value is missing, by cross-validation."""
    most = MOST_SURVIVAL if outcome.kind == "survival" else MOST_ROWS
    if len(values) > most:
        kept = np.random.default_rng(0).choice(len(values), most, replace=False)
        values, outcome = values[kept], outcome.of(kept)
    fold = np.random.default_rng(0).permutation(len(values)) % FOLDS
    signal = outcome.signal
    scores = np.zeros((3, *signal.shape))
    for number in range(FOLDS):
        held = fold == number
        if held.any() and not held.all():
            for kind, found in enumerate(
                _scores(values, signal, ~held, held, is_category=is_category)
            ):
                scores[kind, held] = found
    return _best(scores, values, outcome, np.ones(len(values), dtype=bool))


def strength_held_out(
    values: Floats, outcome: OutcomeValues, trained: NDArray[np.bool_], *, is_category: bool
) -> float:
    """Return the same, learnt on the rows `trained` (n,) and measured on the others."""
    scores = np.stack(
        [*_scores(values, outcome.signal, trained, ~trained, is_category=is_category)]
    )
    return _best(scores, values, outcome, ~trained)


def _best(scores: Floats, values: Floats, outcome: OutcomeValues, held: NDArray[np.bool_]) -> float:
    """Return the better of all rows by categories or ranges, and rows with a value both ways.

    `held`: (n,) the rows that the scores (kinds, held, k) are of.
    """
    known = ~np.isnan(values)
    found = [outcome.measured(scores[0], held)]
    if 2 * known[held].sum() >= held.sum():  # else a few rows with a value would decide for all
        of_known = scores[:, known[held]]
        found += [outcome.measured(of_kind, held & known) for of_kind in of_known]
    return max((figure for figure in found if np.isfinite(figure)), default=0.0)


def _scores(
    values: Floats,
    signal: Floats,
    trained: NDArray[np.bool_],
    held: NDArray[np.bool_],
    *,
    is_category: bool,
) -> Iterator[Floats]:
    """Yield three predictions (held, k): by categories or ranges, and two lines for numbers."""
    from scipy.stats import rankdata  # slow to import, and seldom needed

    cells = _cells(values, trained, is_category=is_category)
    mean = signal[trained].mean(axis=0)
    sums = np.zeros((int(cells.max(initial=0)) + 1, signal.shape[1]))
    np.add.at(sums, cells[trained], signal[trained])
    counts = np.bincount(cells[trained], minlength=len(sums))[:, None]
    by_cell = ((sums + PRIOR * mean) / (counts + PRIOR))[cells[held]]
    yield by_cell
    usable = trained & ~np.isnan(values)
    if is_category or usable.sum() < FEWEST or np.ptp(values[usable]) == 0:
        yield by_cell
        yield by_cell
        return
    for told in (values, rankdata(values, nan_policy="omit")):
        x = told[usable] - told[usable].mean()
        slope = x @ (signal[usable] - mean) / (x @ x)
        line = mean + (told[held, None] - told[usable].mean()) * slope
        yield np.where(np.isnan(line), mean, line)


def _cells(values: Floats, trained: NDArray[np.bool_], *, is_category: bool) -> NDArray[np.int64]:
    """Return the category or range of each value (n,), with one more for missing values."""
    known = ~np.isnan(values)
    if is_category:
        places = np.where(known, values, 0).astype(np.int64)
    else:
        shares = np.linspace(0, 1, MOST_RANGES + 1)[1:-1]
        usable = values[known & trained]
        edges = np.unique(np.quantile(usable, shares)) if len(usable) else np.zeros(0)
        places = np.searchsorted(edges, np.where(known, values, 0.0), side="right")
    return np.where(known, places, int(places.max(initial=0)) + 1)


def _auroc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    from scipy.stats import rankdata  # slow to import, and seldom needed

    num, others = int(positive.sum()), int((~positive).sum())
    if min(num, others) < FEWEST:
        return np.nan
    area = (rankdata(scores)[positive].sum() - num * (num + 1) / 2) / (num * others)
    return float(area)


def _martingale(targets: Floats) -> Floats:
    """Return events minus those expected by then if all patients were alike: (n,)."""
    times, events = targets[:, 0], targets[:, 1]
    order = np.argsort(times, kind="stable")
    at_risk = len(times) - np.searchsorted(times[order], times[order], side="left")
    hazard = np.cumsum(events[order] / at_risk)
    last = np.searchsorted(times[order], times, side="right") - 1
    residuals: Floats = events - hazard[last]
    return residuals
