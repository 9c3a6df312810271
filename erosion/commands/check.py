"""`erosion check`."""

import argparse
from pathlib import Path

from erosion.commands.command import CHECK_FAILED, Command
from erosion.common.support.logs import configure_logging
from erosion.common.support.process import imports_for_good


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("site", type=Path, help="the site file")
    parser.add_argument("--study", type=Path, help="check the data against this study too")


def _run(options: argparse.Namespace) -> int:
    configure_logging(options.verbose)
    with imports_for_good():
        from rich.console import Console

        from erosion.client.preflight import check_site

    console = Console(highlight=False)
    return 0 if check_site(options.site, options.study, console) else CHECK_FAILED


COMMAND = Command(
    name="check",
    summary="check everything that a site needs to take part",
    details="Files, data, limits, network, TLS, clock and enrolment, each failure with its remedy.",
    examples="""\
  erosion check SITE.toml --study STUDY.toml
""",
    add_arguments=_add_arguments,
    run=_run,
)
