"""The command line as people use it: real processes, exit codes, messages without tracebacks."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

from erosion.simulation.testbed import _Program, _watch, study_path
from erosion.sources import make_hospitals
from erosion_common.program.command_line import main
from erosion_common.rounds import bounds
from erosion_common.study.study import load_study
from tests.support.forked import Forked
from tests.support.patience import PATIENCE, wait_until
from tests.support.small_study import TWO_NUMBERS, make_study, sixty_patients

STUDIES = Path(__file__).resolve().parents[2] / "erosion" / "studies"


THREE = ("home", "alike", "miscoded")
FIVE = ("home", "alike", "small-tumours", "large-tumours", "miscoded")


def quick_study(folder: Path, rounds: int = 2, hospitals: Sequence[str] = FIVE) -> Path:
    """The default study with few rounds and some of its hospitals, and no local references."""
    path = folder / "quick.toml"
    text = (STUDIES / "breast-cancer.toml").read_text()
    for default, wanted in (
        ("rounds = 30", f"rounds = {rounds}"),
        (f"hospitals = {json.dumps(FIVE)}", f"hospitals = {json.dumps(hospitals)}"),
        ("[evaluation]\n", "[evaluation]\nreferences = []\n"),
    ):
        assert default in text
        text = text.replace(default, wanted)
    path.write_text(text)
    return path


def processes_of(folder: Path) -> list[int]:
    """Ids of running processes that have a file of the folder open, or name one in their command
    line or in that of the process that they were forked from; this one excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                is_open = any(
                    str(folder) in str(each.readlink()) for each in (entry / "fd").iterdir()
                )
                is_named = os.fsencode(folder) in (entry / "cmdline").read_bytes()
                if state != "Z" and (is_open or is_named):
                    found.append(int(entry.name))
    return found


def program_of(testbed: Forked, name: str) -> int:
    """The id of the process that is the coordinator, or a hospital's."""
    of = testbed.pid
    children = Path(f"/proc/{of}/task/{of}/children").read_text().split()
    (pid,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"]
    return int(pid)


@pytest.fixture(params=[("home", "alike")], ids=["two hospitals"])
def testbed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Forked]:
    """A testbed of a few hospitals that is still running when it is disturbed."""
    study = quick_study(tmp_path, rounds=100_000, hospitals=request.param)
    process = forked_testbed(study, tmp_path)
    wait_until(lambda: any(p.stat().st_size for p in tmp_path.glob("runs/*/rounds.jsonl")))
    yield process
    process.close()
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def forked_testbed(study: Path, folder: Path) -> Forked:
    """`erosion testbed` with its runs in the folder."""
    command = ["testbed", str(study), "--runs", str(folder / "runs")]
    return Forked("testbed", command, folder / "testbed.log", is_daemon=False)


