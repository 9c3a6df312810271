"""The columns that a model reads: numbers and categories, as a study file describes them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from erosion.common.settings.base import Settings
from erosion.common.settings.names import Code, ColumnName, Unit

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

    name: ColumnName
    type: Literal["number"] = "number"
    unit: Unit = ""
    range: Range | None = None  # both ends included; a value outside is refused
    missing: NumberMissing | None = None  # None: the task's policy
    typical: Range | None = None  # about the middle half of the values at one hospital; nothing is
    # refused by it, but columns and units are told apart by it (`erosion site new`, `check`)


class CategoryFeature(Settings):
    """A coded quantity: one 0/1 input column for every category but the first.

    A missing one becomes the hospital's commonest category ("mode"), or is told the model by an
    input column of its own ("indicator"), which serves hospitals that never recorded it, too.
    """

    name: ColumnName
    type: Literal["category"] = "category"
    unit: Unit = ""
    categories: tuple[Code, ...] = Field(min_length=2)
    missing: CategoryMissing | None = None  # None: the task's policy, "indicator" for "impute"

    @field_validator("categories")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("name each category once")
        return value


def _number_unless_typed(value: Any) -> Any:
    """A feature without `type` is a number; a bare string is a number feature's name."""
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
