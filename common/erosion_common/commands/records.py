"""Reads what a program records: `erosion status`, `log` and `audit`."""

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from erosion_common.program.command import CHECK_FAILED, Command

if TYPE_CHECKING:
    from erosion_common.audit.log_files import Verified
    from erosion_server.run.journal import Witnessed


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
        help='print the status file, with the level and what is wrong under "health"',
    )
    parser.add_argument(
        "--alive",
        action="store_true",
        help="for a container's health check: 0 where the program runs or has finished, else 1",
    )


def _run_status(options: argparse.Namespace) -> int:
    from erosion_common.errors import ErosionError
    from erosion_common.support.status import Level, find_status, health, in_words

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


STATUS = Command(
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
    add_arguments=_status_arguments,
    run=_run_status,
)


def _log_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    verify = what.add_parser(
        "verify",
        help="show whether a line was changed, removed or moved",
        description="Goes through the chain of hashes. Only a hash that was noted earlier shows"
        " whether lines are missing at the end: give it with --head, or a run with --run.",
    )
    verify.add_argument(
        "file",
        type=Path,
        help="records/NAME/sent.jsonl; the log's full files (sent-*.jsonl) are in the same folder",
    )
    verify.add_argument("--head", help="a hash that an earlier `verify` or `status` gave")
    verify.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="a run's folder, or its witness.jsonl: the log must have all the hashes that the"
        " coordinator was sent with every reply",
    )
    verify.add_argument(
        "--hospital", help="the log's hospital, by its name in the study; with --run"
    )


def held_against(
    log: Path, witnessed: "Sequence[Witnessed]", head: str | None = None
) -> "Verified":
    """Verify a log against what a coordinator keeps of it; raises SiteError.

    Without a `head` it is compared with the one in the site's status file. Lines that are younger
    than any site may remove must all be there.
    """
    from erosion_client.audit.site_observers import STATUS_NAME
    from erosion_common.audit.log_files import LEAST_KEEP_DAYS, verify
    from erosion_common.support.status import read_status_file

    status = log.parent / STATUS_NAME
    if head is None and (seen := read_status_file(status)) is not None:
        head = str(seen.values.get("log_head") or "") or None
    since = datetime.now(UTC) - timedelta(days=LEAST_KEEP_DAYS)
    heads = [noted.head for noted in witnessed]
    young = [noted.head for noted in witnessed if noted.time >= since]
    return verify(log, head=head, witnessed=heads, young=young)


def _run_log(options: argparse.Namespace) -> int:
    from erosion_common.errors import RunError
    from erosion_server.run.journal import read_witness
    from erosion_server.run.run_folder import RunFolder

    if options.hospital is not None and options.run is None:
        raise RunError("--hospital goes with --run RUN: the run that the log is compared with.")
    witnessed: list[Witnessed] = []
    if (run := options.run) is not None:
        if options.hospital is None:
            raise RunError("Name the log's hospital: --hospital NAME, with --run.")
        path = RunFolder(run).witness if run.is_dir() else run
        witnessed = read_witness(path, options.hospital)
        if not witnessed:
            raise RunError(
                f"{path} has no hash of a log of {options.hospital}. Give the hospital's name in"
                " the study, and a run that it took part in."
            )
    found = held_against(options.file, witnessed, options.head)
    print(f"{found.num_lines} lines, each as it was written and in its place.")
    if found.first > 1:
        print(f"They begin with line {found.first}: earlier files are not there (log.keep_days).")
    if run is not None:
        print(f"{found.num_witnessed} hashes that the coordinator keeps are among theirs.")
    if found.cut_off:
        print("Half a line follows, which a crash leaves behind; what it was to say was not sent.")
    print(f"Hash of the last line: {found.head}")
    if options.head is None and not found.num_witnessed:
        print("Note it: only against it will lines show that are removed at the end.")
    return 0


