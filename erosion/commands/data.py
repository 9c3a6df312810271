"""`erosion data`."""

import argparse

from erosion.commands.command import Command
from erosion.experiments.data_dir import add_data_dir


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="heart-disease or mnist")
    add_data_dir(parser)


def _run(options: argparse.Namespace) -> int:
    from erosion.experiments.download import DATA_SETS, fetch

    folder = fetch(options.name, options.data_dir)
    print(f"{DATA_SETS[options.name].about}: in {folder}, with the right checksums.")
    return 0


COMMAND = Command(
    name="data",
    summary="download a public data set and check it",
    add_arguments=_add_arguments,
    run=_run,
)
