"""The command line: one sub-command for each thing that a person does."""

import argparse
import atexit
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from erosion_common.errors import ErosionError
from erosion_common.program.command import Command
from erosion_common.program.commands import installed_commands, missing_commands
from erosion_common.program.ending import in_words
from erosion_common.support.software import software_version

EPILOG = Path(__file__).with_name("help.txt").read_text("utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one sub-command; people get messages, never tracebacks. Returns the exit code."""
    options = argparse.Namespace()

    def run() -> int:
        whole = parser()
        if any("\0" in given for given in arguments or ()):  # by a program that calls this one
            whole.error("an argument has a NUL character in it, which no path can have; remove it")
        given = sys.argv[1:] if arguments is None else arguments
        if given and (package := missing_commands().get(given[0])):
            whole.error(f"`erosion {given[0]}` comes with {package}, which is not installed here")
        whole.parse_args(arguments, options)
        # Models, figures and logs are for this account alone, unless the person says otherwise.
        said = os.environ.get("EROSION_UMASK", "077")
        if not re.fullmatch("[0-7]{1,4}", said):
            raise ErosionError(f"EROSION_UMASK = {said!r}; write three octal digits, such as 027.")
        os.umask(int(said, base=8))
        # Memory holds patients and keys: a fault must not leave it on the disk.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        handler: Callable[[argparse.Namespace], int] = options.handler
        return handler(options)

    return in_words(run, options)


def program() -> NoReturn:
    """Run one sub-command and end the process, without freeing each of torch's objects first."""
    codes: list[int] = []

    def end() -> None:
        for code in codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    atexit.register(end)  # first, so that it is called last
    codes.append(main())
    sys.exit(codes[0])


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes long."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"erosion {software_version()}")
        parser.exit()


class _CommandParser(argparse.ArgumentParser):
    """The parser of one command, which adds the arguments when it first parses."""

    def __init__(self, command: Command | None = None, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._to_add = command

    def parse_known_args(  # type: ignore[override]  # argparse declares overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse what follows the command's name; the parser of the whole line calls this."""
        if self._to_add is not None:
            command, self._to_add = self._to_add, None
            command.add_arguments(self)
        return super().parse_known_args(args, namespace)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; `handler` is what to call with the options."""
    whole = argparse.ArgumentParser(
        prog="erosion",
        description="Personalised collaborative learning for hospitals: train a model for your own"
        " patients\nwith the help of hospitals that keep their data.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = whole.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for command in installed_commands():
        sub = commands.add_parser(
            command.name,
            command=command,
            help=command.summary,
            description=command.description,
            epilog=command.epilog,
        )
        sub.set_defaults(handler=command.run)
        sub.add_argument(
            "-v", "--verbose", action="count", default=0, help="say more; -vv adds Flower's own log"
        )
    return whole


if __name__ == "__main__":
    program()
