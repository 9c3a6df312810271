"""`erosion report`."""

import argparse
from pathlib import Path

from erosion_common.program.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of a run that finished")
    parser.add_argument(
        "--rounded",
        action="store_true",
        help="report-rounded.html, for publication: counts of the user's patients to tens, its"
        " other figures to two digits, with figures-rounded/",
    )


def _run(options: argparse.Namespace) -> int:
    from erosion_server.output.report import write_report

    print(write_report(options.run, is_rounded=options.rounded))
    return 0


REPORT = Command(
    name="report",
    summary="write a finished run's report again, or rounded for publication",
    details="The page, and each of its figures as SVG and CSV under figures/, come from the run's"
    " own files: nobody is asked.",
    examples="""\
  erosion report runs/20260101T120000-mine
  erosion report runs/20260101T120000-mine --rounded
""",
    add_arguments=_add_arguments,
    run=_run,
)
