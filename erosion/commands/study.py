"""`erosion study`."""

import argparse
import re
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from erosion.commands.command import Command
from erosion.commands.options import add_how_written, flag, how_written
from erosion.common.errors import DataError, StudyError

if TYPE_CHECKING:
    from erosion.client.dataset.text_table import TextTable

SHOWN = 20  # columns of a message


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    new = what.add_parser(
        "new",
        help="write a first draft from a hospital's table",
        description="Guesses what each column holds and writes a commented study file that is valid"
        " as it is.",
    )
    new.add_argument(
        "data", type=Path, help="a table, or a folder with one table for each hospital"
    )
    new.add_argument("--target", required=True, metavar="COLUMN", help="what is to be predicted")
    new.add_argument(
        "--time",
        metavar="COLUMN",
        help="how long patients were followed; the target then says whether the event happened",
    )
    new.add_argument("--name", help="the study's name (default: that of the file or folder)")
    new.add_argument(
        "--hospitals",
        metavar="A,B,...",
        help="the hospitals' names (default: those of the folder's tables, else hospital-1,"
        " hospital-2)",
    )
    new.add_argument(
        "--user", metavar="HOSPITAL", help="the hospital that the model is for (default: the first)"
    )
    new.add_argument(
        "-o", "--output", type=Path, help="the study file (default: study.toml beside the tables)"
    )
    add_how_written(new)


def _run(options: argparse.Namespace) -> int:
    from erosion.client.dataset.sources.file_content import stem_of
    from erosion.client.dataset.sources.table_file import TableFile
    from erosion.client.scaffold.column_profile import read_whole
    from erosion.client.scaffold.column_roles import FIRST, key_to_join_by, telling
    from erosion.client.scaffold.study_draft import study_draft
    from erosion.client.scaffold.table_folder import hospital_name, shared_rows, tables_in
    from erosion.common.rounds.bounds import problem_with_heads
    from erosion.common.study.study import load_study
    from erosion.common.support.files import write_atomically

    tables = tables_in(options.data) if options.data.is_dir() else {}
    named = [name for name in re.split(r"[,\s]+", options.hospitals or "") if name]
    hospitals = named or list(tables) or ["hospital-1", "hospital-2"]
    user = options.user or hospitals[0]
    if user not in hospitals:
        raise StudyError(f"--user {user} is not among the hospitals {', '.join(hospitals)}.")
    if tables and user not in tables:
        raise DataError(f"{options.data} has no table of {user}; it has {', '.join(tables)}.")
    table = tables[user] if tables else options.data
    output = options.output or (options.data if tables else options.data.parent) / "study.toml"
    if output.exists():
        raise StudyError(f"{output} is there already. Name another file with -o, or remove it.")
    written = how_written(options)
    read, profiles = read_whole(table, **written)
    for option, column in (("--target", options.target), ("--time", options.time)):
        if column is not None and column not in read.header:
            raise DataError(_no_column(option, column, table, read, tables, written))
    joined_remarks = []
    outcomes = [column for column in (options.target, options.time) if column is not None]
    if (key := key_to_join_by(read, profiles, outcomes)) is not None:
        read, profiles = read_whole(table, **written, patient=key, rows=FIRST)
        joined_remarks = [
            f"{' and '.join(outcomes)}: on other rows than the features, so the rows of one {key}"
            " are read here as one, with the first value of each column; each site file says so,"
            " or joins them otherwise ([data.rows]; `erosion site new` proposes it)"
        ]
    name = options.name or hospital_name(stem_of(options.data.resolve()))
    text, remarks = study_draft(
        profiles,
        options.target,
        name=name,
        hospitals=hospitals,
        user=user,
        file=table,
        time=options.time,
        telling=telling(read, profiles, options.target, options.time),
    )
    remarks[:0] = joined_remarks
    sources = {
        name: TableFile(path=tables[name], **written) for name in hospitals if name in tables
    }
    remarks += shared_rows(sources)
    write_atomically(output, text)
    study = load_study(output)
    if problem := problem_with_heads(study):
        remarks += [": ".join(problem)]
    if len(tables) > 1 and options.user is None:
        remarks.insert(0, f"user: {user}, whose table is the first; --user names another")
    print(f"{output}: {len(study.hospitals)} hospitals, made from {table}. Look at:")
    for remark in [*read.notes, *remarks, "the units of the numbers: fill them in"]:
        print(f"  - {remark}")
    again = "".join(f" {flag(key)} {quote(value)}" for key, value in written.items())
    command = f"erosion site new --study {quote(str(output))} --data ITS-TABLE{again}"
    print(f"Then, for each hospital: {command}")
    return 0


def _no_column(
    option: str,
    column: str,
    table: Path,
    read: "TextTable",
    tables: Mapping[str, Path],
    written: Mapping[str, Any],
) -> str:
    """What is said where the table has none of that name: what it has, and which other has it."""
    from erosion.client.dataset.sources.table_file import TableFile

    others = []
    for name, path in tables.items():
        with suppress(DataError):  # `site new` says what is wrong with another hospital's table
            if column in TableFile(path=path, **written).read(()).header:
                others.append(name)
    near = get_close_matches(column, read.header, n=3)
    names = ", ".join([*near, *(name for name in read.header if name not in near)][:SHOWN])
    more = f" and {len(read.header) - SHOWN} more" if len(read.header) > SHOWN else ""
    user = f", or give --user {others[0]}, whose table has it" if others else ""
    notes = "".join(f"\n  (noted: {note})" for note in read.notes)
    return (
        f"{table} has no column {column!r}; it has {names}{more}."
        f" Name one as {option}{user}.{notes}"
    )


COMMAND = Command(
    name="study",
    summary="write the first draft of a study file",
    examples="""\
  erosion study new patients.csv --target outcome
  erosion study new patients.csv --target death --time days
  erosion study new trial/ --target outcome --user alpha    one table for each hospital in trial/
""",
    add_arguments=_add_arguments,
    run=_run,
)
