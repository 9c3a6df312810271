"""Reading TOML files into pydantic models, with errors that a person can act on."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    JsonValue,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from erosion_common.errors import ErosionError
from erosion_common.support.files import read_named
from erosion_common.support.software import software_version
from erosion_common.support.text import printable

LONGEST_TEXT = 4096  # characters, where a field does not say how many
MOST_ITEMS = 2**17  # of a list or a table, likewise
LARGEST_WHOLE = 2**63 - 1
MOST_TEXT = 2**16  # characters of any text: a query of the site file is the longest
MOST_BITS = 512  # of any whole number: a code is compared as text
MOST_DEPTH = 24  # of values in values

_NESTED = (dict, list, tuple, Mapping)  # the last is slow to ask about
_SMALL = {float, bool, type(None)}
_ITEMS = {"list", "tuple", "set", "frozenset", "dict"}
_UNSEEN = {"metadata", "serialization", "default", "ref"}  # of a schema: they validate nothing


def problem_with_size(values: object) -> str | None:
    """Return why plain values are larger than anything that is read here, or None."""
    todo = [(values, 0)]
    while todo:
        value, depth = todo.pop()
        if isinstance(value, str):
            if len(value) > MOST_TEXT:
                return f"a text in it has {len(value)} characters; {MOST_TEXT} are the most"
        elif isinstance(value, int):
            if value.bit_length() > MOST_BITS:
                return "a whole number in it has more digits than any that is meant"
        elif isinstance(value, _NESTED):
            if depth == MOST_DEPTH:
                return f"tables and lists in it are nested more than {MOST_DEPTH} deep"
            if len(value) > MOST_ITEMS:
                return f"a table or list in it has {len(value)} items; {MOST_ITEMS} are the most"
            inner: Any = value
            if isinstance(value, dict | Mapping):
                todo += [(k, depth) for k in value if type(k) is not str or len(k) > MOST_TEXT]
                inner = value.values()
            todo += [(each, depth + 1) for each in inner if type(each) not in _SMALL]
    return None


def checked_size(value: Any) -> Any:
    """Return the value; raises ValueError where it is larger than anything that is read here."""
    if problem := problem_with_size(value):
        raise ValueError(problem)
    return value


def _possible_path(path: Path) -> Path:
    if odd := re.search(r"[\0-\x1f]", str(path)):
        raise ValueError(f"a path has no character {odd[0]!r} in it; remove it.{_BACKSLASHES}")
    if len(str(path)) > LONGEST_TEXT:
        raise ValueError(f"a path has at most {LONGEST_TEXT} characters")
    return path


def bounded(schema: CoreSchema, own: type[BaseModel] | None = None) -> CoreSchema:
    """Put bounds into a schema of pydantic's where it has none; texts are bounded by its config.

    `own`: the class that it is of; other `Settings` in it have theirs already.
    """
    made: dict[str, Any] = {
        key: value if key in _UNSEEN else _bounded_inside(value, own)
        for key, value in schema.items()
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
    elif schema["type"] == "lax-or-strict" and _is_path(schema):
        return core_schema.no_info_after_validator_function(_possible_path, schema)
    return made


def _is_path(schema: Mapping[str, Any]) -> bool:
    return bool(schema["lax_schema"].get("custom_error_type") == "path_type")


def _bounded_inside(value: Any, own: type[BaseModel] | None) -> Any:
    if isinstance(value, list):
        return [_bounded_inside(each, own) for each in value]
    if not isinstance(value, dict):
        return value
    if not isinstance(kind := value.get("type"), str):
        return {key: _bounded_inside(each, own) for key, each in value.items()}
    if kind == "model" and value["cls"] is not own and issubclass(value["cls"], Settings):
        return value
    return bounded(value, own)


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys, with a bound for every text, list and number."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=LONGEST_TEXT
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Bound what the fields leave open."""
        return bounded(handler(source), source)


PlainValues = Annotated[dict[str, JsonValue], AfterValidator(checked_size)]  # JSON, of a message
M = TypeVar("M", bound=BaseModel)
MOST_MISTAKES = 1000  # beyond, none is named: pydantic makes a mapping of each
MOST_NAMED = 30  # of them
LONGEST_SENTENCE = 1000  # characters about one
LONGEST_NAMED = 60  # characters of a key or a value in a message


def first_mistake(problem: ValidationError, whole: str) -> str:
    """Return the first mistake in another machine's message, the `whole`: "a.b is wrong: ..."."""
    if problem.error_count() > MOST_MISTAKES:
        return f"{whole} is wrong in {problem.error_count()} places"
    first = problem.errors(include_url=False, include_input=False)[0]
    where = ".".join(_key(part) for part in first["loc"]) or whole
    return f"{printable(where, at_most=200)} is wrong: {printable(first['msg'])}"


