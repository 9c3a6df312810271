"""Scaling by pooled means and deviations, made of per-hospital sums instead of rows."""

from collections.abc import Sequence
from math import sqrt

from erosion.common.protocol.messages import FeatureSums, Scaling
from erosion.common.tasks.features import NumberFeature
from erosion.common.tasks.inputs import TabularTask
from erosion.common.tasks.task import Task

# A variance this small beside the mean square is rounding: such a column is a constant.
SMALLEST_RELATIVE_VARIANCE = 1e-12
MOST_PATIENTS = 10**9  # of one hospital; more is a fault, and so is a value beyond LARGEST_VALUE
LARGEST_VALUE = 1e30


def number_columns(task: Task) -> tuple[bool, ...]:
    """For every encoded column: is it a number (True), or a category's 0/1 indicator?

    Images have no such columns: the study scales them by itself.
    """
    flags: list[bool] = []
    if not isinstance(task, TabularTask):
        return ()
    for feature in task.features:
        if isinstance(feature, NumberFeature):
            flags.append(True)
        else:
            flags += [False] * task.width(feature)
    return tuple(flags)


def pool(sums: Sequence[FeatureSums], task: Task) -> Scaling:
    """The mean and (population) deviation of the rows of all hospitals together, at least one.

    A category's indicator, a column without values and a constant column keep the deviation 1.
    """
    columns = [
        _mean_and_deviation(
            sum(s.count[index] for s in sums),
            sum(s.total[index] for s in sums),
            sum(s.squares[index] for s in sums),
        )
        if is_number
        else (0.0, 1.0)
        for index, is_number in enumerate(number_columns(task))
    ]
    return Scaling(mean=tuple(m for m, _ in columns), deviation=tuple(d for _, d in columns))


def problem_with_sums(sums: FeatureSums, task: Task) -> str | None:
    """Why a hospital's sums cannot be pooled, or None."""
    numbers = number_columns(task)
    for values in (sums.count, sums.total, sums.squares):
        if len(values) != len(numbers):
            return f"sums of {len(values)} columns, expected {len(numbers)}"
    for index, is_number in enumerate(numbers):
        count, total, squares = sums.count[index], sums.total[index], sums.squares[index]
        if not is_number and (count or total or squares):
            return f"sums of the category column {index}, which is not scaled"
        if not 0 <= count <= MOST_PATIENTS:
            return f"column {index} has {count} values"
        if not 0 <= squares <= count * LARGEST_VALUE**2:
            return f"column {index} has the sum of squares {squares:.4g} of {count} values"
        # Cauchy-Schwarz: the squared sum of n values is at most n times their sum of squares.
        if total * total > count * squares * (1 + 1e-6):
            return f"column {index} has a sum too large for its sum of squares"
    return None


def _mean_and_deviation(count: int, total: float, squares: float) -> tuple[float, float]:
    if count == 0:
        return 0.0, 1.0
    mean, mean_square = total / count, squares / count
    variance = mean_square - mean * mean
    constant = variance <= SMALLEST_RELATIVE_VARIANCE * mean_square
    return mean, 1.0 if constant else sqrt(variance)