LOG = Command(
    name="log",
    summary="verify the log of what a site sent",
    examples="""\
  erosion log verify records/alice/sent.jsonl
  erosion log verify records/alice/sent.jsonl --run RUN --hospital alice
""",
    add_arguments=_log_arguments,
    run=_run_log,
)


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run's folder, at the coordinator")
    parser.add_argument(
        "openings",
        type=Path,
        nargs="*",
        metavar="OPENING",
        help="for a sealed run: the opening.safetensors of each hospital that handed it over",
    )
    parser.add_argument(
        "--logs",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=FILE",
        help="hospitals' logs of what they sent, to compare with the hashes that the coordinator"
        " was sent with every reply: FILE is sent.jsonl in a copy of the hospital's whole folder"
        " records/, with the log's full files (sent-*.jsonl)",
    )


def _run_audit(options: argparse.Namespace) -> int:
    from erosion_common.errors import RunError
    from erosion_server.run.audit_run import audit_run

    if options.logs and options.openings:
        raise RunError(
            "An OPENING goes without --logs, which opens no sum; give the one or the other."
        )
    if options.logs:
        sound = [_audit_log(options.run, *named) for named in _named(options.logs)]
        return 0 if all(sound) else CHECK_FAILED
    return 0 if audit_run(options.run, options.openings) else CHECK_FAILED


def _named(logs: Sequence[str]) -> Iterator[tuple[str, Path]]:
    from erosion_common.errors import RunError

    for log in logs:
        name, equals, file = log.partition("=")
        if not (name and equals and file):
            raise RunError(f"--logs {log}; write NAME=FILE, with the hospital's name in the study.")
        yield name, Path(file)


def _audit_log(run: Path, hospital: str, log: Path) -> bool:
    """Show whether a hospital's log has the hashes that the coordinator received."""
    from erosion_common.errors import SiteError
    from erosion_server.run.journal import read_witness
    from erosion_server.run.run_folder import RunFolder

    kept = read_witness(RunFolder(run).witness, hospital)
    witnessed = {noted.head for noted in kept}
    if not witnessed:
        print(f"{hospital}: the coordinator has no hash of its log in this run.")
        return False
    try:
        found = held_against(log, kept)
    except SiteError as problem:
        print(f"{hospital}: {problem}")
        return False
    if not found.num_witnessed:
        print(
            f"{hospital}: none of the {len(witnessed)} hashes is among the lines of its log,"
            f" which begins with line {found.first}: it was rewritten, or is of another time."
        )
        return False
    if found.num_witnessed < len(witnessed):
        print(
            f"{hospital}: the log begins with line {found.first}, and {found.num_witnessed} of"
            f" {len(witnessed)} hashes are among its lines; older ones are not there"
            " (log.keep_days)."
        )
        return True
    print(
        f"{hospital}: all {found.num_witnessed} hashes are in its log of {found.num_lines} lines."
    )
    return True


AUDIT = Command(
    name="audit",
    summary="compare hospitals' logs with the coordinator's record; find who spoiled a sealed sum",
    details="With --logs, it says whether each hospital's log still has every line that the"
    " coordinator has a hash of, and names a line that was changed, removed or rewritten."
    " Without, it names the update that made a sealed sum not fit its distances. A sealed arm stops"
    " if a sum cannot be one of updates at the claimed distances. To find the fault, a person at"
    " each hospital hands over opening.safetensors from the site's folder of sealed rounds"
    " (compute.state in the site file): its update of that round, and what takes off its masks."
    " A hospital can open only the update that was summed. Once all but one have opened,"
    " the rest of the sum is the last one's update.",
    examples="""\
  erosion audit RUN --logs bob=bob/records/bob/sent.jsonl carol=carol/records/carol/sent.jsonl
  erosion audit RUN
  erosion audit RUN bob/opening.safetensors carol/opening.safetensors
""",
    add_arguments=_audit_arguments,
    run=_run_audit,
)