def unknown_names(model: type[BaseModel], values: Mapping[str, Any]) -> list[str]:
    """Return the places in `values` of keys and kinds that this version does not have."""
    try:
        model.model_validate(values)
    except ValidationError as problem:
        if problem.error_count() <= MOST_MISTAKES:
            found = problem.errors(include_url=False, include_input=False)
            names = [".".join(map(_key, each["loc"])) for each in found if each["type"] in _UNKNOWN]
            return [printable(name, at_most=200) for name in names[:MOST_NAMED]]
    return []


_UNKNOWN = ("extra_forbidden", "union_tag_invalid", "literal_error")


def read_toml(
    path: Path, what: str, error: type[ErosionError], content: bytes | None = None
) -> dict[str, Any]:
    """Parse `path`, or its `content`; `what` names the kind of file, e.g. "study file"."""
    try:
        held = read_named(path) if content is None else content
        text = held.decode("utf-8-sig")  # Windows editors put a mark in front
    except FileNotFoundError:
        raise error(f"There is no {what} at {path}", remedy="Check the path.") from None
    except IsADirectoryError:
        raise error(f"{path} is a folder; give the {what} itself (a .toml file).") from None
    except UnicodeDecodeError:
        raise error(f"The {what} {path} is not text in UTF-8", remedy="Save it as UTF-8.") from None
    except OSError as problem:
        raise error(
            f"The {what} {path} cannot be read: {problem.strerror}",
            remedy="Give a file that this account may read."
            if isinstance(problem, PermissionError)
            else "Check the path and the disk.",
        ) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # the former also of a number without end
        hint = _hint(str(problem), text)
        raise error(
            f"The {what} {path} is not valid TOML: {problem}", remedy=f"Correct it there.{hint}"
        ) from None


_BACKSLASHES = (
    " In double quotes a backslash begins a special character: write a path of Windows in single"
    " quotes, such as 'C:\\data\\patients.csv'."
)


def _hint(problem: str, text: str) -> str:
    """Return the likely cause of a mistake in TOML, such as missing quotes."""
    number = problem.partition("at line ")[2].partition(",")[0]
    lines = text.splitlines()
    line = lines[int(number) - 1] if number.isdecimal() and int(number) <= len(lines) else ""
    if "\\" in line:
        return _BACKSLASHES
    if re.search(r"=\s*[-+]?(\d*[,٫]|\.)\d", line):
        return " A decimal number has a point, such as 0.1; a comma parts the items of a list."
    if "Invalid value" in problem:
        return ' Text stands in quotes, such as "yes"; numbers, true and false do not.'
    beginnings = ("after a key", "key part", "table declaration", "Invalid statement")
    if any(beginning in problem for beginning in beginnings):
        return ' A name with a space, an accent or a mark in it stands in quotes, such as "Größe".'
    return ""


def validate(model: type[M], raw: Mapping[str, Any], where: str, error: type[ErosionError]) -> M:
    """Validate `raw`; `where` opens the message, e.g. "Study file x.toml"."""
    if too_large := problem_with_size(raw):
        raise error(too_large, where=where)
    try:
        return model.model_validate(raw)
    except ValidationError as problem:
        if problem.error_count() > MOST_MISTAKES:
            raise error(f"it is wrong in {problem.error_count()} places.", where=where) from None
        details = [detail for detail in problem.errors() if not _is_echo(detail)]
        lines = [_sentence(model, raw, detail) for detail in details[:MOST_NAMED]]
        if len(details) > MOST_NAMED:
            lines.append(f"and {len(details) - MOST_NAMED} more")
        raise error(f"{where}:\n" + "\n".join(f"  {line}" for line in lines)) from None


_PLAIN_WORDS = {
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "finite_number": "it must be a finite number",
    "string_type": "it must be text in quotes",
    "string_too_short": "it must not be empty",
    "string_too_long": "it must have at most {max_length} characters",
    "tuple_type": "it must be a list in [ ]",
    "dict_type": "it must be a table of keys and values",
    "model_type": "it must be a table of keys and values",
    "model_attributes_type": "it must be a table of keys and values",
    "greater_than_equal": "it must be {ge} or more",
    "greater_than": "it must be more than {gt}",
    "less_than_equal": "it must be {le} or less",
    "less_than": "it must be less than {lt}",
    "literal_error": "it must be {expected}",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
}


def _sentence(model: type[BaseModel], raw: Mapping[str, Any], detail: Any) -> str:
    sentence = _whole_sentence(model, raw, detail)
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:LONGEST_SENTENCE]}..."


