"""The reference of the study and the site file: every key, its kind, default and meaning."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from erosion_common.program.commands import optional
from erosion_common.settings.base import Settings, models_in

PLURALS = ("text", "table", "number", "whole number", "path")
MOST_FORMS = 5  # named in a heading
TELLS_APART = ("source", "kind", "outcome", "algorithm", "name", "type")  # keys of a union's tables

LIMITS = {  # a field's: what a JSON schema calls it, and its word here
    "ge": ("minimum", "from"),
    "gt": ("exclusiveMinimum", "above"),
    "le": ("maximum", "to"),
    "lt": ("exclusiveMaximum", "below"),
}

Model = type[BaseModel]


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a file, or the keys that some of its forms have."""

    table: str  # as in the file, e.g. "[data.derive.COLUMN]"; "" for the top
    forms: tuple[Model, ...]  # that stand there and have these keys
    only: str  # which forms they are, e.g. 'source = "sql"'; "": all
    about: str
    keys: tuple[str, ...]


def sections(model: Model) -> Iterator[Section]:
    """Those of a file, from the top, every table followed by the tables within it."""
    yield from _of_forms((model,), "", set())


def markdown(model: Model, title: str, opening: str, command: str) -> str:
    """Return the page. `command` is the one that prints it."""
    parts = [
        f"# {title}",
        f"<!-- Made by `{command}`; a test sees that it is current. -->",
        opening,
    ]
    for section in sections(model):
        named = f"`{section.table}`" if section.table else "At the top"
        parts += [f"## {named}{', with ' if section.only else ''}{section.only}"]
        parts += [section.about] if section.about and section.table else []
        parts.append(_key_table(section))
    return "\n\n".join(parts) + "\n"


def _of_forms(
    forms: Sequence[Model], table: str, seen: set[tuple[str, Model]]
) -> Iterator[Section]:
    """The sections of the tables that may stand in one place: shared keys first, each once."""
    done: set[tuple[Model, str]] = set()
    for form in forms:
        # The classes that define its keys, the most general one first.
        known = [c for c in form.__mro__ if issubclass(c, BaseModel)]
        for owner in (c for c in reversed(known) if c not in (BaseModel, Settings)):
            having = tuple(f for f in forms if issubclass(f, owner))
            keys = tuple(
                key
                for key in form.model_fields
                if owner is next(c for c in form.__mro__ if key in inspect.get_annotations(c))
            )
            fresh = tuple(k for k in keys if (owner, k) not in done)
            done |= {(owner, k) for k in keys}
            if fresh:
                only = _which(having, forms) if len(having) < len(forms) else ""
                about = summary(owner) if len(having) == 1 or len(forms) == 1 else ""
                if len(having) > MOST_FORMS and only:
                    only, about = f"most of the {len(forms)} forms", f"These have {only}."
                yield Section(table, having, only, about, fresh)
    for key, field in (pair for form in forms for pair in form.model_fields.items()):
        inner = tuple(dict.fromkeys(_models_in(field)))
        name = _inner_table(table, key, field)
        todo = tuple(m for m in inner if (name, m) not in seen)
        seen |= {(name, m) for m in todo}
        if todo:
            yield from _of_forms(todo, name, seen)


def _which(having: Sequence[Model], forms: Sequence[Model]) -> str:
    """Return the words that distinguish these forms from the others of the place."""
    for name in TELLS_APART:
        mine = {_word(form, name) for form in having}
        if "" not in mine and not mine & {_word(f, name) for f in forms if f not in having}:
            words = [f'"{word}"' for word in dict.fromkeys(_word(f, name) for f in having)]
            return f"`{name} = {' | '.join(words)}`"
    return " or ".join(f"`{_told(form)}`" for form in having)


def _told(form: Model) -> str:
    """By all its words, e.g. kind = "image", outcome = "regression"."""
    return ", ".join(f'{name} = "{word}"' for name in TELLS_APART if (word := _word(form, name)))


def _word(form: Model, name: str) -> str:
    field = form.model_fields.get(name)
    return field.default if field is not None and isinstance(field.default, str) else ""


def _inner_table(table: str, key: str, field: FieldInfo) -> str:
    """Return the header of the table in a field, as the file writes it."""
    path = f"{table.strip('[]')}.{key}".lstrip(".")
    kind = str(field.annotation)
    if re.search(r"\bdict\[", kind) or key in ("arms", "units", "derive"):
        return f"[{path}.{'NAME' if key == 'arms' else 'COLUMN'}]"
    return f"[[{path}]]" if kind.startswith(("tuple[", "list[")) else f"[{path}]"


def _models_in(field: FieldInfo) -> list[Model]:
    """Return the tables that may stand in a field, without those that others only extend."""
    found = models_in(field)
    return [f for f in found if not any(f is not g and issubclass(g, f) for g in found)]


