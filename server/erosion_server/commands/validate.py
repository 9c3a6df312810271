"""`erosion validate`."""

import argparse
from pathlib import Path

from erosion_common.program.command import Command, seconds
from erosion_server.commands.options import add_link, federation_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of a run that finished")
    parser.add_argument(
        "--at",
        metavar="HOSPITAL",
        action="append",
        default=[],
        help="ask this enrolled hospital, which the study need not name; may be repeated (default:"
        " every hospital of the study that has not measured the model)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="SECONDS",
        help="for hospitals that are not connected (default: the study's join deadline)",
    )
    add_link(parser)


def _run(options: argparse.Namespace) -> int:
    from erosion_common.support.logs import configure_logging
    from erosion_server.coordination.later_validation import measure_later
    from erosion_server.link.link import make_link
    from erosion_server.run.run_folder import RunFolder, alone_in

    configure_logging(options.verbose)
    federation = federation_of(options)
    with alone_in(options.run):
        report = measure_later(
            RunFolder(options.run),
            options.at,
            lambda hospitals: make_link(hospitals, options.address, federation),
            options.wait,
            print,
        )
    print(report)
    return 0


VALIDATE = Command(
    name="validate",
    summary="have other hospitals measure a finished run's model on their patients",
    details="Sites connect as they do to `erosion server`. Each measures the model on its own"
    " patients and sends rounded figures of discrimination and calibration, if its people approved"
    " that and its limits allow it. The report is written again, with how far the model travels. A"
    " study with [validation] has this done when its run ends; this command asks those who were"
    " away, or further hospitals.",
    examples="""\
  erosion validate runs/20260101T120000-mine
  erosion validate runs/20260101T120000-mine --at north --at west --wait 600
""",
    add_arguments=_add_arguments,
    run=_run,
)
