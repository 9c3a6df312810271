"""`erosion algorithms`."""

import argparse

from erosion.commands.command import Command


def _run(_options: argparse.Namespace) -> int:
    from erosion.common.algorithms import catalogue

    print(catalogue())
    return 0


COMMAND = Command(
    name="algorithms",
    summary="explain the algorithms that a study can name",
    run=_run,
)
