"""Every command explains itself, and what its help shows can be typed."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from erosion.command_line import EPILOG, main, parser
from erosion.commands import COMMANDS
from erosion.commands.command import Command
from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

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


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"erosion {declared}\n"


def test_a_command_runs_without_an_output() -> None:
    program = [sys.executable, "-m", "erosion", "algorithms"]
    run = subprocess.run(
        ["sh", "-c", f"{shlex.join(program)} >&-"], stderr=subprocess.PIPE, timeout=PATIENCE
    )
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_full_disk_under_what_is_printed_is_said_in_a_sentence() -> None:
    program = [sys.executable, "-m", "erosion", "algorithms"]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
        )
    assert run.returncode == 74
    assert run.stderr.startswith("erosion: No space left on device: ")
    assert run.stderr.count("\n") == 1


def test_a_file_that_this_account_may_not_use_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders of a federation and of a site are closed to every other account."""

    def closed(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied", "federation/x")

    monkeypatch.setattr(Path, "exists", closed)
    assert main(["enroll", "list"]) == 74
    errors = capsys.readouterr().err
    assert "federation/x: Permission denied" in errors
    assert "as the account that it belongs to" in errors


def test_a_folder_in_place_of_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["enroll", "init", "--host", "erosion.example.org"]) == 0
    (tmp_path / "kit").mkdir()
    assert main(["enroll", "site", "north", "--out", "kit"]) == 74
    assert "kit: Is a directory" in capsys.readouterr().err
    assert main(["enroll", "site", "north"]) == 0  # it was not enrolled halfway


@pytest.mark.parametrize("mask", ["", "0x1f", "-1", "888", "rwx"])
def test_a_umask_that_is_none_is_named(
    mask: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EROSION_UMASK", mask)
    assert main(["algorithms"]) == 1
    assert f"EROSION_UMASK = {mask!r}" in capsys.readouterr().err


def test_an_account_without_a_name_says_who_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose account is a number."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr("getpass.getuser", nameless)
    site = tmp_path / "site.toml"
    data = 'name = "alike"\n[data]\npath = "patients.csv"\n'
    site.write_text(f'{data}[coordinator]\naddress = "127.0.0.1:9092"\n')
    study = Path(__file__).parents[2] / "experiments" / "studies" / "breast-cancer.toml"
    review = ["review", str(site), "--study", str(study), "--approve"]
    assert main(review) == 3
    assert "--by NAME" in capsys.readouterr().err
    assert main([*review, "--by", "dpo"]) == 0
    assert "Approved by dpo" in capsys.readouterr().out


def test_describe_takes_the_name_of_a_study_that_comes_with_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    main(["describe", "breast-cancer", "--simulate", "--output", str(page)])
    capsys.readouterr()
    assert "small-tumours" in page.read_text(encoding="utf-8")
