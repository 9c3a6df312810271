"""Reading TOML, and the sentences that a person reads where a file is wrong."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from erosion.common.errors import SiteError
from erosion.common.settings.base import Settings, read_toml, validate


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


def test_a_good_file_gives_settings() -> None:
    drawing = validate(Drawing, {"title": "sun", "shape": CIRCLE}, "x", SiteError)
    assert drawing.shape == Circle(radius=1)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Circle(radius=1).radius = 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"title": None}, "title is missing; add it"),
        ({"title": ""}, "title = ''; it must not be empty"),
        ({"title": 3}, "title = 3; it must be text in quotes"),
        ({"copies": 0}, "copies = 0; it must be 1 or more"),
        ({"copies": 10}, "copies = 10; it must be 9 or less"),
        ({"copies": "many"}, "copies = 'many'; it must be a whole number"),
        ({"copies": 1.5}, "copies = 1.5; it must be a whole number"),
        ({"copys": 2}, "copys is not a known key; did you mean copies?"),
        ({"xyz": 2}, "xyz is not a known key; known here: copies, listed, named, shape, title"),
        ({"shape": 3}, "shape = 3; it must be a table of keys and values"),
        ({"named": 3}, "named = 3; it must be a table of keys and values"),
        ({"listed": "a"}, "listed = 'a'; it must be a list in [ ]"),
        ({"copies": "x" * 100}, f"copies = '{'x' * 76}...; it must be a whole number"),
        # Unions: pydantic's name of the branch is in no one's file and in no message.
        ({"shape": {"kind": "circle"}}, "shape.radius is missing; add it"),
        (
            {"shape": {"kind": "circle", "radius": -1}},
            "shape.radius = -1; it must be more than 0",
        ),
        (
            {"shape": {"kind": "circle", "radius": float("inf")}},
            "shape.radius = inf; it must be a finite number",
        ),
        (
            {"shape": {"kind": "circel"}},
            "shape.kind = 'circel'; it must be one of 'circle', 'box'",
        ),
        ({"shape": {"radius": 1}}, "shape.kind is missing; it must be one of 'circle', 'box'"),
        ({"shape": {"kind": "box", "sides": [1]}}, "shape.sides = [1]; give at least 2"),
        # One wrong item is one problem, not also a list that is too short.
        (
            {"shape": {"kind": "box", "sides": [1, 0]}},
            "shape.sides[1] = 0; it must be more than 0",
        ),
        # Only the keys of the branch that was chosen are known.
        (
            {"shape": {"kind": "box", "sides": [1, 2], "radius": 3}},
            "shape.radius is not a known key; known here: kind, sides",
        ),
        # A key of the file may be the name of a branch, of this one or of another.
        (
            {"named": {"circle": {"kind": "circle", "radius": 0}}},
            "named.circle.radius = 0; it must be more than 0",
        ),
        (
            {"named": {"circle": {"kind": "box", "sides": [1, 2], "side": 3}}},
            "named.circle.side is not a known key; did you mean sides?",
        ),
        # In a list an item is known by its number.
        (
            {"listed": [CIRCLE, {"kind": "circle", "radius": 0}]},
            "listed[1].radius = 0; it must be more than 0",
        ),
    ],
)
def test_a_problem_is_told_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert problems(**changes) == [sentence]


def test_all_problems_are_told_at_once() -> None:
    assert problems(title=None, copies=0) == [
        "title is missing; add it",
        "copies = 0; it must be 1 or more",
    ]


def test_an_item_with_a_name_is_called_by_it() -> None:
    class Person(Settings):
        name: str
        age: int = Field(ge=0)

    class Family(Settings):
        people: tuple[Person, ...]

    raw = {"people": [{"name": "Ada", "age": 3}, {"name": "Bob", "age": -1}]}
    with pytest.raises(SiteError, match=r"people\[Bob\]\.age = -1; it must be 0 or more"):
        validate(Family, raw, "x", SiteError)


# -- Files -------------------------------------------------------------------------------------


def reading(path: Path) -> str:
    with pytest.raises(SiteError) as raised:
        read_toml(path, "site file", SiteError)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('früher = "former"', 'an accent or a mark in it stands in quotes, such as "Größe".'),
        ("[data.values.Größe]", 'an accent or a mark in it stands in quotes, such as "Größe".'),
        ('mean radius = "r"', "A name with a space, an accent or a mark in it stands in quotes"),
        ("age = Alter", 'Text stands in quotes, such as "yes"'),
        ('a = "1', "Correct it there."),
    ],
)
def test_names_and_values_that_lack_their_quotes_are_told_so(
    tmp_path: Path, text: str, hint: str
) -> None:
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    assert hint in reading(tmp_path / "x.toml")


@pytest.mark.parametrize("path", ["C:\\data\\x.csv", "C:\\new\\table.csv", "D:\\Users\\x.csv"])
def test_a_path_of_windows_in_double_quotes_is_told_how_to_be_written(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "x.toml").write_text(f'[data]\npath = "{path}"\n', encoding="utf-8")
    assert r"'C:\data\patients.csv'" in reading(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_text(f"[data]\npath = '{path}'\n", encoding="utf-8")
    assert read_toml(tmp_path / "x.toml", "site file", SiteError) == {"data": {"path": path}}


def test_a_decimal_comma_is_told_to_be_a_point(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("name = 'a'\nshare = 0,1\n", encoding="utf-8")
    assert "a point, such as 0.1" in reading(tmp_path / "x.toml")


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, f"a = {'9' * 5_000}"])
def test_toml_that_python_cannot_hold_is_a_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(SiteError, match=r"x\.toml is not valid TOML: .* Correct it there"):
        read_toml(file, "site file", SiteError)


def test_a_file_is_read_as_toml(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('name = "Zürich"', encoding="utf-8")
    assert read_toml(file, "site file", SiteError) == {"name": "Zürich"}


def test_the_mark_that_windows_editors_put_in_front_is_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b'\xef\xbb\xbfname = "a"\r\n')
    assert read_toml(file, "site file", SiteError) == {"name": "a"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    assert reading(file) == f"There is no site file at {file}. Check the path."


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert reading(tmp_path) == f"{tmp_path} is a folder; give the site file itself (a .toml file)."


def test_a_file_behind_a_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "x.toml").touch()
    assert "cannot be read" in reading(tmp_path / "x.toml" / "y.toml")


def test_malformed_toml_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('name = "a"\nrounds = = 3\n')
    assert reading(file) == (
        f"The site file {file} is not valid TOML: Invalid value (at line 2, column 10)."
        ' Correct it there. Text stands in quotes, such as "yes"; numbers, true and false do not.'
    )


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes('name = "Zürich"'.encode("latin-1"))
    assert reading(file) == f"The site file {file} is not text in UTF-8. Save it as UTF-8."
