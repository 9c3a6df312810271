"""The inputs of a model, one patient's: the columns of a table, or an image."""

from collections import Counter
from itertools import product
from math import inf, prod
from typing import Annotated, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from erosion_common.settings.names import ColumnName
from erosion_common.tasks.features import (
    CategoryFeature,
    CategoryMissing,
    Feature,
    MissingPolicy,
    NumberFeature,
    NumberMissing,
)
from erosion_common.tasks.preparations import ABSENT, InputTerm, input_terms
from erosion_common.tasks.task import Task

FEWEST_PER_INPUT = 10  # patients of the rarer outcome, by a rule of thumb; Peduzzi et al. 1996
MOST_VALUES = 2**28  # of one image; a volume of 512 x 512 x 512 has half as many
MOST_PRODUCTS = 10_000  # input columns of all interactions together

Inputs = TypeVar("Inputs", NDArray[np.float32], NDArray[np.float64], Tensor)


class Product(NamedTuple):
    """One input column of an interaction: two others, multiplied."""

    left: int  # places of the input columns
    right: int
    column: str  # the features, for people
    category: str | None  # the categories; None: of two numbers


class TabularTask(Task):
    """Predict from a row of a table."""

    kind: Literal["tabular"] = Field(
        default="tabular", description="The input is a row of a table."
    )
    features: tuple[Feature, ...] = Field(
        min_length=1,
        description="Columns that the model reads. A bare name is a number without a range.",
    )
    missing: MissingPolicy = Field(
        default="refuse",
        description="What becomes of a patient who lacks a value, unless the feature says "
        'otherwise. `"refuse"`: the table is not accepted. `"drop"`: the patient is left out. '
        '`"impute"`: a number becomes the mean; a category gets a separate input that says '
        "that it is missing.",
    )
    interactions: tuple[tuple[ColumnName, ColumnName], ...] = Field(
        default=(),
        max_length=100,
        description='Pairs of features with an effect together: `[["age", "sex"]]`. One more input '
        "for two numbers, and for each category but the first of a number with a category: the "
        "product of their inputs as scaled, after `winsorise` and `log`, and without `knots`. An "
        "update tells the values of a patient who is alone in such a category.",
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        named = (*self.features, *self.target_columns)
        times = Counter(column.name for column in named)
        twice = sorted(name for name in times if times[name] > 1)
        if twice:
            raise ValueError(
                f"{', '.join(twice)} is named twice among target and features;"
                " a column has one role"
            )
        return self

    @model_validator(mode="after")
    def _interactions_are_of_features(self) -> Self:
        known, seen = {feature.name for feature in self.features}, set()
        for pair in self.interactions:
            if absent := sorted({*pair} - known):
                raise ValueError(f"interactions: {absent[0]!r} is none of the features")
            if len({*pair}) == 1 or frozenset(pair) in seen:
                raise ValueError(f"interactions: {list(pair)}: name two features, each pair once")
            seen.add(frozenset(pair))
        if (num := self._num_products()) > MOST_PRODUCTS:
            raise ValueError(f"interactions: {num:,} inputs, and {MOST_PRODUCTS:,} are allowed")
        return self

    def policy(self, feature: NumberFeature | CategoryFeature) -> NumberMissing | CategoryMissing:
        """Return the policy for patients who lack the feature."""
        if feature.missing is not None:
            return feature.missing
        if self.missing == "impute" and isinstance(feature, CategoryFeature):
            return "indicator"
        return self.missing

    def width(self, feature: NumberFeature | CategoryFeature) -> int:
        """Return how many input columns the feature becomes."""
        return len(self.terms(feature))

    def terms(self, feature: NumberFeature | CategoryFeature) -> list[InputTerm]:
        """Return the input columns that the feature becomes."""
        return input_terms(feature, self.policy(feature))

    def columns(self) -> list[tuple[str, str]]:
        """Return each input column's feature, and which of its columns it is, or ""."""
        own = [
            (feature.name, term.label) for feature in self.features for term in self.terms(feature)
        ]
        return own + [(each.column, each.category or "") for each in self.products()]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one patient's input: (number of encoded columns,)."""
        return (sum(self.width(feature) for feature in self.features) + self._num_products(),)

    def _num_products(self) -> int:
        if not self.interactions:
            return 0
        counts = {f.name: len(getattr(f, "categories", (0, 0))) - 1 for f in self.features}
        return sum(counts[left] * counts[right] for left, right in self.interactions)

    def products(self) -> list[Product]:
        """Return the interactions' input columns, which come after those of the features."""
        if not self.interactions:
            return []
        places: dict[str, list[tuple[int, str]]] = {}
        place = 0
        for feature in self.features:
            for term in self.terms(feature):
                if not term.cubes and term.code != ABSENT:
                    label = "" if term.code is None else term.label
                    places.setdefault(feature.name, []).append((place, label))
                place += 1
        return [
            Product(a, b, f"{one} × {other}"[:200], ", ".join(filter(None, (x, y))) or None)
            for one, other in self.interactions
            for (a, x), (b, y) in product(places[one], places[other])
        ]

    def crossed_categories(self, rows: NDArray[np.float64]) -> list[NDArray[np.int64]]:
        """Return each category feature in an interaction: (n,) codes of `rows` (n, features)."""
        crossed = {name for pair in self.interactions for name in pair}
        return [
            np.nan_to_num(codes, nan=ABSENT).astype(np.int64)
            for feature, codes in zip(self.features, rows.T, strict=True)
            if isinstance(feature, CategoryFeature) and feature.name in crossed
        ]


def multiply(task: TabularTask, inputs: Inputs, farthest: float = inf) -> Inputs:
    """Fill the interactions' columns of inputs (n, columns) by the others'; returns `inputs`.

    What lies further than `farthest` from 0 is moved there, as a scaled number is.
    """
    place = inputs.shape[1] - len(products := task.products())
    for each in products:
        found = inputs[:, each.left] * inputs[:, each.right]
        inputs[:, place] = found.clip(-farthest, farthest)
        place += 1
    return inputs


def takes_mean(task: TabularTask, feature: NumberFeature | CategoryFeature) -> bool:
    """Return whether a missing value becomes the mean."""
    return isinstance(feature, NumberFeature) and task.policy(feature) in ("impute", "indicator")


def stands_in(task: Task, *, scaled: bool) -> bool:
    """Return whether a replacement for a missing value depends on a hospital's patients.

    A missing number is the mean, which is 0 where columns are scaled; a category the commonest one.
    """
    return isinstance(task, TabularTask) and any(
        task.policy(feature) == "mode" or (takes_mean(task, feature) and not scaled)
        for feature in task.features
    )


def few_for_inputs(task: Task, num_events: int, how_exact: str = "") -> str:
    """Say that a table's model has many inputs for so few patients; "" where it has not.

    `num_events`: `smallest_group` of the training patients. `how_exact`: put before it.
    """
    inputs = task.input_shape[0] if isinstance(task, TabularTask) else 0
    if num_events >= FEWEST_PER_INPUT * inputs:
        return ""
    return (
        f"{how_exact}{num_events} patients {task.group_word} for {inputs} inputs of the model; a"
        f" rule of thumb asks for {FEWEST_PER_INPUT} an input. Trained on them alone, the model"
        " may learn much by chance. Fewer columns, categories, knots or interactions help"
    )


class ImageTask(Task):
    """Predict from an image, or from a volume: the slices of one scan."""

    kind: Literal["image"] = Field(default="image", description="The input is an image.")
    shape: tuple[int, ...] = Field(
        min_length=3,
        max_length=4,
        description="`[channels, height, width]` in pixels, with 1 or 3 channels.",
    )
    mean: tuple[float, ...] = Field(
        default=(0.0,),
        description="Subtracted from each channel, after pixels were scaled to 0 to 1. One "
        "value, or one for each channel.",
    )
    deviation: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(1.0,),
        description="What the channels are then divided by. One value, or one for each channel.",
    )

    @field_validator("shape")
    @classmethod
    def _grey_or_colour(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) == 4 and value[0] != 1:
            raise ValueError("a volume is grey: write [1, depth, height, width]")
        if value[0] not in (1, 3) or min(value) < 1:
            raise ValueError("write [channels, height, width] with 1 or 3 channels")
        if prod(value) > MOST_VALUES:
            raise ValueError(f"one image has at most {MOST_VALUES:,} values; make it smaller")
        return value

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if len(self.target_columns) != 1:
            raise ValueError(
                f"outcome = {self.outcome!r} has {len(self.target_columns)} target columns, and an"
                " image comes with one label; use a table"
            )
        return self

    @model_validator(mode="after")
    def _channels_fit(self) -> Self:
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if len(values) not in (1, self.shape[0]):
                raise ValueError(
                    f"{name} = {list(values)}; give one value, or one for each channel"
                    f" (shape = {list(self.shape)})"
                )
        return self

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image: (channels, height, width), or with the depth of a volume between."""
        return self.shape

    @property
    def is_of_volumes(self) -> bool:
        """Whether a patient's input has a depth."""
        return len(self.shape) == 4