def test_the_testbed_ends_with_a_result_and_the_model_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = quick_study(tmp_path, hospitals=THREE)
    run = subprocess.run(
        [sys.executable, "-m", "erosion", "testbed", str(study), "--runs", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        umask=0,  # as where everything is everybody's
    )
    assert run.returncode == 0, run.stderr
    (made,) = (tmp_path / "runs").iterdir()
    everything = [made, *made.rglob("*")]
    assert {path.name for path in everything} > {
        "model.safetensors",
        "sent.jsonl",
        "records.sqlite",
    }
    assert [path for path in everything if path.stat().st_mode & 0o077] == []
    assert "Traceback" not in run.stderr
    assert "Peak memory in MB: coordinator" in run.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert set(result["arms"]) == {"weight_erosion", "fedavg", "local"}
    assert result["verdict"]["text"].split(".")[0] in " ".join(run.stdout.split())
    assert processes_of(tmp_path) == []

    assert main(["status", str(tmp_path / "runs")]) == 0
    assert result["verdict"]["text"] in capsys.readouterr().out
    assert main(["status", str(folder / "testbed" / "home" / "site.toml")]) == 2
    assert "the program" in capsys.readouterr().out  # it was stopped with the testbed
    sent = folder / "testbed" / "home" / "records" / "home" / "sent.jsonl"
    assert main(["log", "verify", str(sent)]) == 0
    assert "each as it was written and in its place" in capsys.readouterr().out
    assert "weight_erosion,home,2,2," in folder.joinpath("contributions.csv").read_text()
    assert main(["audit", str(folder), "--logs", f"home={sent}"]) == 0
    assert "home: all" in capsys.readouterr().out
    whole = sent.read_text().splitlines(keepends=True)
    sent.write_text("".join(whole[:-2]))  # the last one answers the notice of the end
    assert main(["audit", str(folder), "--logs", f"home={sent}"]) == 1
    assert "Lines were removed" in capsys.readouterr().out

    output = tmp_path / "predictions.csv"
    patients = folder / "testbed" / "home" / "patients.csv"
    assert main(["predict", str(folder), str(patients), "-o", str(output)]) == 0
    assert len(output.read_text().splitlines()) == 131  # a header and 130 patients
    assert "the model was trained on 26 of these 130 rows" in capsys.readouterr().err


def test_a_killed_testbed_leaves_nothing_running(testbed: Forked, tmp_path: Path) -> None:
    assert len(processes_of(tmp_path)) == 1 + 1 + 2
    testbed.kill()
    wait_until(lambda: processes_of(tmp_path) == [])


def test_when_the_coordinator_dies_the_testbed_ends_with_its_exit_code(
    testbed: Forked, tmp_path: Path
) -> None:
    os.kill(program_of(testbed, "coordinator"), signal.SIGKILL)
    assert testbed.wait() == 128 + signal.SIGKILL
    wait_until(lambda: processes_of(tmp_path) == [])


@pytest.mark.parametrize("testbed", [THREE], ids=["three hospitals"], indirect=True)
def test_when_a_hospital_dies_the_study_goes_on_and_ctrl_c_stops_all_that_was_started(
    testbed: Forked, tmp_path: Path
) -> None:
    os.kill(program_of(testbed, "alike"), signal.SIGKILL)
    (journal,) = tmp_path.glob("runs/*/rounds.jsonl")
    # Asked or between two rounds when it died: the reason differs.
    wait_until(lambda: '"outcome": "absent"' in journal.read_text())
    size = journal.stat().st_size
    wait_until(lambda: journal.stat().st_size > size)
    os.kill(testbed.pid, signal.SIGINT)
    assert testbed.wait() == 130
    errors = testbed.text()
    assert "The site of alike ended (exit code -9)" in errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    wait_until(lambda: processes_of(tmp_path) == [])
    for line in journal.read_text().splitlines():
        json.loads(line)


def test_a_testbed_that_cannot_begin_says_at_which_line_and_names_no_run_to_go_on_with(
    tmp_path: Path,
) -> None:
    study = make_study(task=TWO_NUMBERS, rounds=2).model_dump(mode="json", exclude_none=True)
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study))
    (tmp_path / "a.csv").write_text(sixty_patients("a").replace("\n", "\nold", 1))
    (tmp_path / "b.csv").write_text(sixty_patients("b"))
    run = forked_testbed(tmp_path, tmp_path)
    assert run.wait() == 7
    errors = run.text()
    assert "Put that right, then start it again." in errors
    assert "--resume" not in errors
    assert f"At a ({next((tmp_path / 'runs').glob('*/testbed/a/log.txt'))}): " in errors
    assert "column age: not a number: 'old" in errors


