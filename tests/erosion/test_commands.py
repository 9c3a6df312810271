"""Every command explains itself, and what its help shows can be typed."""

import argparse
import importlib.metadata
import io
import re
import shlex
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import tomli_w

from erosion_common.program import command_line
from erosion_common.program.command import Command
from erosion_common.program.command_line import EPILOG, main, parser
from erosion_common.program.commands import installed_commands
from erosion_common.program.ending import ENDING, in_words
from erosion_server.commands.coordinator import GOES_WITH
from tests.support.patience import PATIENCE
from tests.support.said import raises, says
from tests.support.small_study import TASK, make_study

COMMANDS = installed_commands()

SHOWN = [
    re.split(r"  +", line.strip())[0]
    for text in (EPILOG, *(command.examples for command in COMMANDS))
    for line in text.splitlines()
    if line.startswith("  erosion ")
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_commands_say_their_purpose(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with raises(SystemExit, "0"):
        main([command.name, "--help"])
    text = capsys.readouterr().out
    assert " ".join(command.description.split()) in " ".join(text.split())
    assert text.endswith(command.examples) or not command.examples


@pytest.mark.parametrize("line", SHOWN)
def test_what_the_help_shows_is_understood(line: str) -> None:
    assert callable(parser().parse_args(shlex.split(line)[1:]).handler)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize(
    "option", ["server study.toml --longest-wait", "client site.toml --give-up-seconds"]
)
def test_waits_are_bounded(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with raises(SystemExit, "2"):
        parser().parse_args([*option.split()[:-1], f"{option.split()[-1]}={value}"])
    assert says(capsys.readouterr().err, f"{value} seconds", "0")


@pytest.mark.parametrize(
    ("unneeded", "commands"),
    [
        ("torch grpc cryptography pydantic", ["--help", "testbed --help", "status .", "models"]),
        ("torch flwr", ["enroll list", "log verify sent.jsonl", "audit run --logs a=sent.jsonl"]),
    ],
)
def test_commands_wait_for_no_imports_that_they_do_not_need(
    tmp_path: Path, unneeded: str, commands: list[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "study.toml").touch()
    program = (
        "import sys; from erosion_common.program.command_line import main\n"
        "for command in sys.argv[2:]:\n"
        "    try: main(command.split())\n"
        "    except SystemExit: pass\n"
        "print(*{*sys.argv[1].split()} & {*sys.modules}, file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, unneeded, *commands],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert run.stderr.splitlines()[-1] == ""


def test_a_program_ends_without_freeing_what_it_holds() -> None:
    script = (
        "import atexit, sys\n"
        "from erosion_common.program import command_line as line\n"
        "class Held:\n"
        "    def __del__(self): print('freed')\n"
        "def command():\n"
        "    atexit.register(print, 'handled')\n"
        "    return 3\n"
        "held, line.main = Held(), command\n"
        "line.program()"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (3, b"handled\n", b"")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    declared = importlib.metadata.version("erosion-fl")
    assert capsys.readouterr().out == f"erosion {declared}\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_replaces_a_standard_stream(tmp_path: Path, closed: str) -> None:
    script = (
        "import os, sys\n"
        "from erosion_common.program.ending import in_words\n"
        "def run():\n"
        "    with open(sys.argv[1], 'w') as file:\n"
        "        os.write(2, b'complaint')\n"
        "        sys.stdout.write('result')\n"
        "        return 0 if file.fileno() > 2 and not sys.stdin.isatty() else 1\n"
        "sys.exit(in_words(run, None))\n"
    )
    program = shlex.join([sys.executable, "-c", script, str(tmp_path / "file")])
    run = subprocess.run(["sh", "-c", f"{program} {closed}"], stdin=subprocess.PIPE)
    assert run.returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_ctrl_c_in_a_class_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the imports of a command: Python 3.11 makes a RuntimeError of it."""

    class Interrupted:
        def __set_name__(self, *_: object) -> None:
            raise KeyboardInterrupt

    def run() -> None:
        type("Enumeration", (), {"member": Interrupted()})

    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        assert in_words(run, argparse.Namespace()) == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err == "erosion: interrupted\n"


def test_ctrl_c_while_the_command_is_read_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "parser", interrupted)
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        assert main(["algorithms"]) == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err == "erosion: interrupted\n"


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_program_that_is_interrupted_in_an_import_ends(number: str, tmp_path: Path) -> None:
    """A package that is cut off may catch it, abort, or be a fault when it is imported again."""
    (tmp_path / "catches.py").write_text(
        "import os, signal\n"
        f"try: os.kill(os.getpid(), signal.{number})\n"
        "except BaseException: pass\n"
    )
    script = (
        "import argparse, signal, sys\n"
        f"signal.signal(signal.{number}, signal.SIG_DFL)\n"  # under nohup it is ignored
        "from erosion_common.program.ending import in_words\n"
        "def run():\n"
        "    import catches\n"
        "    print('went on')\n"
        "sys.exit(in_words(run, argparse.Namespace()))\n"
    )
    program = [sys.executable, "-c", script]
    run = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "erosion: interrupted\n")


@pytest.mark.parametrize("printed", ["print('x', flush=True)", "Console().print('x')"])
def test_who_reads_no_further_ends_a_command_without_an_error(printed: str) -> None:
    script = (
        "import sys\n"
        "from rich.console import Console\n"
        "from erosion_common.program.ending import in_words\n"
        "def run():\n"
        "    sys.stdin.read()\n"  # until nobody reads its output any more
        f"    {printed}\n"
        "    return 1\n"
        "sys.exit(in_words(run, None))\n"
    )
    pipe, program = subprocess.PIPE, [sys.executable, "-c", script]
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, complaints = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaints) == (0, b"")


def test_a_full_disk_under_what_is_printed_is_said_in_a_sentence() -> None:
    script = (
        "import argparse, sys\n"
        "from erosion_common.program.ending import in_words\n"
        "sys.exit(in_words(lambda: print('result'), argparse.Namespace()))\n"
    )
    program = [sys.executable, "-c", script]
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
        )
    assert run.returncode == 74
    assert run.stderr.startswith("erosion: No space left on device: ")
    assert run.stderr.count("\n") == 1


def test_too_little_memory_is_no_fault() -> None:
    script = (
        "import argparse, mmap, resource, threading, numpy as np, torch\n"
        "from erosion_common.program.ending import in_words\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))\n"
        "for needed in (\n"
        "    lambda: bytearray(2**40),\n"
        "    lambda: np.ones(2**40),\n"
        "    lambda: torch.ones(2**40),\n"
        "    lambda: mmap.mmap(-1, 2**40),\n"
        "    lambda: threading.stack_size(2**40) or threading.Thread().start(),\n"
        "):\n"
        "    print(in_words(needed, argparse.Namespace()))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["74"] * 5
    assert run.stderr.count("\n") == 5


def test_a_folder_whose_name_is_not_utf_8_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "M\udcfcller"  # as Python reads the bytes of an old Windows share
    folder.mkdir()
    monkeypatch.chdir(folder)

    def writes(_kind: str) -> list[str]:
        (tmp_path / "site.toml").write_text(f'path = "{Path.cwd()}"', encoding="utf-8")
        return []

    monkeypatch.setattr("erosion_common.settings.packages.every_installed", writes)
    assert main(["models"]) == 74
    said = capsys.readouterr().err
    assert says(said, "M�ller", "UTF-8")
    assert said.count("\n") == 1


def test_a_folder_in_place_of_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["enroll", "init", "--host", "erosion.example.org"]) == 0
    (tmp_path / "kit").mkdir()
    assert main(["enroll", "site", "north", "--out", "kit"]) == 74
    assert says(capsys.readouterr().err, "kit", "directory")
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
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr("getpass.getuser", nameless)
    site = tmp_path / "site.toml"
    data = 'name = "alike"\n[data]\npath = "patients.csv"\n'
    site.write_text(f'{data}[coordinator]\naddress = "127.0.0.1:9092"\n')
    study = Path(__file__).parents[2] / "erosion" / "studies" / "breast-cancer.toml"
    review = ["review", str(site), "--study", str(study), "--approve"]
    assert main(review) == 3
    assert "--by NAME" in capsys.readouterr().err
    assert main([*review, "--by", "dpo"]) == 0
    assert "Approved by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["testbed", "--simulate", "--output", "metrics"], "go without --simulate"),
        (["testbed", "--simulate", "--runs", "elsewhere"], "go without --simulate"),
        (["server", "study.toml", "--until-empty"], "--until-empty goes with --queue"),
        (["server", "study.toml", "--run-config", "a=1"], "--run-config goes with --app"),
        (["describe", "s.toml", "--simulate", "--insecure"], "--insecure goes without --simulate"),
        (["describe", "s.toml", "--data-dir", "d"], "--data-dir goes with --simulate"),
        (["describe", "s.toml", "--insecure", "--federation", "f"], "takes the place of"),
        (["server", "s.toml", "--run-folder", "a", "--runs", "b"], "--run-folder takes the place"),
        (["server", "s.toml", "--insecure", "--federation", "a"], "--insecure takes the place"),
        (["audit", "run", "b.safetensors", "--logs", "bob=sent.jsonl"], "goes without --logs"),
    ],
)
def test_vain_options(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) != 0
    assert said in capsys.readouterr().err


SERVER_MODES = {
    "study": ["study.toml"],
    "resume": ["--resume", "run"],
    "queue": ["--queue", "studies"],
    "app": ["--app", "package:app"],
}
SERVER_OPTIONS = {
    "until_empty": [],
    "start_with_quorum": [],
    "longest_wait": ["60"],
    "runs": ["elsewhere"],
    "updates": ["disk"],
    "weights": ["elsewhere"],
    "run_config": ["a=1"],
    "run_folder": ["elsewhere"],
    "output": ["metrics"],
    "metrics": ["9464"],
}


@pytest.mark.parametrize("mode", SERVER_MODES)
@pytest.mark.parametrize("option", SERVER_OPTIONS)
def test_the_server_refuses_options_that_would_do_nothing(
    mode: str,
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # there is no such file, folder or app
    flag = f"--{option.replace('_', '-')}"
    given = [*SERVER_MODES[mode], flag, *SERVER_OPTIONS[option]]
    assert set(SERVER_OPTIONS) == set(GOES_WITH)
    assert main(["server", *given, "--insecure"]) != 0
    assert (f"{flag} goes with" in capsys.readouterr().err) == (mode not in GOES_WITH[option])


@pytest.mark.parametrize(
    ("mode", "other"),
    [modes for modes in combinations(SERVER_MODES, 2) if modes != ("study", "resume")],
)
def test_the_server_alone(mode: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", *SERVER_MODES[mode], *SERVER_MODES[other]]) == 2
    said = capsys.readouterr().err
    assert (says(said, "takes", "place")) == ("app" in (mode, other))
    assert ("--queue FOLDER" in said) == ("app" not in (mode, other))


@pytest.mark.parametrize(
    "given",
    [
        ["a.toml", "b.toml", "--run-folder", "run"],
        ["a.toml", "--resume", "x", "--resume", "y"],
        ["a.toml", "b.toml", "--resume", "x"],
    ],
)
def test_what_is_for_one_study_is_refused_for_several(given: list[str]) -> None:
    assert main(["server", *given, "--insecure"]) == 2


def test_what_the_output_cannot_show_ends_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.toml"
    data = 'name = "alike"\n[data]\npath = "patients.csv"\n'
    site.write_text(f'{data}[coordinator]\naddress = "127.0.0.1:1"\n')
    printed = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", printed)
    assert main(["check", str(site)]) == 1
    printed.seek(0)
    shown = printed.read()
    assert "? " in shown
    assert says(shown, "keep", "taking")


def test_incomplete_descriptions_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = "age,sex,ill\n" + "".join(f"{age},f,{age % 2}\n" for age in range(40, 90))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(table)
    (tmp_path / "c.csv").write_text(table.replace(",f,", ",woman,"))
    study = make_study(
        hospitals=["a", "b", "c"], task={**TASK, "classes": ["0", "1"]}, federation={"quorum": 2}
    )
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
    page = str(tmp_path / "page.html")
    assert main(["describe", str(path), "--simulate", "--output", page]) == 1
    assert says(capsys.readouterr().out, "gave", "description")
