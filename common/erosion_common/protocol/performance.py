"""What the user's site reports of its models beyond metrics: curves, thresholds, groups, effects.

All of it is computed at the user's site from predictions of patients that no model was trained on.
Each share is of at least the site's smallest cell of patients, and so is the difference between
the patients of two neighbouring shares of one model.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from erosion_common.settings.base import Settings
from erosion_common.settings.names import Count, Figure, Said
from erosion_common.study.sections import BEST_LOCAL
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_common.tasks.features import Feature
from erosion_common.tasks.inputs import TabularTask

MOST_POINTS, MOST_MODELS, MOST_ROWS, MOST_COLUMNS = 200, 8, 64, 100
MOST_DEPENDENCES = 6

Values = Annotated[tuple[Figure, ...], Field(max_length=MOST_POINTS, fail_fast=True)]
CurveName = Literal[
    "roc",  # found against false alarms, by thresholds
    "precision_recall",
    "calibration",  # observed against predicted, smoothed
    "net_benefit",  # by threshold
    "auroc_by_time",  # time-dependent, at the cut points
    "free_of_event_low",  # Kaplan-Meier at the cut points, of the third with the lowest risk
    "free_of_event_middle",
    "free_of_event_high",
]
EstimateName = Literal[
    "calibration_slope",
    "calibration_in_the_large",
    "expected_over_observed",
    "average_precision",
    "auroc",
]


class Estimate(Settings):
    """A figure with its 95 % interval."""

    value: Figure
    low: Figure
    high: Figure


class Curve(Settings):
    """Points with a 95 % band."""

    x: Values
    y: Values
    low: Values
    high: Values

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        if len({len(self.x), len(self.y), len(self.low), len(self.high)}) > 1:
            raise ValueError("a curve's values are not equally many")
        return self


class ThresholdRow(Settings):
    """What it would do to act from a predicted risk on; None: too few patients for it."""

    threshold: float = Field(gt=0, lt=1)
    alerts: float | None = Field(default=None, ge=0, le=1)  # share of patients at or above it
    sensitivity: Estimate | None = None
    specificity: Estimate | None = None
    positive_predictive_value: Estimate | None = None
    negative_predictive_value: Estimate | None = None
    net_benefit: Estimate | None = None


class PredictedGroup(Settings):
    """Patients with similar predictions."""

    num_patients: Count
    predicted: Figure  # mean
    observed: Estimate  # share with the event, or mean
    errors: Annotated[tuple[Figure | None, ...], Field(max_length=5)] = ()
    # of a number: QUANTILES of observed minus predicted


class ModelFigures(Settings):
    """One model's predictions of one event, or of a number."""

    model: Said  # an arm or a local reference
    event: str = Field(default="", max_length=200)  # a class; "event"; "" for a number
    horizon: Figure | None = None  # by when, where the time counts
    num_patients: Count
    num_events: Count | None = None  # None: too few, or censored patients make it unknown
    prevalence: float | None = Field(default=None, ge=0, le=1)
    estimates: dict[EstimateName, Estimate] = Field(default_factory=dict)
    curves: dict[CurveName, Curve] = Field(default_factory=dict)
    groups: tuple[PredictedGroup, ...] = Field(default=(), max_length=MOST_ROWS)
    thresholds: tuple[ThresholdRow, ...] = Field(default=(), max_length=MOST_ROWS)


class Subgroup(Settings):
    """Patients with one category of a column, or within a range of it; None: too few."""

    column: Said
    group: str = Field(max_length=200)
    num_patients: Count | None
    discrimination: Estimate | None = None  # AUROC; R² of a number
    gap: Estimate | None = None  # discrimination minus that of all others
    calibration: Estimate | None = None  # expected / observed; of a number, observed - predicted


class Importance(Settings):
    """How much larger the loss is with one column's values exchanged between patients."""

    column: Said
    loss: Estimate


class Dependence(Settings):
    """The mean prediction for the user's patients if all had one value of a column."""

    column: Said
    x: Values = ()  # of a number
    categories: Annotated[tuple[str, ...], Field(max_length=MOST_POINTS)] = ()  # else
    y: Values  # risk of the event, by the horizon where there is one, or the number

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(self.y) != len(self.x or self.categories) or not self.y:
            raise ValueError("a column's values are not as many as its predictions")
        return self


class Coefficient(Settings):
    """Of a linear model, for one standard deviation of a number, or for having a category.

    Of a number's logarithm, for twice the number.

    Of an interaction, by how much one feature's effect grows with the other.
    """

    column: Said
    category: str | None = Field(default=None, max_length=200)  # or two, of an interaction
    value: Figure  # log odds of the event, or of its hazard; or in the outcome's unit
    refits: Estimate | None = None  # the same, with an interval from the folds' models
    pooled: Estimate | None = None  # the same, by the standard error of an exact regression
    alone: Estimate | None = None  # of the user's patients alone, bootstrapped


class Performance(Settings):
    """All of it. Empty where the task has none, or there are too few patients."""

    models: tuple[ModelFigures, ...] = Field(default=(), max_length=MOST_MODELS)
    shown: str = Field(default="", max_length=200)  # the arm that all below is of
    subgroups: tuple[Subgroup, ...] = Field(default=(), max_length=MOST_ROWS)
    importance: tuple[Importance, ...] = Field(default=(), max_length=MOST_COLUMNS)
    dependence: tuple[Dependence, ...] = Field(default=(), max_length=MOST_DEPENDENCES)
    coefficients: tuple[Coefficient, ...] = Field(default=(), max_length=MOST_COLUMNS)
    why_not: str = Field(default="", max_length=500)  # why there are no curves


def problem_with_performance(found: Performance, study: Study) -> str | None:
    """Return why a site's figures cannot be of this study; None where they can."""
    models = {*study.arms, *study.references, BEST_LOCAL, ""}
    events = {*study.task.group_names, "event", ""}
    columns = {feature.name for feature in features_of(study)}
    pairs = [p.column for p in study.task.products()] if isinstance(study.task, TabularTask) else []
    for what, names, known in (
        ("the model", [found.shown, *(each.model for each in found.models)], models),
        ("the event", [each.event for each in found.models], events),
        ("the column", [*_columns(found)], columns),
        ("the effect", [each.column for each in found.coefficients], {*columns, *pairs}),
    ):
        if strange := sorted({*names} - known):
            return f"it has figures of {what} {printable(strange[0], at_most=50)!r}"
    return None


def features_of(study: Study) -> tuple[Feature, ...]:
    """Return the columns that the study's models read; none of images."""
    features: tuple[Feature, ...] = getattr(study.task, "features", ())
    return features


def _columns(found: Performance) -> Iterator[str]:
    for part in (found.subgroups, found.importance, found.dependence):
        yield from (each.column for each in part)
