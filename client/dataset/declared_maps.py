"""Finds what a site file declares and no study or table uses: typing errors, mostly."""

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from erosion.client.dataset.column_values import Fault, toml_key
from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.dataset.study_columns import StudyColumn
from erosion.client.dataset.text_table import TextTable
from erosion.common.settings.names import canonical


@dataclass(frozen=True, slots=True)
class MapFindings:
    """What the declarations leave to say."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_maps(
    table: TextTable,
    source: TableSource,
    columns: dict[str, StudyColumn],
    unasked: Collection[str],
) -> MapFindings:
    """Hold every declaration against the study's columns and the table's values.

    A declaration for a column that neither the study nor the table has, but that is spelt much like
    one of the study's, is a problem; for any other column it is noted, because a site file may
    serve several studies. `unasked` are columns of the study that are not read this time.
    """
    found = MapFindings()
    for where, name in _declared(source):
        if name in columns or name in unasked:
            continue
        near = difflib.get_close_matches(name, columns, n=1, cutoff=0.8)
        if near and name not in table.header:
            found.problems.append(
                f"{where} names {name!r}, which is no column of the study; did you mean"
                f" {near[0]!r}? Correct it, or remove it"
            )
        else:
            found.notes.append(f"{where} names {name!r}, which this study does not use")
    found.problems.extend(_read_twice(source, columns))
    for name, column in columns.items():
        is_read = column.text is not None and name not in source.derive
        if is_read and (meant := source.value_map(name)):
            _check_values(name, column, meant, found)
    for name in source.absent:
        if name in columns and not columns[name].can_be_absent:
            found.problems.append(
                f"absent names {name!r}, which is no feature of the study: a hospital that does not"
                " record it cannot take part. Remove it from absent; if the file calls it"
                f' otherwise, write {toml_key(name)} = "ITS NAME IN THE FILE" under [data.columns]'
            )
        elif name in columns and source.local_name(name) in table.header:
            found.problems.append(
                f"absent names {name!r}, and there is such a column; remove it from absent, or"
                " rename the column if it is another one"
            )
    return found


def _declared(source: TableSource) -> Iterator[tuple[str, str]]:
    """Every table of the site file that names a column of a study, with the name."""
    for where, names in (
        ("[data.columns]", source.columns),
        ("[data.units]", source.units),
        ("[data.limits]", source.limits),
        ("[data.derive]", source.derive),
    ):
        yield from ((where, name) for name in names)
    yield from ((f"[data.values.{name}]", name) for name in source.values)
    for number, recoding in enumerate(source.recode, start=1):
        yield from ((f"[[data.recode]], number {number},", name) for name in recoding.columns)
    yield from (("absent", name) for name in source.absent)


def _read_twice(source: TableSource, columns: dict[str, StudyColumn]) -> Iterator[str]:
    """A column of the data that would be two of the study's."""
    readers: dict[str, list[str]] = {}
    for name in columns:
        if name not in source.absent and name not in source.derive:
            readers.setdefault(source.local_name(name), []).append(name)
    for local, names in readers.items():
        if len(names) > 1:
            features = [name for name in names if columns[name].can_be_absent]
            instead = f", or list {' or '.join(features)} as absent" if features else ""
            yield (
                f"{' and '.join(names)} are both read from the column {local!r}; say under"
                f" [data.columns] where each is{instead}"
            )


def _check_values(
    name: str, column: StudyColumn, meant: dict[str, str], found: MapFindings
) -> None:
    texts = {canonical(text) for text in column.text.texts} if column.text else set()
    for value, one, other in () if column.is_number else _merged(meant, texts):
        found.notes.append(
            f"column {name}: {one!r} and {other!r} are both read as {value!r}, by the map for it;"
            " correct it, if they are two"
        )
    if any(key in texts for key in meant):
        return
    # What the study itself understands, without the map: the map's left sides, if it is reversed.
    understood = [key for key in meant if not isinstance(column.plain(key), Fault)]
    if len(understood) == len(meant) and any(value in texts for value in meant.values() if value):
        found.problems.append(
            f"the map for {name} is the wrong way round: what the data hold goes to the left, what"
            f" the study calls it to the right, such as {_example(meant, texts)}"
        )
    else:
        found.notes.append(
            f"no value that is mapped for {name} ({', '.join(list(meant)[:5])}) is in the data"
        )


def _merged(meant: dict[str, str], texts: set[str]) -> Iterator[tuple[str, str, str]]:
    """A value of the study that a map makes of a text, and that stands in the data, too."""
    for key, value in meant.items():
        is_other = key.casefold() != value.casefold()
        is_itself = value in texts and meant.get(value, value) == value
        if value and is_other and key in texts and is_itself:
            yield value, key, value


def _example(meant: dict[str, str], texts: set[str]) -> str:
    key, value = next((key, value) for key, value in meant.items() if value in texts)
    return f'"{value}" = "{key}"'
