"""Nothing that is read from a file or another machine is without a bound."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from pydantic import ValidationError

import erosion_client
import erosion_common
import erosion_server
from erosion_common.errors import StudyError
from erosion_common.formats.sent_log import AuditEntry
from erosion_common.protocol import wire
from erosion_common.settings.base import Settings
from erosion_common.study.study import study_from_json, study_from_values

LONG = "x" * 2_000_000
TOO_LARGE: dict[str, Any] = {
    "a text": LONG,
    "a number": 10**4000,
    "a list with a long text": [LONG],
    "a table with a long key": {LONG: "x"},
    "a table with a long text": {"k": LONG},
    "a table in tables": {"k": {"k": {"k": LONG}}},
}


def all_settings() -> list[type[Settings]]:
    for package in (erosion_common, erosion_client, erosion_server):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found: dict[str, type[Settings]] = {}
    todo: list[type[Settings]] = [Settings]
    while todo:
        todo += (kinds := todo.pop().__subclasses__())
        found |= {
            f"{kind.__module__}.{kind.__name__}": kind
            for kind in kinds
            if kind.__module__.startswith("erosion_")
        }
    return [found[name] for name in sorted(found)]


def accepted(kind: type[Settings], field: str, value: object) -> bool:
    """Whether the field alone has nothing against the value; the others are missing."""
    try:
        kind.model_validate({field: value})
    except ValidationError as problem:
        if problem.error_count() > len(kind.model_fields):  # one for each item of the value
            return False
        return all(error["loc"][:1] != (field,) for error in problem.errors(include_input=False))
    return True


def test_no_field_of_a_file_or_message_takes_a_value_without_a_bound() -> None:
    assert not [
        f"{kind.__name__}.{field}: {what}"
        for kind in all_settings()
        for field in kind.model_fields.keys() & inspect.get_annotations(kind)
        for what, value in TOO_LARGE.items()
        if (kind, field) != (AuditEntry, "figures")  # a whole reply, as the line bounds it
        and accepted(kind, field, value)
    ]


def endless(schema: object) -> Iterator[object]:
    """The lists and tables of a JSON schema that may have any number of items."""
    if isinstance(schema, list):
        for each in schema:
            yield from endless(each)
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield schema
    # Beside keys of its own only `Metrics` has others, and counts them itself.
    is_table = isinstance(schema.get("additionalProperties"), dict) and "properties" not in schema
    if is_table and "maxProperties" not in schema:
        yield schema
    for each in schema.values():
        yield from endless(each)


def test_no_list_or_table_of_a_file_or_message_is_endless() -> None:
    kinds = all_settings()
    assert len(kinds) > 100
    assert not [kind.__name__ for kind in kinds if [*endless(kind.model_json_schema())]]


@pytest.mark.parametrize(
    "study",
    [
        {"name": ":" * 60_000},
        {"name": "a@" * 30_000},
        {"name": "'/:" * 20_000},
        {":" * 60_000: 1},
        {"task": {"kind": "table", ":@" * 30_000: 1}},
        {"hospitals": [":" * 60_000] * 60},
        {f"{number}" + "x" * 60_000: ":" * 60_000 for number in range(30)},
        {"seed": 10**4000},
        {"name": LONG},
        {"arms": {"a": {"algorithm": "x" * 60_000}}},
    ],
    ids=range(10),
)
def test_a_study_that_cannot_be_read_is_refused_in_few_words(study: dict[str, Any]) -> None:
    with pytest.raises(StudyError) as refusal:
        study_from_values(study)
    assert len(str(refusal.value)) < 20_000


def test_a_study_nested_without_end_is_refused() -> None:
    for text in ('{"a":' * 100_000, '{"task":' + "[" * 500 + "]" * 500 + "}"):
        with pytest.raises(StudyError):
            study_from_json(text)


@pytest.mark.parametrize("items", ["[],", "{},", "[[]],"])
def test_a_header_of_very_many_lists_is_refused_before_they_are_looked_at(items: str) -> None:
    """Each was validated as whatever it might be: seconds for one message of anybody's."""
    text = '{"study": {"a": [' + items * 2**18 + "0]}}"
    record = RecordDict({"header": ConfigRecord({"json": text})})
    with pytest.raises(wire.WireError, match="lists and tables"):
        wire.decode_describe(record, wire.KnownStudies())
