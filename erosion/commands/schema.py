"""`erosion schema`."""

import argparse
import json

from erosion.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", choices=["study", "site"])
    parser.add_argument(
        "--format",
        choices=["json", "markdown"],
        default="json",
        help="a JSON schema, for editors and programs, or a page (default: %(default)s)",
    )


def _run(options: argparse.Namespace) -> int:
    from erosion.reference.pages import PAGES

    page = PAGES[options.file]
    if options.format == "markdown":
        print(page.markdown(), end="")
    else:
        print(json.dumps(page.schema(), indent=2))
    return 0


COMMAND = Command(
    name="schema",
    summary="print every key of the study or the site file",
    examples="""\
  erosion schema study
  erosion schema site --format markdown
""",
    add_arguments=_add_arguments,
    run=_run,
)
