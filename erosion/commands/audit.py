"""`erosion audit`."""

import argparse
from pathlib import Path

from erosion.commands.command import CHECK_FAILED, Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run's folder, at the coordinator")
    parser.add_argument(
        "openings",
        type=Path,
        nargs="*",
        metavar="OPENING",
        help="what hospitals showed: each one's opening.safetensors",
    )


def _run(options: argparse.Namespace) -> int:
    from erosion.server.sealed.audit_run import audit_run

    return 0 if audit_run(options.run, options.openings) else CHECK_FAILED


COMMAND = Command(
    name="audit",
    summary="find out whose update made a sealed sum not fit its distances",
    details=(
        "A sealed arm stops where a sum cannot be one of updates at the distances that were\n"
        "claimed. Then a person at each hospital hands over opening.safetensors from the site's\n"
        "folder of sealed rounds (compute.state in the site file): the update of that round and\n"
        "what takes off its masks. Nobody can open another than the one that was summed."
    ),
    examples="""\
  erosion audit RUN
  erosion audit RUN bob/opening.safetensors carol/opening.safetensors
""",
    add_arguments=_add_arguments,
    run=_run,
)
