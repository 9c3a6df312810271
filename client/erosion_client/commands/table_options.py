"""Options that say how a table is written."""

import argparse
from functools import partial
from typing import Any

from erosion_common.program.command import flag

# Keys of [data] that are options, too.
HOW_WRITTEN = {
    "encoding": 'of text, such as "cp1252"',
    "separator": 'of columns, such as ";"',
    "sheet": "of workbooks: the one with the patients",
    "value_labels": "of SPSS and Stata: codes or labels",
}


def add_how_written(parser: argparse.ArgumentParser) -> None:
    """Add options that say how a table is written, where that is not worked out."""
    for key, what in HOW_WRITTEN.items():
        parser.add_argument(flag(key), type=partial(_checked, key), help=f"{what} ([data] has it)")


def how_written(options: argparse.Namespace) -> dict[str, Any]:
    """Return those of the options that were given, as keys of [data]."""
    return {key: value for key in HOW_WRITTEN if (value := getattr(options, key)) is not None}


def _checked(key: str, text: str) -> str:
    from pydantic import ValidationError

    from erosion_client.dataset.sources.table_file import TableFile

    try:
        found: str = getattr(TableFile.model_validate({"path": "x.csv", key: text}), key)
    except ValidationError as problem:
        raise argparse.ArgumentTypeError(problem.errors()[0]["msg"]) from None
    return found
