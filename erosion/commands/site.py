"""`erosion site`."""

import argparse
import shlex
from pathlib import Path

from erosion.commands.command import Command
from erosion.commands.options import add_how_written, how_written
from erosion.common.errors import DataError, SiteError, StudyError
from erosion.common.support.text import shown


def _add_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--accept",
        type=float,
        default=0.9,
        metavar="C",
        help="write proposals of at least this confidence as settings, not as comments (default:"
        " %(default)s)",
    )
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
        help="the site file (default: sites/NAME.toml beside the study, where those of a folder"
        " always go)",
    )
    add_how_written(new)


def _run(options: argparse.Namespace) -> int:
    from erosion.client.dataset.sources.file_content import stem_of
    from erosion.client.scaffold.table_folder import hospital_name, tables_in
    from erosion.common.study.study import load_study
    from erosion.common.tasks.inputs import TabularTask

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
            f"{', '.join(strange)} are not among the study's hospitals"
            f" ({', '.join(study.hospitals)}). Rename the tables, or give --name."
        )
    folder = options.study.parent / "sites"
    outputs = {name: folder / f"{name}.toml" for name in tables}
    if options.output is not None and not options.data.is_dir():
        outputs = dict.fromkeys(tables, options.output)
    there = [str(path) for path in outputs.values() if path.exists()]
    if there:
        raise SiteError(f"{', '.join(there)} is there already. Remove it, or name another with -o.")
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
    print(f"See what is open: {command}")
    return 0


def _write(name: str, table: Path, output: Path, task: object, options: argparse.Namespace) -> None:
    from erosion.client.scaffold.column_match import match_columns
    from erosion.client.scaffold.column_profile import read_whole
    from erosion.client.scaffold.column_roles import (
        FIRST,
        key_to_join_by,
        likely_key,
        repeats,
        rows_of_patients,
    )
    from erosion.client.scaffold.site_draft import in_words, site_draft
    from erosion.client.site_file import load_site
    from erosion.common.support.files import write_atomically
    from erosion.common.tasks.inputs import TabularTask

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
        accept=options.accept,
        written=written,
        joined_by=key,
        footer=read.footer,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, text)
    load_site(output)

    def say(line: str) -> None:
        print(shown(line))

    say(f"{output}: made from {table}")
    for note in read.notes:
        say(f"  {note}")
    if key is not None:
        say(
            f"  the outcome stands on other rows than the features: [data.rows] joins those of one"
            f" {key}, proposed"
        )
    elif (numbered := likely_key(profiles)) is not None and repeats(numbered):
        say(f"  {rows_of_patients(numbered)}: written as patient under [data]")
    for profile in profiles:
        if profile.mixed is not None:
            say(f"  {profile.name}: {profile.mixed}")
    for match in matches:
        for line in in_words(match, options.accept):
            say(f"  {line}")


COMMAND = Command(
    name="site",
    summary="write the first draft of a site file",
    examples="""\
  erosion site new --study study.toml --data other.csv
  erosion site new --study trial/study.toml --data trial/      one table for each hospital
""",
    add_arguments=_add_arguments,
    run=_run,
)
