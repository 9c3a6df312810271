"""First drafts: `erosion study new` and `erosion site new`."""

import argparse
import re
import shlex
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from erosion_common.errors import DataError, SiteError, StudyError
from erosion_common.program.command import Command, flag
from erosion_common.support.text import printable, shown, some

SHOWN = 20  # columns of a message


def _study_arguments(parser: argparse.ArgumentParser) -> None:
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
        "-o", "--output", type=Path, help="the study file (default: study.toml with the tables)"
    )
    add_how_written(new)


def _run_study(options: argparse.Namespace) -> int:
    from erosion_client.dataset.sources.file_content import stem_of
    from erosion_client.dataset.sources.table_file import TableFile
    from erosion_client.scaffold.column_profile import read_whole
    from erosion_client.scaffold.column_roles import FIRST, key_to_join_by, telling
    from erosion_client.scaffold.study_draft import study_draft
    from erosion_client.scaffold.table_folder import hospital_name, shared_rows, tables_in
    from erosion_common.rounds.bounds import problem_with_heads
    from erosion_common.study.study import load_study
    from erosion_common.support.files import write_atomically

    tables = tables_in(options.data) if options.data.is_dir() else {}
    named = [name for name in re.split(r"[,\s]+", options.hospitals or "") if name]
    hospitals = named or list(tables) or ["hospital-1", "hospital-2"]
    user = options.user or hospitals[0]
    if user not in hospitals and hospital_name(user) in tables:
        user = hospital_name(user)  # as its table is called
    if user not in hospitals:
        raise StudyError(f"--user {user} is not among the hospitals {', '.join(hospitals)}.")
    if tables and user not in tables:
        raise DataError(f"{options.data} has no table of {user}; it has {', '.join(tables)}.")
    table = tables[user] if tables else options.data
    output = options.output or (options.data if tables else options.data.parent) / "study.toml"
    if output.exists():
        raise StudyError(
            f"{output} is there already", remedy="Name another file with -o, or remove it."
        )
    written = how_written(options)
    read, profiles = read_whole(table, **written)
    for option, column in (("--target", options.target), ("--time", options.time)):
        if column is not None and column not in read.header:
            near = get_close_matches(column, read.header, n=3)
            known = some([*dict.fromkeys([*near, *read.header])], SHOWN)
            other = ", or another hospital's table by --user" if tables else ""
            noted = "".join(f"\n  (noted: {note})" for note in read.notes)
            said = f"{table} has no column {column!r}; it has {known}."
            if held := next((n for n, found in read.columns.items() if column in found.texts), ""):
                said += (
                    f" {column!r} is a value of {held!r}: make it a column, and a patient a row."
                )
            raise DataError(f"{said} Name one as {option}{other}.{noted}")
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
    try:
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
    except DataError as unusable:
        if len(tables) < 2:
            raise
        others = ", ".join(other for other in tables if other != user)
        remedy = f"Or read another hospital's table: --user with one of {others}."
        raise DataError(str(unusable), where=table, remedy=remedy) from None
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
        remarks.insert(0, f"user: {user}, with the first table; --user names another")
    print(f"{output}: for {some(study.hospitals, SHOWN)}; made from {table}. Look at:")
    for remark in [*read.notes, *remarks, "the units of the numbers: fill them in"]:
        print(f"  - {printable(remark, at_most=len(remark))}")
    again = "".join(f" {flag(key)} {quote(value)}" for key, value in written.items())
    command = f"erosion site new --study {quote(str(output))} --data ITS-TABLE{again}"
    print(f"Then, for each hospital: {command}")
    return 0


STUDY = Command(
    name="study",
    summary="write the first draft of a study file",
    examples="""\
  erosion study new patients.csv --target outcome
  erosion study new patients.csv --target death --time days
  erosion study new trial/ --target outcome --user alpha    one table for each hospital in trial/
""",
    add_arguments=_study_arguments,
    run=_run_study,
)


def _site_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    new = what.add_parser(
        "new",
        help="write a first draft that maps a hospital's columns to a study's",
        description="Proposes which column is which, units and spellings, each with a confidence."
        " What is not certain is written as a comment, for a person to confirm.",
    )
    new.add_argument("--study", type=Path, required=True, help="the study file")
    new.add_argument(
        "--data",
        type=Path,
        required=True,
        help="a table, or a folder with one table for each hospital",
    )
    new.add_argument("--name", help="the hospital's name (default: that of the table)")
    new.add_argument(
        "--address",
        default="127.0.0.1:9092",
        metavar="HOST:PORT",
        help="the coordinator's address (default: %(default)s)",
    )
    new.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the site file (default: sites/NAME.toml in the study's folder)",
    )
    add_how_written(new)


