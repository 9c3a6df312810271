"""`erosion enroll`."""

import argparse
from collections.abc import Callable

from erosion.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    from erosion.client.enrolment.enroll_command import add_site_commands
    from erosion.server.enrolment.enroll_command import add_enroll_commands

    add_site_commands(add_enroll_commands(parser))


def _run(options: argparse.Namespace) -> int:
    act: Callable[[argparse.Namespace], None] = options.enroll
    act(options)
    return 0


COMMAND = Command(
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
    add_arguments=_add_arguments,
    run=_run,
)
