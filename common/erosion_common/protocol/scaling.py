"""Scaling by pooled means and deviations, made of per-hospital sums instead of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nextafter, sqrt
from statistics import median

from erosion_common.protocol.messages import FeatureSums, Scaling
from erosion_common.settings.base import Settings
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import Task

# A variance this small relative to the mean square is rounding: such a column is a constant.
SMALLEST_RELATIVE_VARIANCE = 1e-12
MOST_PATIENTS = 10**9  # of one hospital; more is a fault, and so is a value beyond LARGEST_VALUE
LARGEST_VALUE = 1e30
# In place of the deviation of a column that has none, or may disclose none: of a number
# nothing else has exactly this, so that `table_inputs` knows it.
NOT_FOUND = 1.0
FAR = 10.0  # usual deviations; a hospital with a mean or deviation further off is left out


class Cut(Settings):
    """How far from its mean a number may lie after scaling; what lies further is moved there."""

    deviations: float
    unscaled: float  # in the column's unit, where it has no deviation

    def of(self, deviation: float) -> float:
        """Return the bound of a column with this deviation."""
        return self.unscaled if deviation == NOT_FOUND else self.deviations


# One patient's slip, such as 4120 for 4.12, would outweigh all that the others' columns say: a
# deviation takes in no value beyond a fence, so that the slip is thousands of them away. Real
# values of skewed columns are 85 away in the data sets of the experiments.
CUT = Cut(deviations=100.0, unscaled=10.0)


def number_columns(task: Task) -> tuple[bool, ...]:
    """Return for every encoded column of a table whether it is scaled: numbers are."""
    flags: list[bool] = []
    if not isinstance(task, TabularTask):
        return ()
    for feature in task.features:
        flags += [term.code is None for term in task.terms(feature)]
    # A product is of inputs that are scaled already.
    return (*flags, *[False] * len(task.products()))


def pool(sums: Sequence[FeatureSums], task: Task, users: FeatureSums | None = None) -> Scaling:
    """Return the mean and (population) deviation of all hospitals' rows together, at least one.

    A category's indicator, a column without values and a constant column keep the deviation 1
    (`NOT_FOUND`). No hospital moves them far: see `_usual`. `users`: those of `sums` that are the
    user's own.
    """
    columns = []
    for index, is_number in enumerate(number_columns(task)):
        parts = [_column(s, index) for s in sums]
        own = None if users is None else _column(users, index)
        baseline = _baseline([part for part in parts if part.count], own)
        columns.append(_mean_and_deviation(baseline) if is_number else (0.0, NOT_FOUND))
    return Scaling(mean=tuple(m for m, _ in columns), deviation=tuple(d for _, d in columns))


@dataclass(frozen=True, slots=True)
class _Sums:
    """One column at one hospital, or at several."""

    count: float
    total: float
    squares: float


def _column(sums: FeatureSums, index: int) -> _Sums:
    return _Sums(sums.count[index], sums.total[index], sums.squares[index])


def _baseline(parts: Sequence[_Sums], own: _Sums | None) -> _Sums:
    """Return the hospitals' sums together, each bounded by what is usual.

    One with values far from what is usual is left out of the column, and one that claims more
    patients than all others together counts for as many as they have. Where three or more have
    values that differ, the user counted as any other, the median mean and deviation are what is
    usual; two cannot outvote each other, and there it is the user's, who gets the model. Where the
    user has no deviation either, nobody is left out.
    """
    if len(parts) >= 3 or (len(parts) == 2 and own is not None and own.count > 1):
        found = _found(parts)
        if len(found) < 3:
            found = _found([own]) if own is not None else []
        if found:
            centre, spread = median(m for m, _ in found), median(d for _, d in found)
            parts = [part for part in parts if _is_near(part, centre, FAR * spread)] or parts
        everybody = sum(part.count for part in parts)
        parts = [_at_most(part, everybody - part.count) for part in parts]
    return _Sums(
        sum(part.count for part in parts),
        sum(part.total for part in parts),
        sum(part.squares for part in parts),
    )


def _found(parts: Sequence[_Sums]) -> list[tuple[float, float]]:
    """Return the mean and the deviation of those that have one."""
    figures = [_mean_and_deviation(part) for part in parts]
    return [(mean, deviation) for mean, deviation in figures if deviation != NOT_FOUND]


def _is_near(part: _Sums, centre: float, reach: float) -> bool:
    mean, deviation = _mean_and_deviation(part)
    return abs(mean - centre) <= reach and (deviation == NOT_FOUND or deviation <= reach)


def _at_most(part: _Sums, count: float) -> _Sums:
    if part.count <= count or not count:
        return part
    return _Sums(count, part.total * (count / part.count), part.squares * (count / part.count))


def problem_with_sums(sums: FeatureSums, task: Task) -> str | None:
    """Return why a hospital's sums cannot be pooled, or None."""
    numbers = number_columns(task)
    for values in (sums.count, sums.total, sums.squares):
        if len(values) != len(numbers):
            return f"sums of {len(values)} columns, expected {len(numbers)}"
    for index, is_number in enumerate(numbers):
        count, total, squares = sums.count[index], sums.total[index], sums.squares[index]
        if not is_number and (count or total or squares):
            return f"sums of the category column {index}, which is not scaled"
        if count > MOST_PATIENTS:
            return f"column {index} has {count} values"
        if not 0 <= squares <= count * LARGEST_VALUE**2:
            return f"column {index} has the sum of squares {squares:.4g} of {count} values"
        # Cauchy-Schwarz: the squared sum of n values is at most n times their sum of squares.
        if total * total > count * squares * (1 + 1e-6):
            return f"column {index} has a sum too large for its sum of squares"
    return None


def _mean_and_deviation(sums: _Sums) -> tuple[float, float]:
    if sums.count == 0:
        return 0.0, NOT_FOUND
    mean, mean_square = sums.total / sums.count, sums.squares / sums.count
    variance = mean_square - mean * mean
    constant = variance <= SMALLEST_RELATIVE_VARIANCE * mean_square
    if constant:
        return mean, NOT_FOUND
    deviation = sqrt(variance)
    return mean, nextafter(deviation, 2.0) if deviation == NOT_FOUND else deviation
