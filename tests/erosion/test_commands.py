"""Every command explains itself, and what its help shows can be typed."""

import re
import shlex
import subprocess
import sys

import pytest

from erosion.command_line import EPILOG, main, parser
from erosion.commands import COMMANDS
from erosion.commands.command import Command
from tests.support.patience import PATIENCE

SHOWN = [
    re.split(r"  +", line.strip())[0]
    for text in (EPILOG, *(command.examples for command in COMMANDS))
    for line in text.splitlines()
    if line.startswith("  erosion ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_a_command_says_what_it_is_for(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command.name, "--help"])
    text = capsys.readouterr().out
    assert " ".join(command.description.split()) in " ".join(text.split())
    assert text.endswith(command.examples) or not command.examples


@pytest.mark.parametrize("line", SHOWN)
def test_what_the_help_shows_is_understood(line: str) -> None:
    assert callable(parser().parse_args(shlex.split(line)[1:]).handler)


def test_the_examples_are_found() -> None:
    assert len(SHOWN) >= len(COMMANDS)


def test_the_help_waits_for_no_command_s_imports() -> None:
    program = (
        "import sys; from erosion.command_line import parser; parser().format_help();"
        "print(*(name for name in ('torch', 'grpc', 'cryptography', 'pydantic')"
        " if name in sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert run.stdout.split() == []
