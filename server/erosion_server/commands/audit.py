"""`erosion audit`."""

import argparse
from collections.abc import Iterator, Sequence
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
    from erosion_common.audit.witness import held_against, read_witness
    from erosion_common.errors import SiteError
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
