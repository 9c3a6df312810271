"""Bounds of everything that is read from a file or another machine, before anything looks at it."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import CoreSchema, core_schema

LONGEST_TEXT = 4096  # characters, where a field does not say how many
MOST_ITEMS = 2**17  # of a list or a table, likewise
LARGEST_WHOLE = 2**63 - 1
MOST_TEXT = 2**16  # characters of any text: a query of the site file is the longest
MOST_BITS = 512  # of any whole number: a code is compared as text
MOST_DEPTH = 24  # of values in values

_ITEMS = {"list", "tuple", "set", "frozenset", "dict"}
_UNSEEN = {"metadata", "serialization", "default", "ref"}  # of a schema: they validate nothing


def problem_with_size(values: object) -> str | None:
    """Why plain values are larger than anything that is read here, or None."""
    todo = [(values, 0)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, str):
            if len(value) > MOST_TEXT:
                return f"a text in it has {len(value)} characters; {MOST_TEXT} are the most"
        elif isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                return "a whole number in it has more digits than any that is meant"
        elif isinstance(value, Mapping | list | tuple):
            if depth == MOST_DEPTH:
                return f"tables and lists in it are nested more than {MOST_DEPTH} deep"
            if len(value) > MOST_ITEMS:
                return f"a table or list in it has {len(value)} items; {MOST_ITEMS} are the most"
            inner = [*value, *value.values()] if isinstance(value, Mapping) else value
            todo += [(each, depth + 1) for each in inner]
    return None


def checked_size(value: Any) -> Any:
    """The value; raises ValueError where it is larger than anything that is read here."""
    if problem := problem_with_size(value):
        raise ValueError(problem)
    return value


def bounded(schema: CoreSchema) -> CoreSchema:
    """Put bounds into a schema of pydantic's where it has none; texts are bounded by its config."""
    made: dict[str, Any] = {
        key: value if key in _UNSEEN else _bounded_inside(value) for key, value in schema.items()
    }
    if schema["type"] in _ITEMS:
        made.setdefault("max_length", MOST_ITEMS)
    elif schema["type"] == "int":
        if "lt" not in made:
            made.setdefault("le", LARGEST_WHOLE)
        if "gt" not in made:
            made.setdefault("ge", -LARGEST_WHOLE)
    elif schema["type"] == "bytes":
        made.setdefault("max_length", LONGEST_TEXT)
    elif schema["type"] == "any":
        return core_schema.no_info_after_validator_function(checked_size, schema)
    return made


def _bounded_inside(value: Any) -> Any:
    if isinstance(value, dict):
        return bounded(value) if isinstance(value.get("type"), str) else _each(value)
    if isinstance(value, list):
        return [_bounded_inside(each) for each in value]
    return value


def _each(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _bounded_inside(value) for key, value in values.items()}
