"""One sub-command of `erosion`."""

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

CHECK_FAILED = 1  # exit code of a command that looked and found something wrong
WIDTH = 88  # of a command's description, in characters


def no_arguments(_parser: argparse.ArgumentParser) -> None:
    """For a command that takes none."""


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: its words in `--help`, its arguments, and its action.

    `add_arguments` is called only where the command is chosen or asked for its help, and `run`
    only where it runs: what they need is imported inside them, so that no command waits for
    another's imports.
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
