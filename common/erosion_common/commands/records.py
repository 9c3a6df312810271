"""Shows what a program records: `erosion status`, `erosion log` and `erosion watch`."""

import argparse
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from erosion_common.program.command import CHECK_FAILED, Command


def _status_arguments(parser: argparse.ArgumentParser) -> None:
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
        help='print the status file, with the level and what is wrong under "health", and the'
        ' figures of the plugin under "performance"',
    )
    parser.add_argument(
        "--alive",
        action="store_true",
        help="for a container's health check: 0 where the program runs or has finished, else 1",
    )


def _run_status(options: argparse.Namespace) -> int:
    from erosion_common.errors import ErosionError
    from erosion_common.support.monitoring import performance, performance_line
    from erosion_common.support.status import Level, find_status, health, in_words

    try:
        path, seen = find_status(options.where)
        level, problems = health(path, seen)
        told = performance(seen, level)
        if options.json:
            figures = {k: None if v == float("inf") else v for k, (v, _) in told.items()}
            found = {"level": level.name, "problems": problems}
            print(json.dumps({**seen.values, "health": found, "performance": figures}, indent=2))
        else:
            print(in_words(path, seen), performance_line(told), sep="\n")
    except (ErosionError, PermissionError) as problem:
        print(f"{Level.UNKNOWN.name}  {problem}")
        return CHECK_FAILED if options.alive else Level.UNKNOWN
    if options.alive:
        return 0 if seen.is_alive or seen.values.get("phase") == "finished" else CHECK_FAILED
    return level


STATUS = Command(
    name="status",
    summary="say what a running coordinator or site is doing",
    details="Exit codes are those of monitoring plugins: 0 OK, 1 WARNING (not connected, a"
    " certificate of less than 30 days, hospitals waited for, an output dropped), 2 CRITICAL (not"
    " running, not connected for 10 minutes, an expired certificate, a study that failed),"
    " 3 UNKNOWN (nothing to look at, or it cannot be read). The last line, after |, is the"
    " plugin's performance data.",
    examples="""\
  erosion status                        the newest run in runs/
  erosion status studies/               a coordinator that serves this folder with --queue
  erosion status SITE.toml              a site
  erosion status SITE.toml --alive      the same for a health check that restarts it
""",
    add_arguments=_status_arguments,
    run=_run_status,
)


def _log_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    verify = what.add_parser(
        "verify",
        help="show whether a line was changed, removed or moved",
        description="Goes through the chain of hashes. Only a hash that was noted earlier shows"
        " whether lines are missing at the end: give it with --head. `erosion audit --logs`"
        " compares the log with the hashes that a coordinator was sent.",
    )
    verify.add_argument(
        "file",
        type=Path,
        help="records/NAME/sent.jsonl; the log's full files (sent-*.jsonl) are in the same folder",
    )
    verify.add_argument("--head", help="a hash that an earlier `verify` or `status` gave")


def _run_log(options: argparse.Namespace) -> int:
    from erosion_common.formats.sent_log import held_against

    found = held_against(options.file, (), options.head)
    print(f"{found.num_lines} lines, each as it was written and in its place.")
    if found.first > 1:
        print(f"They begin with line {found.first}: earlier files are not there (log.keep_days).")
    if found.cut_off:
        print("Half a line follows, which a crash leaves behind; what it was to say was not sent.")
    print(f"Hash of the last line: {found.head}")
    if options.head is None:
        print("Note it: only against it will lines show that are removed at the end.")
    return 0


LOG = Command(
    name="log",
    summary="verify the log of what a site sent",
    examples="""\
  erosion log verify records/alice/sent.jsonl
  erosion log verify records/alice/sent.jsonl --head HASH
""",
    add_arguments=_log_arguments,
    run=_run_log,
)


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="a run's folder, a folder of runs (those under way, or the newest), or a site file"
        " (default: %(default)s/)",
    )
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1 (default: a free one)")


def snapshot_of(where: Path) -> Callable[[], Mapping[str, Any]]:
    """Return what makes the page's snapshots. Raises RunError where there is nothing."""
    from erosion_common.errors import RunError
    from erosion_common.program.commands import optional

    if not where.is_dir() and not (where.exists() and where.suffix == ".toml"):
        raise RunError(
            f"{where} is neither a folder nor a site file (.toml)",
            remedy="Give a run's folder, a folder of runs or a site file.",
        )
    if where.is_dir():
        watched: Callable[[], Mapping[str, Any]]
        watched = optional("erosion_server.output.watched", "A run's page").WatchedRuns(where)
        return watched
    site = optional("erosion_client.records.watched", "A site's page")
    return lambda: site.site_snapshot(where)


def _run_watch(options: argparse.Namespace) -> int:
    from erosion_common.support.live_page import LivePage

    with LivePage(snapshot_of(options.where), options.port) as page:
        print(f"Open {page.url}\nCtrl-C ends the page, and nothing else.", flush=True)
        signal.pause()
    return 0


WATCH = Command(
    name="watch",
    summary="follow a run, or a site, on a page in the browser",
    details="The page shows who is connected and waited for, the user's curve, weights and"
    " distances as they come, and the time left. It only reads what the program writes anyway. It"
    " is for this machine alone, and for those who have its address, which holds a key; from"
    " elsewhere, forward the port: ssh -L PORT:127.0.0.1:PORT HOST.",
    examples="""\
  erosion watch                         what runs in runs/, or the newest run there
  erosion watch runs/20260101T120000-mine --port 8000
  erosion watch SITE.toml               what a site was asked and answered, for its staff
""",
    add_arguments=_watch_arguments,
    run=_run_watch,
)
