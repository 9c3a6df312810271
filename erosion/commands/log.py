"""`erosion log`."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from erosion.commands.command import Command

if TYPE_CHECKING:
    from erosion.client.audit.audit_check import Verified
    from erosion.server.run.witness import Witnessed


def _add_arguments(parser: argparse.ArgumentParser) -> None:
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
        help="records/NAME/sent.jsonl; the log's full files (sent-*.jsonl) are read from beside it",
    )
    verify.add_argument("--head", help="a hash that an earlier `verify` or `status` gave")
    verify.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="a run's folder, or its witness.jsonl: the log must have all the hashes that the"
        " coordinator was sent with every reply",
    )
    verify.add_argument("--hospital", help="whose log it is, by the name in the study; with --run")


def held_against(
    log: Path, witnessed: "Sequence[Witnessed]", head: str | None = None
) -> "Verified":
    """Verify a log against what a coordinator keeps of it; raises SiteError.

    Without a `head` it is held against the one that the site's status file beside it has. Lines
    that are younger than any site may remove must all be there.
    """
    from erosion.client.audit.audit_check import verify
    from erosion.client.audit.log_files import LEAST_KEEP_DAYS
    from erosion.client.audit.site_observers import STATUS_NAME
    from erosion.common.support.status_file import read_status_file

    status = log.parent / STATUS_NAME
    if head is None and (seen := read_status_file(status)) is not None:
        head = str(seen.values.get("log_head") or "") or None
    since = datetime.now(UTC) - timedelta(days=LEAST_KEEP_DAYS)
    heads = [noted.head for noted in witnessed]
    young = [noted.head for noted in witnessed if noted.time >= since]
    return verify(log, head=head, witnessed=heads, young=young)


def _run(options: argparse.Namespace) -> int:
    from erosion.common.errors import RunError
    from erosion.server.run.run_folder import RunFolder
    from erosion.server.run.witness import read_witness

    if options.hospital is not None and options.run is None:
        raise RunError("--hospital goes with --run RUN: the run that the log is compared with.")
    witnessed: list[Witnessed] = []
    if (run := options.run) is not None:
        if options.hospital is None:
            raise RunError("Say whose log it is: --hospital NAME, with --run.")
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


COMMAND = Command(
    name="log",
    summary="verify the log of what a site sent",
    examples="""\
  erosion log verify records/alice/sent.jsonl
  erosion log verify records/alice/sent.jsonl --run RUN --hospital alice
""",
    add_arguments=_add_arguments,
    run=_run,
)
