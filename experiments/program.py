"""What the programs that `python -m experiments....` starts have in common."""

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from erosion_common.program.ending import in_words


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run it as the command line runs its commands: a mistake ends in a message and a code."""
    sys.exit(in_words(main, argparse.Namespace(verbose=1)))


def output_file(text: str) -> Path:
    """Return the type of an argument that names a file to be written: its folder is made.

    Raises argparse.ArgumentTypeError where it cannot be written, before anything is computed.
    """
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise argparse.ArgumentTypeError(
            f"{path}: its folder cannot be made ({problem.strerror})"
        ) from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def unpack_kit(kit: Path, to: Path) -> Path:
    """Unpack the site kit into the folder `to`; returns the site's own folder in it."""
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "--extract", "--file", kit, "--directory", to], check=True)
    with tarfile.open(kit) as archive:
        return to / archive.getnames()[0]
