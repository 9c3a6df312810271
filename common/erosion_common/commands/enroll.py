"""`erosion enroll`: the coordinator's sub-commands and the sites', where each is installed."""

import argparse
from collections.abc import Callable
from importlib import import_module

from erosion_common.program.command import Command
from erosion_common.program.commands import is_installed

PARTS = ("erosion_server.enrolment.enroll_command", "erosion_client.enrolment.enroll_command")


def _enroll_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="sub-commands", metavar="WHAT", required=True)
    for module in PARTS:
        if is_installed(module):
            import_module(module).add_enroll_commands(commands)


def _run_enroll(options: argparse.Namespace) -> int:
    act: Callable[[argparse.Namespace], None] = options.enroll
    act(options)
    return 0


ENROLL = Command(
    name="enroll",
    summary="decide who may connect, by keys and certificates",
    details="For the coordinator, except `request`, `install` and `pin`, which are for sites.",
    examples="""\
  erosion enroll init --host erosion.example.org     once; the name that the sites dial
  erosion enroll site north                          federation/kits/north.tar.gz, to hand over
  erosion enroll list                                who is enrolled, and until when
  erosion enroll request north                       at a site that makes its own key: node.csr
  erosion enroll sign node.csr                       at the coordinator: makes a kit for that key
  erosion enroll revoke north                        out within seconds
""",
    add_arguments=_enroll_arguments,
    run=_run_enroll,
)
