"""Settings that take a number, or "auto" where the program is to choose it."""

from typing import Annotated, Literal, TypeVar

from pydantic import Discriminator, Tag

Number = TypeVar("Number")


def _kind(value: object) -> str:
    """By kind, so that a wrong number is told what is wrong with it and not that it is no word."""
    return "auto" if isinstance(value, str) else "number"


OrAuto = Annotated[
    Annotated[Number, Tag("number")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(_kind),
]
