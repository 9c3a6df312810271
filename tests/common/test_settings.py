"""Reading TOML, and the sentences that a person reads where a file is wrong."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from erosion_common.errors import SiteError
from erosion_common.settings.base import Settings, read_toml, validate
from tests.support.refusals import refused


class Circle(Settings):
    kind: Literal["circle"] = "circle"
    radius: float = Field(gt=0)


class Box(Settings):
    kind: Literal["box"] = "box"
    sides: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=2)


class Drawing(Settings):
    title: str = Field(min_length=1)
    copies: int = Field(default=1, ge=1, le=9)
    shape: Annotated[Circle | Box, Field(discriminator="kind")]
    named: dict[str, Annotated[Circle | Box, Field(discriminator="kind")]] = Field(
        default_factory=dict
    )
    listed: tuple[Annotated[Circle | Box, Field(discriminator="kind")], ...] = ()


CIRCLE = {"kind": "circle", "radius": 1}


def problems(**changes: Any) -> list[str]:
    """What is said about a drawing in which these keys are changed; None removes one."""
    raw = {"title": "sun", "shape": CIRCLE} | changes
    with pytest.raises(SiteError) as raised:
        validate(
            Drawing, {k: v for k, v in raw.items() if v is not None}, "Drawing x.toml", SiteError
        )
    first, *lines = str(raised.value).splitlines()
    assert first == "Drawing x.toml:"
    return [line.removeprefix("  ") for line in lines]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"title": None}, "title"),
        ({"title": 3}, "title"),
        ({"copies": 0}, "copies 1"),
        ({"copies": 1.5}, "copies"),
        ({"copys": 2}, "copys copies"),
        ({"xyz": 2}, "xyz copies listed named shape title"),
        ({"named": 3}, "named"),
        ({"shape": {"kind": "circle", "radius": -1}}, "shape.radius 0"),
        ({"shape": {"kind": "circle", "radius": float("inf")}}, "shape.radius"),
        ({"shape": {"kind": "circel"}}, "shape.kind 'circle' 'box'"),
        ({"shape": {"kind": "box", "sides": [1]}}, "shape.sides 2"),
        ({"shape": {"kind": "box", "sides": [1, 0]}}, "shape.sides[1] 0"),
        ({"shape": {"kind": "box", "sides": [1, 2], "radius": 3}}, "shape.radius kind sides"),
        ({"named": {"circle": {"kind": "circle", "radius": 0}}}, "named.circle.radius 0"),
        (
            {"named": {"circle": {"kind": "box", "sides": [1, 2], "side": 3}}},
            "named.circle.side sides",
        ),
        ({"listed": [CIRCLE, {"kind": "circle", "radius": 0}]}, "listed[1].radius 0"),
    ],
)
def test_a_problem_is_named_with_its_key_and_what_is_allowed(
    changes: dict[str, Any], named: str
) -> None:
    (said,) = problems(**changes)
    key, *allowed = named.split()
    assert said.split()[0] == key
    assert all(word.rstrip(",") in said for word in allowed), said


def test_all_problems_are_named_at_once_and_long_values_cut() -> None:
    missing, long = problems(title=None, copies="x" * 100)
    assert (missing.split()[0], long.split()[0]) == ("title", "copies")
    assert "x" * 76 in long
    assert "x" * 77 not in long


def test_an_item_with_a_name_is_called_by_it() -> None:
    class Person(Settings):
        name: str
        age: int = Field(ge=0)

    class Family(Settings):
        people: tuple[Person, ...]

    raw = {"people": [{"name": "Ada", "age": 3}, {"name": "Bob", "age": -1}]}
    with refused(SiteError, "people[Bob].age = -1"):
        validate(Family, raw, "x", SiteError)


# -- Files -------------------------------------------------------------------------------------


def reading(path: Path) -> str:
    with pytest.raises(SiteError) as raised:
        read_toml(path, "site file", SiteError)
    return str(raised.value)


def test_a_pipe_is_no_matter_of_permissions(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "account" not in reading(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('früher = "former"', '"Größe"'),
        ("[data.values.Größe]", '"Größe"'),
        ('mean radius = "r"', "quotes"),
        ("age = Alter", '"yes"'),
        ('a = "1', "TOML"),
        ("name = 'a'\nshare = 0,1\n", "0.1"),
        ("share = ,5\n", "0.1"),
        ("share = .5\n", "0.1"),
        ('name = "a"\nrounds = = 3\n', "line 2, column 10"),
        ("a = " + "[" * 10_000, "TOML"),
        (f"a = {'9' * 5_000}", "TOML"),
    ],
)
def test_what_is_no_toml_is_refused_with_a_hint(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    assert hint in reading(tmp_path / "x.toml")


class Data(Settings):
    """What names a file."""

    path: Path


@pytest.mark.parametrize(
    "path",
    ["C:\\data\\x.csv", "C:\\new\\table.csv", "D:\\Users\\x.csv", "data\\table.csv", ".\\new"],
)
def test_a_path_of_windows_in_double_quotes_is_told_how_to_be_written(
    tmp_path: Path, path: str
) -> None:
    def read(text: str) -> Data:
        (tmp_path / "x.toml").write_text(text, encoding="utf-8")
        return validate(Data, read_toml(tmp_path / "x.toml", "x", SiteError), "x", SiteError)

    with pytest.raises(SiteError) as mistaken:
        read(f'path = "{path}"\n')
    assert r"'C:\data\patients.csv'" in str(mistaken.value)
    assert str(read(f"path = '{path}'\n").path) == path


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    assert str(file) in reading(file)
    file.write_bytes('name = "Zürich"'.encode("latin-1"))
    for path, named in ((file, "UTF-8"), (tmp_path, str(tmp_path)), (file / "y", str(file / "y"))):
        assert named in reading(path)
    file.write_text('name = "Zürich"', encoding="utf-8")
    assert read_toml(file, "site file", SiteError) == {"name": "Zürich"}


def test_the_mark_that_windows_editors_put_in_front_is_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b'\xef\xbb\xbfname = "a"\r\n')
    assert read_toml(file, "site file", SiteError) == {"name": "a"}
