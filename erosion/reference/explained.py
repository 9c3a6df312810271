"""Explains each key of a study or site file, for `erosion schema` and the reference pages."""

import inspect
from typing import get_args

from pydantic import BaseModel


def explanations(model: type[BaseModel]) -> dict[str, str]:
    """By key of the model, what the nearest class that describes the field says; "" for none."""
    classes = [cls for cls in model.__mro__ if issubclass(cls, BaseModel)]
    return {key: _described(key, classes) for key in model.model_fields}


def summary(model: type[BaseModel]) -> str:
    """The first sentence of its docstring, as one line."""
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())


def _described(key: str, classes: list[type[BaseModel]]) -> str:
    fields = [cls.model_fields[key] for cls in classes if key in cls.model_fields]
    said = next((field.description for field in fields if field.description), "")
    only = get_args(fields[0].annotation)
    return said or ("Which kind this is." if len(only) == 1 and isinstance(only[0], str) else "")
