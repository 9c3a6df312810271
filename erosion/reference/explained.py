"""Explains each key of a study or site file, for `erosion schema` and the reference pages.

`keys.toml` has it in a user's words, by class and key. A key that is not in there is explained by
its method's docstring ("Parameters: `epsilon` (...)"), or else by the comment beside its field.
"""

import ast
import inspect
import re
import textwrap
import tomllib
from functools import cache
from importlib.resources import files
from typing import get_args

from pydantic import BaseModel


def explanations(model: type[BaseModel]) -> dict[str, str]:
    """By key of the model; "" where nothing is said of it anywhere."""
    classes = [cls for cls in model.__mro__ if issubclass(cls, BaseModel) and cls is not BaseModel]
    return {key: _explained(key, classes) for key in model.model_fields}


def summary(model: type[BaseModel]) -> str:
    """The first sentence of its docstring, as one line."""
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())


def _explained(key: str, classes: list[type[BaseModel]]) -> str:
    """By the nearest class that says anything of it."""
    for cls in classes:
        for found in (_in_words().get(cls.__name__, {}), _of_parameters(cls), _beside_fields(cls)):
            if found.get(key):
                return found[key]
    only = get_args(classes[0].model_fields[key].annotation)
    return "Which kind this is." if len(only) == 1 and isinstance(only[0], str) else ""


@cache
def _in_words() -> dict[str, dict[str, str]]:
    text = (files("erosion.reference") / "keys.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _of_parameters(cls: type[BaseModel]) -> dict[str, str]:
    """What "Parameters: `a` (what it is; more), `b` and `c` (...)" in a docstring says."""
    text = " ".join((cls.__doc__ or "").split())
    _, _, listed = text.partition("Parameter")
    listed = listed.partition(" Source:")[0]
    found = {}
    for match in re.finditer(r"`(\w+)` \(", listed):
        depth, end = 1, match.end()
        while depth and end < len(listed):
            depth += {"(": 1, ")": -1}.get(listed[end], 0)
            end += 1
        found[match[1]] = _sentence(listed[match.end() : end - 1])
    return found


@cache
def _beside_fields(cls: type[BaseModel]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # no source at hand
        return {}
    (defined,) = ast.parse(source).body
    assert isinstance(defined, ast.ClassDef)
    lines = source.splitlines()
    return {
        node.target.id: _comments(lines, node.lineno, node.end_lineno or node.lineno)
        for node in defined.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _comments(lines: list[str], first: int, last: int) -> str:
    """The comment at the end of a field's lines, and those below that go on with its sentence."""
    said = [text for line in lines[first - 1 : last] if (text := _comment(line))]
    for line in lines[last:]:
        alone = re.fullmatch(r"\s*# ?(.*)", line)
        if not said or alone is None or alone[1][:1].isupper():
            break
        said.append(alone[1])
    return _sentence(" ".join(said))


def _comment(line: str) -> str:
    """What stands behind the `#` that is not within quotes."""
    found = re.fullmatch(r"""(?:[^#"']|"[^"]*"|'[^']*')*#\s?(.*)""", line)
    return "" if found is None or found[1].startswith("noqa") else found[1]


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else text + "."