def test_a_testbed_tells_a_sites_first_error_at_once_and_its_last_one_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    stamp = "2026-11-27T20:52:29.338+00:00"
    log.write_text(f"{stamp} ERROR erosion.site: column inj: not a number\n  of 11\n")
    process: Any = SimpleNamespace(exitcode=None, join=lambda _seconds: None)
    site = _Program("iu", process, os.getpid(), log)
    told: list[str] = []

    class Coordinator(_Program):
        def poll(self) -> int | None:
            told.append(capsys.readouterr().err)
            return None if len(told) < 3 else 0

    assert _watch(Coordinator("coordinator", process, os.getpid(), None), [site]) == 0
    first = f"At iu ({log}): erosion.site: column inj: not a number\n  of 11\n"
    assert told == ["", first, ""]
    site.tell_error()
    log.write_text(f"{stamp} INFO erosion.site: stopped\n{stamp} ERROR erosion.site: lost\n")
    site.tell_error()
    assert capsys.readouterr().err == f"At iu ({log}): erosion.site: lost\n"


def test_a_port_in_use_is_said_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        study = str(quick_study(tmp_path))
        place = ["--address", address, "--runs", str(tmp_path / "runs")]
        assert main(["server", study, "--insecure", *place]) == 6
    errors = capsys.readouterr().err
    assert address in errors
    assert "in use" in errors
    assert "--address" in errors


@pytest.mark.parametrize("command", ["server", "describe"])
def test_a_study_that_cannot_be_sent_is_refused_before_anybody_waits(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bounds, "LARGEST_HEAD_BYTES", 1000)
    study = str(quick_study(tmp_path))
    assert main([command, study, "--insecure", "--address", "127.0.0.1:0"]) == 2
    errors = capsys.readouterr().err
    assert "with 30 columns a message takes" in errors
    assert "Leave columns out" in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["server", "nowhere.toml"], 2, "no study file at nowhere.toml"),
        (["testbed", "unheard-of"], 2, "breast-cancer"),
        (["client", "nowhere.toml"], 3, "no site file at nowhere.toml"),
        (["predict", "nowhere", "data.csv"], 8, "nowhere"),
        (["data", "unheard-of"], 1, "heart-disease"),
    ],
)
def test_a_wrong_argument_is_a_message_and_an_exit_code(
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    errors = capsys.readouterr().err
    assert words in errors
    assert "Traceback" not in errors


def test_without_tls_the_coordinator_listens_on_this_machine_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = str(quick_study(tmp_path))
    place = ["--address", "0.0.0.0:0", "--runs", str(tmp_path / "runs")]
    assert main(["server", study, "--insecure", *place]) == 6
    assert "127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1", "[::1]", "::1:0", ":0"]
)
def test_what_is_no_address_is_not_listened_at(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["server", "study.toml", "--insecure", "--address", address])
    assert (ended.value.code, "--address" in capsys.readouterr().err) == (2, True)


def test_a_server_without_a_federation_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = str(quick_study(tmp_path))
    assert main(["server", study, "--federation", str(tmp_path / "none")]) == 9
    errors = capsys.readouterr().err
    assert "erosion enroll init" in errors
    assert "--federation" in errors
    assert "--insecure" in errors


def test_a_site_that_cannot_reach_its_coordinator_gives_up_when_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_study(study_path("breast-cancer"))
    files = make_hospitals(study, tmp_path, None)
    site = tmp_path / "site.toml"
    site.write_text(
        f'name = "home"\n[data]\npath = "{files["home"]["path"]}"\n'
        '[coordinator]\naddress = "127.0.0.1:9"\n'
    )
    assert main(["client", str(site), "--give-up-seconds", "0.5"]) == 6
    errors = capsys.readouterr().err
    assert "The coordinator at 127.0.0.1:9 cannot be reached" in errors
    assert "coordinator.address" in errors


def test_a_fault_of_ours_is_a_sentence_and_with_v_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erosion_common.algorithms.catalogue", lambda: 1 / 0)
    assert main(["algorithms"]) == 70
    errors = capsys.readouterr().err
    assert "a fault of this program (ZeroDivisionError: division by zero)" in errors
    assert "Traceback" not in errors
    assert main(["algorithms", "-v"]) == 70
    assert "Traceback" in capsys.readouterr().err
