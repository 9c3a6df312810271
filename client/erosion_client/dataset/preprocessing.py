"""Encodes and scales checked patients into the tensors that a model takes."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_common.errors import DataError
from erosion_common.protocol.messages import Scaling
from erosion_common.protocol.scaling import CUT, NOT_FOUND, Cut
from erosion_common.support.text import significant
from erosion_common.tasks.features import Feature, NumberFeature
from erosion_common.tasks.inputs import ImageTask, TabularTask, multiply, takes_mean
from erosion_common.tasks.preparations import ABSENT, prepared, term_values

UNIT_APART = 3.0  # deviations from the training mean to the median of new patients
FAR = 20.0  # deviations from the training mean; measurements are skewed, and some lie at 17
ZERO_FAR = 4.0  # the same for a 0: where it is measured, it is nearer
MANY = 10  # patients: the middle of fewer may be a severely ill one


def stand_ins(
    task: TabularTask,
    rows: NDArray[np.float64],
    means: Sequence[float],
    counts: Sequence[float],
    *,
    scaled: bool,
) -> tuple[float, ...]:
    """Return the replacement for a missing value, per encoded column, of rows (n, features).

    It is the column's mean for a number and its curve, and the indicators of the commonest category
    for a category that the study replaces by it. `means`: of the numbers of values in `counts`, per
    encoded column; 0 where there are too few for a mean. Raises DataError where a hospital has no
    value.
    """
    values: list[float] = []
    for feature, column in zip(task.features, rows.T, strict=True):
        known, policy = column[~np.isnan(column)], task.policy(feature)
        if len(known) == 0 and policy == "mode":
            raise DataError(
                f"No patient has a value of {feature.name}, so there is no commonest one to"
                " stand for it",
                remedy='Let the study say missing = "indicator" there.',
            )
        is_mean_wanted = takes_mean(task, feature) and not scaled
        if is_mean_wanted and not counts[len(values)]:
            few = "Too few patients have" if len(known) else "No patient has"
            raise DataError(
                f"{few} a value of {feature.name}, so there is no mean to stand for it"
                " (limits.min_cell)",
                remedy='Let the study say scaling = "federated".',
            )
        commonest = None
        if policy == "mode":
            commonest = int(np.bincount(known.astype(np.int64)).argmax())
        for term in task.terms(feature):
            is_number = term.code is None
            values.append(means[len(values)] if is_number else float(term.code == commonest))
    return (*values, *[0.0] * len(task.products()))  # those are made of the inputs


def table_inputs(
    task: TabularTask,
    rows: NDArray[np.float64],
    scaling: Scaling | None,
    missing_values: Sequence[float] | None = None,
    cut: Cut = CUT,
) -> Tensor:
    """Encode rows (n, features) as the model's input (n, columns) float32.

    Each feature becomes its terms (`input_terms`), and interactions follow (`multiply`). A number
    becomes (x - mean) / deviation, clipped on either side (`cut`), and a missing one the column's
    mean: 0 after scaling, without scaling the column's value in `missing_values`. An indicator of a
    missing category becomes what `missing_values` says, unless "missing" has an indicator.
    """
    inputs = np.zeros((len(rows), *task.input_shape), dtype=np.float32)
    place = 0  # of the encoded column
    for feature, values in zip(task.features, rows.T, strict=True):
        absent, inner = np.isnan(values), prepared(feature, values)
        for term in task.terms(feature):
            of_term = term_values(term, inner)
            missing = missing_values[place] if missing_values else 0.0
            if term.code is None and scaling:
                of_term = (of_term - scaling.mean[place]) / scaling.deviation[place]
                farthest = cut.of(scaling.deviation[place])
                of_term, missing = np.clip(of_term, -farthest, farthest), 0.0
            if term.code != ABSENT:
                of_term = np.where(absent, missing, of_term)
            inputs[:, place] = of_term
            place += 1
    return torch.from_numpy(multiply(task, inputs, cut.deviations if scaling else inf))


def placed(task: TabularTask) -> Iterator[tuple[Feature, int]]:
    """Yield each feature with the place of its first encoded column."""
    return zip(task.features, accumulate(map(task.width, task.features), initial=0), strict=False)


def notes_of_cut(
    task: TabularTask, rows: NDArray[np.float64], scaling: Scaling, cut: Cut
) -> Iterator[str]:
    """Yield a note of each column with values that `table_inputs` clips, for the hospital."""
    for (feature, start), values in zip(placed(task), rows.T, strict=True):
        deviation = scaling.deviation[start]
        if isinstance(feature, NumberFeature):
            values, farthest = prepared(feature, values), cut.of(deviation)
            is_cut = np.abs(values - scaling.mean[start]) / deviation > farthest
            if num_cut := int(is_cut.sum()):
                known = int((~np.isnan(values)).sum())
                unit = "" if deviation == NOT_FOUND else " deviations"
                yield (
                    f"{feature.name}: values cut because they lie more than {farthest:g}{unit} from"
                    f" the mean: {num_cut} of {known}. Look for slips, or for another unit"
                )


def notes_of_unlike(
    task: TabularTask, rows: NDArray[np.float64], scaling: Scaling
) -> Iterator[str]:
    """Yield notes where new patients (n, features) differ from the training patients."""
    far = []
    for (feature, start), values in zip(placed(task), rows.T, strict=True):
        mean, deviation = scaling.mean[start], scaling.deviation[start]
        known = prepared(feature, values[~np.isnan(values)])
        is_0_or_1 = 0 <= mean <= 1 and bool(np.isin(known, (0, 1)).all())
        has_deviation = isinstance(feature, NumberFeature) and deviation != NOT_FOUND
        if has_deviation and len(known) and not is_0_or_1:
            apart = np.abs(known - mean) / deviation
            learned = f"{significant(mean)} ± {significant(deviation, 2)}"
            median = float(np.median(known))
            above = UNIT_APART if len(known) >= MANY else FAR
            if not mean - UNIT_APART * deviation <= median <= mean + above * deviation:
                guess = "another unit? [data.units] changes it"
                if median == 0:
                    guess = "does 0 stand for missing values? [data.values] says so"
                yield (
                    f"{feature.name}: typically {significant(median)}, among the training"
                    f" patients {learned}: {guess}"
                )
            elif num_far := int((apart > np.where(known == 0, ZERO_FAR, FAR)).sum()):
                far.append(f"{feature.name} {num_far} of {len(known)} ({learned})")
    if far:
        yield (
            f"values more than {FAR:g} deviations from the mean that the model learned from, or 0"
            f" more than {ZERO_FAR:g}, where its predictions are hardly measured: {', '.join(far)}."
            " Look for slips, and for a number such as 0 that stands for a missing value"
        )


def image_inputs(task: ImageTask, pixels: NDArray[np.uint8]) -> Tensor:
    """Scale pixels (n, c, [d,] h, w) from 0..255 to (x / 255 - mean) / deviation, as float32."""
    shape = (1, -1, *([1] * (pixels.ndim - 2)))
    mean = torch.tensor(task.mean).view(shape)
    deviation = torch.tensor(task.deviation).view(shape)
    return torch.from_numpy(pixels).float().div_(255).sub_(mean).div_(deviation)
