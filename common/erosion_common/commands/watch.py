"""`erosion watch`: a page in the browser that follows a run, or a site."""

import argparse
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from erosion_common.program.command import Command


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

    if not where.exists():
        raise RunError(
            f"There is no {where}", remedy="Give a run's folder, a folder of runs or a site file."
        )
    if where.is_dir():
        watched: Callable[[], Mapping[str, Any]]
        watched = optional("erosion_server.output.watched", "A run's page").WatchedRuns(where)
        return watched
    site = optional("erosion_client.audit.watched", "A site's page")
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
