"""Options of the commands that run a study, or ask its sites."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erosion_server.enrolment.federation_folder import FederationFolder


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add `--output`, further observers of the run, and `--watch`."""
    from erosion_server.output.registry import in_words

    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME[=WHERE]",
        help=f"also pass the run on to this output; may be given several times. {in_words()}",
    )
    parser.add_argument(
        "--watch",
        dest="output",
        action="append_const",
        const="watch",
        help="serve a page that follows the run, and print its address; the same as --output watch",
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    """Add `--federation`, `--insecure` and `--address`."""
    parser.add_argument(
        "--federation",
        type=Path,
        default=Path("federation"),
        metavar="FOLDER",
        help="the folder that `erosion enroll init` made (default: %(default)s/)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="no TLS and no enrolment, on this machine only, for trying things",
    )
    parser.add_argument(
        "--address",
        type=_address,
        metavar="HOST:PORT",
        help="where to listen (default: every address, at the port that the site kits name; with"
        " --insecure 127.0.0.1:9092; port 0 picks a free one)",
    )


def _address(text: str) -> str:
    from erosion_common.support.network import checked_address

    try:
        return checked_address(text, least_port=0)
    except ValueError as mistake:
        raise argparse.ArgumentTypeError(f"{text!r}: {mistake}") from None


def federation_of(options: argparse.Namespace) -> "FederationFolder | None":
    """Return what `add_link` was given; None with --insecure. Raises EnrolmentError."""
    from erosion_server.enrolment.federation_folder import FederationFolder
    from erosion_server.link.link import federation_or_none

    return federation_or_none(FederationFolder(options.federation), insecure=options.insecure)
