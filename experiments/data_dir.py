"""The folder of the public data sets: `--data-dir`, else $EROSION_DATA, else data/."""

import argparse
import os
from pathlib import Path


def default_data_dir() -> Path:
    """Return the folder where nobody names one."""
    return Path(os.environ.get("EROSION_DATA") or "data")


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """`--data-dir`: the folder with the public data sets."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=default_data_dir(),
        help="where downloaded data sets are (default: $EROSION_DATA, else data/)",
    )
