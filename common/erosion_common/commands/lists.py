"""What there is to name: `erosion algorithms`, `models` and `schema`."""

import argparse
import json

from erosion_common.program.command import Command


def _run_algorithms(_options: argparse.Namespace) -> int:
    from erosion_common.algorithms import catalogue

    print(catalogue())
    return 0


ALGORITHMS = Command(
    name="algorithms", summary="explain the algorithms that a study can name", run=_run_algorithms
)


def _run_models(_options: argparse.Namespace) -> int:
    from typing import get_args

    from erosion_common.errors import ModelError
    from erosion_common.settings.packages import Kind, every_installed, group_of

    found = [part for kind in get_args(Kind) for part in every_installed(kind)]
    for part in found:
        if isinstance(part, ModelError):
            print(f"(cannot be used) {part}\n")
            continue
        print(f"{part.kind} {part.name}: {part.target} of {part.distribution}")
        if part.kind in _TABLES:
            table, key, extra = _TABLES[part.kind]
            print("  in a study file:        in a site file:")
            print(f"    {table:<24}[limits.installed_{part.kind}s]")
            print(f'    {extra:<24}"{part.name}" = "{part.sha256}"')
            print(f'    {key} = "{part.name}"')
            print(f'    sha256 = "{part.sha256}"\n')
    if not found:
        groups = ", ".join(group_of(kind) for kind in get_args(Kind))
        print(f"No package that is installed here has an entry point in {groups}.")
    return 0


# Of what a study names by hash: its table, the key of its name, and what else stands there.
_TABLES = {
    "method": ("[arms.NAME]", "algorithm", ""),
    "task": ("[task]", "outcome", ""),
    "model": ("[model]", "entry_point", 'name = "installed"'),
}


MODELS = Command(
    name="models",
    summary="list the models and other parts of packages that are installed here",
    details="None of their code is run. The SHA-256 is of all files of a part's package.",
    run=_run_models,
)


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", choices=["study", "site"])
    parser.add_argument(
        "--format",
        choices=["json", "markdown"],
        default="json",
        help="a JSON schema, for editors and programs, or a page (default: %(default)s)",
    )


def _run_schema(options: argparse.Namespace) -> int:
    from erosion_common.program.reference import PAGES

    page = PAGES[options.file]
    if options.format == "markdown":
        print(page.markdown(), end="")
    else:
        print(json.dumps(page.schema(), indent=2))
    return 0


SCHEMA = Command(
    name="schema",
    summary="print every key of the study or the site file",
    examples="""\
  erosion schema study
  erosion schema site --format markdown
""",
    add_arguments=_schema_arguments,
    run=_run_schema,
)
