"""`erosion status`."""

import argparse
import json
from pathlib import Path

from erosion.commands.command import CHECK_FAILED, Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="a run's folder, a folder of runs, the folder of `erosion server --queue`, or a site"
        " file (default: %(default)s/)",
    )
    parser.add_argument("--json", action="store_true", help="print the status file as it is")


def _run(options: argparse.Namespace) -> int:
    from erosion.common.support.status_words import find_status, in_words, is_well

    path, seen = find_status(options.where)
    print(json.dumps(seen.values, indent=2) if options.json else in_words(path, seen))
    return 0 if is_well(seen) else CHECK_FAILED


COMMAND = Command(
    name="status",
    summary="say what a running coordinator or site is doing",
    details="Exit code 0 if it is alive, for health checks.",
    examples="""\
  erosion status                        the newest run in runs/
  erosion status studies/               a coordinator that serves this folder with --queue
  erosion status SITE.toml              a site
""",
    add_arguments=_add_arguments,
    run=_run,
)
