"""Exact sums of rows, in place of the rounded ones that a hospital tells."""

import numpy as np
from numpy.typing import NDArray

from erosion_common.protocol.messages import FeatureSums
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.inputs import TabularTask


def feature_sums(task: TabularTask, rows: NDArray[np.float64]) -> FeatureSums:
    """Per encoded column: number, sum and sum of squares of the values in rows (n, features).

    Exact, as a hospital could make them of rows that may be known to all.
    """
    count: list[int] = []
    total: list[float] = []
    squares: list[float] = []
    for feature, column in zip(task.features, rows.T, strict=True):
        if isinstance(feature, NumberFeature):
            values = column[~np.isnan(column)]
            count.append(len(values))
            total.append(float(values.sum()))
            squares.append(float(np.square(values).sum()))
        else:
            zeros = [0] * task.width(feature)
            count += zeros
            total += zeros
            squares += zeros
    return FeatureSums(count=tuple(count), total=tuple(total), squares=tuple(squares))
