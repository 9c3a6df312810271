"""`erosion log`."""

import argparse
from pathlib import Path

from erosion.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    verify = what.add_parser(
        "verify",
        help="show whether a line was changed, removed or moved",
        description="Goes through the chain of hashes. Lines missing at the end show only against a"
        " hash that was noted earlier.",
    )
    verify.add_argument("file", type=Path, help="records/sent.jsonl")
    verify.add_argument("--head", help="a hash that an earlier `verify` or `status` gave")


def _run(options: argparse.Namespace) -> int:
    from erosion.client.audit.audit_check import verify

    found = verify(options.file, head=options.head)
    print(f"{found.num_lines} lines, each as it was written and in its place.")
    if found.cut_off:
        print("Half a line follows, which a crash leaves behind; what it was to say was not sent.")
    print(f"Hash of the last line: {found.head}")
    if options.head is None:
        print("Note it: only against it will lines show that are removed at the end.")
    return 0


COMMAND = Command(
    name="log",
    summary="show or verify the log of what a site sent",
    examples="""\
  erosion log verify records/sent.jsonl
""",
    add_arguments=_add_arguments,
    run=_run,
)