def _run_site(options: argparse.Namespace) -> int:
    from erosion_client.dataset.sources.file_content import stem_of
    from erosion_client.scaffold.table_folder import hospital_name, tables_in
    from erosion_common.study.study import load_study
    from erosion_common.tasks.inputs import TabularTask

    study = load_study(options.study)
    if not isinstance(study.task, TabularTask):
        raise StudyError(f"{options.study} is of images; write their site file by hand.")
    if options.data.is_dir():
        tables = tables_in(options.data)
    else:
        tables = {options.name or hospital_name(stem_of(options.data)): options.data}
    strange = sorted(set(tables) - set(study.hospitals))
    if strange:
        raise DataError(
            f"not among the study's hospitals ({', '.join(study.hospitals)}): {', '.join(strange)}",
            remedy="Rename the tables, or give --name.",
        )
    folder = options.study.parent / "sites"
    outputs = {name: folder / f"{name}.toml" for name in tables}
    if options.output is not None and not options.data.is_dir():
        outputs = dict.fromkeys(tables, options.output)
    there = [str(path) for path in outputs.values() if path.exists()]
    if there:
        raise SiteError(
            f"{', '.join(there)} is there already", remedy="Remove it, or name another with -o."
        )
    bad: dict[str, DataError] = {}  # of the others a draft is written all the same
    for name, table in tables.items():
        try:
            _write(name, table, outputs[name], study.task, options)
        except DataError as problem:
            if len(tables) == 1:
                raise
            bad[name] = problem
    if bad:
        many = "1 table cannot" if len(bad) == 1 else f"{len(bad)} tables cannot"
        each = "".join(f"\n{name}: {problem}" for name, problem in bad.items())
        raise DataError(f"Of {len(tables)}, {many} be drafted from:{each}")
    first = next(iter(outputs.values()))
    command = shlex.join(["erosion", "check", str(first), "--study", str(options.study)])
    others = "" if len(tables) == 1 else "  (then the same for each other site file)"
    print(f"See what is open: {command}{others}")
    return 0


def _write(name: str, table: Path, output: Path, task: object, options: argparse.Namespace) -> None:
    from erosion_client.scaffold.column_match import match_columns
    from erosion_client.scaffold.column_profile import read_whole
    from erosion_client.scaffold.column_roles import FIRST, key_to_join_by
    from erosion_client.scaffold.site_draft import site_draft
    from erosion_client.site_file import load_site
    from erosion_common.support.files import write_atomically
    from erosion_common.tasks.inputs import TabularTask

    assert isinstance(task, TabularTask)
    written = how_written(options)
    read, profiles = read_whole(table, **written)
    matches = match_columns(task, profiles)
    outcome = [column.name for column in task.target_columns]
    found = [match.local for match in matches if match.column in outcome and match.local]
    key = key_to_join_by(read, profiles, found) if found else None
    if key is not None:
        read, profiles = read_whole(table, **written, patient=key, rows=FIRST)
        matches = match_columns(task, profiles)
    text = site_draft(
        name,
        table.resolve(),
        matches,
        profiles,
        read.notes,
        address=options.address,
        outcome=outcome,
        written=written,
        joined_by=key,
        footer=read.footer,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, text)
    load_site(output)

    print(shown(f"{output}: made from {table}"))
    for line in text.partition("[data]\n")[2].partition("\n[coordinator]")[0].splitlines():
        print(shown(f"  {line}"))


SITE = Command(
    name="site",
    summary="write the first draft of a site file",
    examples="""\
  erosion site new --study study.toml --data other.csv
  erosion site new --study trial/study.toml --data trial/      one table for each hospital
""",
    add_arguments=_site_arguments,
    run=_run_site,
)


# Keys of [data] that are options, too.
HOW_WRITTEN = {
    "encoding": 'of text, such as "cp1252"',
    "separator": 'of columns, such as ";"',
    "sheet": "of workbooks: the one with the patients",
    "value_labels": "of SPSS and Stata: codes or labels",
}


def add_how_written(parser: argparse.ArgumentParser) -> None:
    """Add options that say how a table is written, where that is not worked out."""
    for key, what in HOW_WRITTEN.items():
        parser.add_argument(flag(key), type=partial(_checked, key), help=f"{what} ([data] has it)")


def how_written(options: argparse.Namespace) -> dict[str, Any]:
    """Return those of the options that were given, as keys of [data]."""
    return {key: value for key in HOW_WRITTEN if (value := getattr(options, key)) is not None}


def _checked(key: str, text: str) -> str:
    from pydantic import ValidationError

    from erosion_client.dataset.sources.table_file import TableFile

    try:
        found: str = getattr(TableFile.model_validate({"path": "x.csv", key: text}), key)
    except ValidationError as problem:
        raise argparse.ArgumentTypeError(problem.errors()[0]["msg"]) from None
    return found
