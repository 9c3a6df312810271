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
    parser.add_argument(
        "--json",
        action="store_true",
        help='print the status file, with the level and what is wrong under "health"',
    )
    parser.add_argument(
        "--alive",
        action="store_true",
        help="for a container's health check: 0 where the program runs or has finished, else 1",
    )


def _run(options: argparse.Namespace) -> int:
    from erosion.common.errors import ErosionError
    from erosion.common.support.status_words import Level, find_status, health, in_words

    try:
        path, seen = find_status(options.where)
        level, problems = health(path, seen)
        if options.json:
            shown = {**seen.values, "health": {"level": level.name, "problems": problems}}
            print(json.dumps(shown, indent=2))
        else:
            print(in_words(path, seen))
    except (ErosionError, PermissionError) as problem:
        print(f"{Level.UNKNOWN.name}  {problem}")
        return CHECK_FAILED if options.alive else Level.UNKNOWN
    if options.alive:
        return 0 if seen.is_alive or seen.values.get("phase") == "finished" else CHECK_FAILED
    return level


COMMAND = Command(
    name="status",
    summary="say what a running coordinator or site is doing",
    details="Exit codes are those of monitoring plugins: 0 OK, 1 WARNING (not connected, a"
    " certificate of less than 30 days, hospitals waited for, an output dropped), 2 CRITICAL (not"
    " running, not connected for 10 minutes, an expired certificate, a study that failed),"
    " 3 UNKNOWN (nothing to look at, or it cannot be read).",
    examples="""\
  erosion status                        the newest run in runs/
  erosion status studies/               a coordinator that serves this folder with --queue
  erosion status SITE.toml              a site
  erosion status SITE.toml --alive      the same for a health check that restarts it
""",
    add_arguments=_add_arguments,
    run=_run,
)
