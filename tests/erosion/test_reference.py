"""Every key of both files is explained, in the schema and on pages that are current."""

import json
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from erosion.sources import REGISTRY
from erosion_common.program.command_line import main
from erosion_common.program.reference import PAGES, explanations, sections
from erosion_common.study import study

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_no_key_lacks_an_explanation(name: str) -> None:
    without = {
        f"{form.__name__}.{key}"
        for section in sections(PAGES[name].model)
        for form in section.forms
        for key, said in explanations(form).items()
        if not said or "\n" in said  # which would end the table's row
    }
    assert not without


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    page = DOCS / f"{name}-file.md"
    command = f"erosion schema {name} --format markdown > docs/{page.name}"
    assert page.read_text(encoding="utf-8") == PAGES[name].markdown(), f"run: {command}"
    assert page.name in (DOCS / "site_hooks.py").read_text()  # the menu


@pytest.mark.parametrize("name", PAGES)
def test_every_schema_key_is_described(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    parts = {"": schema, **schema["$defs"]}
    keys = [
        (part, key, v) for part, s in parts.items() for key, v in s.get("properties", {}).items()
    ]
    assert [(part, key) for part, key, value in keys if not value.get("description")] == []
    assert len(keys) > 40


def choices(annotation: object) -> set[str]:
    """The texts that a key may be, where it is one of several."""
    if get_origin(annotation) is Literal:
        return {value for value in get_args(annotation) if isinstance(value, str)}
    return {value for part in get_args(annotation) for value in choices(part)}


@pytest.mark.parametrize("name", PAGES)
def test_an_explanation_that_goes_through_the_choices_leaves_none_out(name: str) -> None:
    left_out = {}
    for form in {form for section in sections(PAGES[name].model) for form in section.forms}:
        for key, said in explanations(form).items():
            field = form.model_fields[key]
            silent = {value for value in choices(field.annotation) if f'"{value}"' not in said}
            if silent != choices(field.annotation) and silent - {field.default}:
                left_out[f"{form.__name__}.{key}"] = silent
    assert not left_out


def test_the_sources_of_a_testbed_are_all_named() -> None:
    said = explanations(study.Testbed)["source"]
    assert {name for name in REGISTRY if f'"{name}"' in said} == set(REGISTRY)