def _key_table(section: Section) -> str:
    form = section.forms[0]
    said = explanations(form)
    rows = ["| key | value | default | |", "|---|---|---|---|"]
    for key in section.keys:
        field = form.model_fields[key]
        cells = (f"`{key}`", _kind(field), _default(field), said[key])
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        word = next((_word(type(value), n) for n in TELLS_APART if _word(type(value), n)), "")
        return f'`"{word}"`' if word else "as below"
    return "" if value in (None, (), {}) else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:.3g}" if value != int(value) else str(int(value))
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return value.isoformat() if isinstance(value, date) else str(value)


def _kind(field: FieldInfo) -> str:
    """Return what may stand there, in words."""
    annotation: Any = field.annotation
    schema = TypeAdapter(annotation).json_schema()
    whole = dict(schema)
    for limit in field.metadata:
        for name, (word, _) in LIMITS.items():
            if getattr(limit, name, None) is not None:
                whole[word] = getattr(limit, name)
    return _in_words(whole, schema.get("$defs", {}), whole)


def _in_words(schema: Mapping[str, Any], defs: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _in_words(defs[schema["$ref"].rpartition("/")[2]], defs, {})
    if "const" in schema:
        return f"`{_toml(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{_toml(value)}`" for value in schema["enum"])
    parts = schema.get("anyOf") or schema.get("oneOf")
    if parts:
        words = [_in_words(p, defs, {**p, **limits}) for p in parts if p.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    match schema.get("type"):
        case "integer":
            return f"whole number{_limits(limits)}"
        case "number":
            return f"number{_limits(limits)}"
        case "boolean":
            return "`true`, `false`"
        case "array":
            items = schema.get("prefixItems") or [schema.get("items", {})]
            each = [_in_words(item, defs, item) for item in items]
            one = each[0] if len(set(each)) == 1 else ", ".join(each)
            return f"list of {one}s" if one in PLURALS else f"list of {one}"
        case "object":
            return "table"
        case "string":
            form = schema.get("format")
            return {"path": "path", "date": "date"}.get(str(form), "text")
    return "text or number" if schema else "any"


def _limits(limits: Mapping[str, Any]) -> str:
    return "".join(
        f" {said} {_toml(limits[name])}" for name, said in LIMITS.values() if name in limits
    )


def explanations(model: type[BaseModel]) -> dict[str, str]:
    """By key of the model, what the nearest class that describes the field says; "" for none."""
    classes = [cls for cls in model.__mro__ if issubclass(cls, BaseModel)]
    said = {}
    for key, field in model.model_fields.items():
        fields = [cls.model_fields[key] for cls in classes if key in cls.model_fields]
        only = get_args(field.annotation)
        kind = "Which kind this is." if len(only) == 1 and isinstance(only[0], str) else ""
        said[key] = next((each.description for each in fields if each.description), kind)
    return said


def summary(model: type[BaseModel]) -> str:
    """Return the first sentence of its docstring, as one line."""
    return " ".join(inspect.cleandoc(model.__doc__ or "").split("\n\n")[0].split())


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file's reference."""

    file: str
    home: str  # module:class; the site file's comes with erosion-client
    title: str
    opening: str

    @property
    def model(self) -> Model:
        """The settings that the file is read into. Raises ErosionError if they are not here."""
        module, _, name = self.home.partition(":")
        found: Model = getattr(optional(module, f"The {self.file} file"), name)
        return found

    def markdown(self) -> str:
        """Return the page."""
        command = f"erosion schema {self.file} --format markdown"
        return markdown(self.model, self.title, self.opening, command)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema with a description of every key."""
        schema = self.model.model_json_schema()
        by_name = {form.__name__: form for s in sections(self.model) for form in s.forms}
        for name, part in {self.model.__name__: schema, **schema.get("$defs", {})}.items():
            said = explanations(by_name[name]) if name in by_name else {}
            for key, value in part.get("properties", {}).items():
                if said.get(key):
                    value["description"] = said[key]
        return schema


PAGES: Mapping[str, FileReference] = MappingProxyType(
    {
        "study": FileReference(
            "study",
            "erosion_common.study.study:Study",
            "Every key of the study file",
            "What all hospitals of a study agree on, in [TOML](https://toml.io). `erosion study new"
            " TABLE --target COLUMN` writes a first draft from a table. A key that has a default"
            " may be left out; an unknown key is refused, and the message suggests the one that was"
            " meant.",
        ),
        "site": FileReference(
            "site",
            "erosion_client.site_file:Site",
            "Every key of the site file",
            "One hospital's data, its coordinator and its own limits, in [TOML](https://toml.io)."
            " `erosion site new --study STUDY.toml --data TABLE` writes a first draft; see"
            " [a hospital's data](data-sources.md). Paths are relative to the file. A key that has"
            " a default may be left out; an unknown key is refused, and the message suggests the"
            " one that was meant.",
        ),
    }
)
