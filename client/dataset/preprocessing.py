"""Encodes and scales checked patients into the tensors that a model takes."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion.common.protocol.messages import FeatureSums, Scaling
from erosion.common.tasks.features import NumberFeature
from erosion.common.tasks.inputs import ImageTask, TabularTask
from erosion.common.tasks.task import Task


def feature_sums(task: TabularTask, rows: NDArray[np.float64]) -> FeatureSums:
    """Per encoded column: number, sum and sum of squares of the values in rows (n, features).

    Categories are not scaled, so their columns are left at zero: how many patients have which
    category is nobody's business. Float64, because float32 sums lose too much.
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
            zeros = [0] * (len(feature.categories) - 1)
            count += zeros
            total += zeros
            squares += zeros
    return FeatureSums(count=tuple(count), total=tuple(total), squares=tuple(squares))


def imputes_missing(task: Task) -> bool:
    """Does any feature's missing value stand for the column's mean?"""
    return isinstance(task, TabularTask) and any(
        (feature.missing or task.missing) == "impute" for feature in task.features
    )


def table_inputs(
    task: TabularTask,
    rows: NDArray[np.float64],
    scaling: Scaling | None,
    missing_means: Sequence[float] | None = None,
) -> Tensor:
    """Rows (n, features) as the model's input (n, columns) float32.

    A number becomes (x - mean) / deviation, and a missing one the column's mean: 0 after scaling,
    without a scaling the column's value in `missing_means`. A category becomes an indicator for
    every category but the first; a missing one has all indicators zero, like the first.
    """
    inputs = np.zeros((len(rows), *task.input_shape), dtype=np.float32)
    start = 0  # of the feature's columns
    for feature, values in zip(task.features, rows.T, strict=True):
        if isinstance(feature, NumberFeature):
            missing = missing_means[start] if missing_means else 0.0
            if scaling:
                values = (values - scaling.mean[start]) / scaling.deviation[start]
                missing = 0.0
            inputs[:, start] = np.where(np.isnan(values), missing, values)
            start += 1
        else:
            last = start + len(feature.categories) - 1
            inputs[:, start:last] = values[:, None] == np.arange(1, len(feature.categories))
            start = last
    return torch.from_numpy(inputs)


def image_inputs(task: ImageTask, pixels: NDArray[np.uint8]) -> Tensor:
    """Pixels (n, c, h, w) from 0..255 to (x / 255 - mean) / deviation, as float32."""
    mean = torch.tensor(task.mean).view(1, -1, 1, 1)
    deviation = torch.tensor(task.deviation).view(1, -1, 1, 1)
    return torch.from_numpy(pixels).float().div_(255).sub_(mean).div_(deviation)