def _whole_sentence(model: type[BaseModel], raw: Mapping[str, Any], detail: Any) -> str:
    kind, value = detail["type"], detail["input"]
    place = _place(model, raw, detail["loc"])
    context = {name: _plain(limit) for name, limit in detail.get("ctx", {}).items()}
    if kind == "missing":
        name = _key(detail["loc"][-1])  # which `_place` may not know of a package's class
        key = place.key if place.key.endswith(name) else f"{place.key}.{name}"
        return f"{key} is missing; add it"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(_key(detail["loc"][-1]), place.known_keys, n=1)
        known = f"erosion {software_version()} knows {', '.join(place.known_keys)}"
        hint = f"did you mean {near[0]}?" if near else known
        return f"{place.key} is not a known key; {hint}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = f"{place.key}.{context['discriminator'].strip(chr(39))}"
        tags = place.tags(context["discriminator"].strip(chr(39)))
        allowed = f"it must be one of {', '.join(map(repr, tags))}"
        given = f"= {context['tag']!r}" if "tag" in context else "is missing"
        return f"{key} {given}; {allowed}"
    if kind == "literal_error" and place.key == "format":
        reads = f"erosion {software_version()} reads {context['expected']}"
        return f"format = {_shown(value)}; {reads}: use the version that wrote the file"
    if kind in _PLAIN_WORDS:
        message = _PLAIN_WORDS[kind].format(**context)
    else:
        message = str(detail["msg"]).removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
    if kind == "value_error" and isinstance(value, Mapping | BaseModel):
        return f"{place.key}: {message}" if place.key else message
    return f"{place.key} = {_shown(value)}; {message}"


def _is_echo(detail: Any) -> bool:
    """Return whether a list is only called too short because its items, reported too, are wrong."""
    if detail["type"] != "too_short":
        return False
    shortest: int = detail["ctx"]["min_length"]
    return len(detail["input"]) >= shortest


def _plain(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _shown(value: object) -> str:
    # What stands before the @ of an address may be a password, and messages get into logs.
    text = repr(_without_passwords(value))
    return text if len(text) <= 80 else text[:77] + "..."


def _without_passwords(value: object) -> object:
    if isinstance(value, str):
        before, at, after = value.rpartition("@")
        return f"...@{after}" if at and ":" in before else value
    if isinstance(value, Mapping):
        return {_without_passwords(k): _without_passwords(inner) for k, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_passwords, value))
    return value


def _key(part: object) -> str:
    return printable(str(part), at_most=LONGEST_NAMED)


class _Place(NamedTuple):
    """Where in the file a problem is."""

    key: str  # as a person would write it, e.g. task.features[age].range
    known_keys: list[str]  # siblings of the last part
    models: list[type[BaseModel]]  # that may stand here

    def tags(self, discriminator: str) -> list[str]:
        """Return the tags by which a union distinguishes those."""
        fields = [
            m.model_fields[discriminator] for m in self.models if discriminator in m.model_fields
        ]
        return list(dict.fromkeys(str(field.default) for field in fields))


def _place(model: type[BaseModel], raw: Any, location: Sequence[Any]) -> _Place:
    """Follow pydantic's location through the file.

    The parts that pydantic puts in for a union's branch are in no one's file: they are left out,
    and narrow what may stand there.
    """
    key = ""
    models, known_keys = [model], sorted(model.model_fields)
    value: Any = raw  # in the file at the place reached so far; None: not in the file
    for part in location:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        in_table = isinstance(value, Mapping) and part in value
        in_list = isinstance(value, list) and (isinstance(part, int) or part in value)
        if fields or in_list or in_table:
            known_keys = sorted({name for m in models for name in m.model_fields})
        else:
            models = [m for m in models if part in _tags(m)] or models
            continue
        if fields:
            models = [inner for field in fields for inner in models_in(field)]
        numbered = in_list and isinstance(part, int) and part < len(value)
        value = value[part] if in_table or numbered else None
        if in_list:
            name = value.get("name") if isinstance(value, Mapping) else None
            key += f"[{_key(name if isinstance(name, str) else part)}]"
        else:
            key += f".{_key(part)}" if key else _key(part)
    return _Place(key, known_keys, models)


def models_in(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the tables that may stand in a field, in the order of its annotation."""
    found: list[type[BaseModel]] = []
    queue: list[Any] = [field.annotation, *field.metadata]
    while queue:
        item = queue.pop(0)
        if isinstance(item, type) and issubclass(item, BaseModel):
            found.append(item)
        written = getattr(item, "json_schema_input_type", None)
        queue += [*get_args(item), *getattr(item, "__metadata__", ())]
        queue += [written] if written is not None and not isinstance(written, str) else []
    return found


def _tags(model: type[BaseModel]) -> list[str]:
    """Return the literals by which unions distinguish this model."""
    names = ("kind", "outcome", "name", "algorithm", "type", "optimizer", "source")
    fields = [model.model_fields[name] for name in names if name in model.model_fields]
    return [field.default for field in fields if isinstance(field.default, str)]
