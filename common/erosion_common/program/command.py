"""One sub-command of `erosion`, and options that several share."""

import argparse
import math
import os
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from erosion_common.support.logs import LOG_FORMATS

CHECK_FAILED = 1  # exit code of a command that looked and found something wrong
WIDTH = 88  # of a command's description, in characters


def no_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: its words in `--help`, its arguments, and its action.

    `add_arguments` is called only where the command is chosen or asked for its help, and `run`
    only where it runs: both import what they need inside, so that no command waits for others.
    """

    name: str
    summary: str  # one line, without a full stop; the list in `erosion --help`
    run: Callable[[argparse.Namespace], int]  # returns the exit code
    add_arguments: Callable[[argparse.ArgumentParser], None] = no_arguments
    details: str = ""  # whole sentences after the summary, in the command's own `--help`
    examples: str = ""  # command lines with what they do, below its arguments

    @property
    def description(self) -> str:
        """The summary as a sentence, and the details; wrapped."""
        text = f"{self.summary[0].upper()}{self.summary[1:]}. {self.details}"
        return textwrap.fill(text, WIDTH)

    @property
    def epilog(self) -> str:
        """The examples under their heading; "" where there are none."""
        return f"examples:\n{self.examples.rstrip()}" if self.examples else ""


def given(
    options: argparse.Namespace,
    names: Iterable[str],
    add_arguments: Callable[[argparse.ArgumentParser], None],
) -> set[str]:
    """Return those of the names in `options` with another value than the default."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return {name for name in names if getattr(options, name) != parser.get_default(name)}


def flag(option: str) -> str:
    """`--run-folder` of `run_folder`."""
    return f"--{option.replace('_', '-')}"


def seconds(text: str) -> float:
    """Parse a duration; for argparse."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} seconds; give a number above 0")
    return value


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """`--log-format`."""
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="json: one object per line, for programs that collect logs (default: text)",
    )


DEFAULT_RUNS = Path("runs")


def add_runs(parser: argparse.ArgumentParser, default: Path | None = DEFAULT_RUNS) -> None:
    """Add `--runs`: the folder of run folders. `default` None: it was left out."""
    parser.add_argument(
        "--runs", type=Path, default=default, help="where runs are kept (default: runs/)"
    )


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


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add `--weights`: the folder with files that models start from."""
    parser.add_argument(
        "--weights",
        type=Path,
        default=Path("weights"),
        metavar="FOLDER",
        help="where the weights are that a study's model starts from (default: %(default)s/)",
    )


def add_supervised(parser: argparse.ArgumentParser) -> None:
    """Add `--until-stdin-closes`: the program ends with the one that started it."""
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="for supervisors: end when standard input closes, that is, when the supervisor does",
    )
