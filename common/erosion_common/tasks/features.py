"""The columns that a model reads: numbers and categories, as a study file describes them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from erosion_common.settings.base import Settings
from erosion_common.settings.names import Code, ColumnName, Unit

MissingPolicy = Literal["refuse", "drop", "impute"]  # of a whole task
NumberMissing = Literal["refuse", "drop", "impute"]  # "impute": the mean
CategoryMissing = Literal["refuse", "drop", "mode", "indicator"]


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
        description='As the task\'s `missing`, for this column alone: `"refuse"`, `"drop"`, or '
        '`"impute"`, which is the mean.',
    )
    typical: Range | None = Field(
        default=None,
        description="About the middle half of the values at one hospital, rounded. Nothing is "
        "refused because of it: `erosion site new` uses it to tell columns and units apart, and "
        "a hospital is warned if its values mostly lie far off.",
    )


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
