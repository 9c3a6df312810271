"""`python -m experiments.faults`: does every fault to real processes and tables its cost."""

import argparse
from pathlib import Path

from experiments.faults.page import make_rows
from experiments.faults.scenes import SCENES, play
from experiments.faults.stage import Row
from experiments.program import run_program


def main() -> int:
    """Play the scenes that are asked for."""

    def played(name: str, folder: Path, _options: argparse.Namespace) -> Row | str:
        return SCENES[name].why_not() or play(SCENES[name], folder)

    return make_rows("faults", __doc__ or "", list(SCENES), played)


if __name__ == "__main__":
    run_program(main)
