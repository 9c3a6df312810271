"""Options of the commands that run a study."""

import argparse


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
