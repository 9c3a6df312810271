"""`erosion audit`."""

import argparse
from pathlib import Path

from erosion_common.program.command import CHECK_FAILED, Command


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
    from erosion_server.run.audit_run import audit_log, audit_run

    if options.logs and options.openings:
        raise RunError(
            "An OPENING goes without --logs, which opens no sum; give the one or the other."
        )
    if not options.logs:
        return 0 if audit_run(options.run, options.openings) else CHECK_FAILED
    sound = True
    for log in options.logs:
        name, _, file = log.partition("=")
        if not (name and file):
            raise RunError(f"--logs {log}; write NAME=FILE, with the hospital's name in the study.")
        sound &= audit_log(options.run, name, Path(file))
    return 0 if sound else CHECK_FAILED


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
