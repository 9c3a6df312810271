"""The columns that a model reads: numbers and categories, as a study file describes them."""

from collections.abc import Mapping
from itertools import pairwise
from math import log
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from erosion_common.settings.base import Settings
from erosion_common.settings.names import Code, ColumnName, Unit

MissingPolicy = Literal["refuse", "drop", "impute"]  # of a whole task
NumberMissing = Literal["refuse", "drop", "impute", "indicator"]  # the last two: the mean
CategoryMissing = Literal["refuse", "drop", "mode", "indicator"]


FEWEST_KNOTS, MOST_KNOTS = 3, 10


def _ascending(value: tuple[float, float]) -> tuple[float, float]:
    if not value[0] < value[1]:
        raise ValueError("write it as [smallest, largest]")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ascending)]  # both ends included


class NumberFeature(Settings):
    """A measured quantity: one input column."""

    name: ColumnName = Field(
        description="Column, as the study calls it. Sites may call it otherwise."
    )
    type: Literal["number"] = Field(
        default="number",
        description="A measured quantity. Left out: a number, unless there are `categories`.",
    )
    unit: Unit = Field(default="", description="Unit, for people: so that a wrong one is noticed.")
    range: Range | None = Field(
        default=None,
        description="Smallest and largest value allowed, both included, in the unit. A value "
        "outside is refused, so a wrong unit is seen at once.",
    )
    missing: NumberMissing | None = Field(
        default=None,
        description='As the task\'s `missing`, for this column alone: `"refuse"`, `"drop"`, '
        '`"impute"`, which is the mean, or `"indicator"`: the mean, and a separate input that says '
        "that it was missing.",
    )
    winsorise: Range | None = Field(
        default=None,
        description="Values beyond these are moved to the nearer one, in training and when a "
        "model is used.",
    )
    log: bool = Field(
        default=False,
        description="Whether the model reads the natural logarithm; `range` or `winsorise` begins "
        "above 0 then.",
    )
    knots: tuple[float, ...] = Field(
        default=(),
        max_length=MOST_KNOTS,
        description="Three or more values between which the effect may bend: a restricted cubic "
        "spline, with as many inputs as there are knots, less one. Choose them by what is known, "
        "with many patients beyond the outer ones: an update can tell the record of a patient "
        "who is alone there.",
    )
    typical: Range | None = Field(
        default=None,
        description="About the middle half of the values at one hospital, rounded. Nothing is "
        "refused because of it: `erosion site new` uses it to tell columns and units apart, and "
        "a hospital is warned if its values mostly lie far off.",
    )

    whole: ClassVar[bool] = False  # whether only whole numbers are values

    @model_validator(mode="after")
    def _can_be_prepared(self) -> Self:
        if 0 < len(self.knots) < FEWEST_KNOTS:
            raise ValueError(f"write at least {FEWEST_KNOTS} knots, or none")
        if any(second <= first for first, second in pairwise(self.knots)):
            raise ValueError("write knots in ascending order")
        lowest = [end[0] for end in (self.range, self.winsorise) if end is not None]
        if self.log and not any(low > 0 for low in lowest):
            raise ValueError("log = true needs a range or winsorise that begins above 0")
        if self.log and self.knots and self.knots[0] <= 0:
            raise ValueError("with log = true, knots are above 0: values before the logarithm")
        places = [log(knot) for knot in self.knots] if self.log else self.knots
        gaps = [second - first for first, second in pairwise(places)]
        if gaps and not (min(gaps) > 1e-9 * sum(gaps) and 1e-50 < sum(gaps) < 1e50):
            raise ValueError("knots are too near or too far apart for a curve through them")
        return self


class CategoryFeature(Settings):
    """A coded quantity: one 0/1 input column for every category but the first.

    A missing one becomes the hospital's commonest category ("mode"), or gets a separate input
    column ("indicator"), which serves hospitals that never recorded it, too.
    """

    name: ColumnName = Field(
        description="Column, as the study calls it. Sites may call it otherwise."
    )
    type: Literal["category"] = Field(
        default="category", description="A coded quantity. Left out where `categories` are given."
    )
    unit: Unit = Field(default="", description="For people.")
    categories: tuple[Code, ...] = Field(
        min_length=2,
        description="All values that there may be. The first is what the others are compared with.",
    )
    missing: CategoryMissing | None = Field(
        default=None,
        description='As the task\'s `missing`, for this column alone. `"refuse"` and `"drop"`: as '
        'there. `"mode"`: the hospital\'s commonest category. `"indicator"`: a separate input, '
        "which also serves hospitals that never recorded it.",
    )

    @field_validator("categories")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("name each category once")
        return value


def _number_unless_typed(value: Any) -> Any:
    """Default `type` to a number; a bare string is a number feature's name."""
    if isinstance(value, str):
        return {"name": value, "type": "number"}
    if isinstance(value, Mapping) and "type" not in value:
        return {**value, "type": "category" if "categories" in value else "number"}
    return value


Feature = Annotated[
    Annotated[NumberFeature | CategoryFeature, Field(discriminator="type")],
    BeforeValidator(
        _number_unless_typed, json_schema_input_type=str | NumberFeature | CategoryFeature
    ),
]
