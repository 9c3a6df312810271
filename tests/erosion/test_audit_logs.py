"""`erosion audit --logs`: hospitals' logs held against what the coordinator knows about them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from erosion_common.errors import CheckpointError
from erosion_common.formats.sent_log import Witness, full_files
from erosion_common.program.command_line import main
from tests.support.said import says
from tests.support.sent_logs import long_log


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, and bob's log in files of a few lines each beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "study.toml").touch()
    witness = Witness(folder / "witness.jsonl")
    for head in long_log(tmp_path / "bob", 9):
        witness("bob", "train", head)
    return folder


def audited(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["audit", str(run), "--logs", f"bob={run.parent / 'bob' / 'sent.jsonl'}"])
    return code, capsys.readouterr().out


def without_the_last_line(log: Path) -> None:
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize("command", ["audit", "report", "validate", "export --onnx"])
@pytest.mark.parametrize("given", ["nothing", "table.csv", "folder"])
def test_what_is_no_run_folder_is_refused_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, given: str
) -> None:
    (tmp_path / "table.csv").touch()
    (tmp_path / "folder").mkdir()
    path = str(tmp_path / given)
    assert main([*command.split(), path]) == CheckpointError.exit_code
    assert says(capsys.readouterr().err, path, "no study.toml")


@pytest.mark.parametrize("command", ["audit", "audit --logs bob=sent.jsonl"])
def test_of_a_run_for_every_hospital_one_is_audited(
    run: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (run / "users").mkdir()
    name, *more = command.split()
    assert main([name, str(run), *more]) == CheckpointError.exit_code
    assert says(capsys.readouterr().err, "users/HOSPITAL")


def test_an_intact_log_has_every_hash(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(run, capsys) == (0, "bob: all 9 hashes are in its log of 9 lines.\n")


def test_a_line_that_was_changed_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = run.parent / "bob" / "sent.jsonl"
    log.write_text(log.read_text().replace("run-7", "run-8", 1))
    code, said = audited(run, capsys)
    assert code == 1
    assert "coordinator keeps" in said or "not follow" in said


def test_removed_lines_show_without_old_ones(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    oldest = full_files(run.parent / "bob" / "sent.jsonl")[0]
    oldest.unlink()
    code, said = audited(run, capsys)
    assert code == 1  # no site removes lines of today
    assert "none of" in said
    witness = run / "witness.jsonl"
    lines = [json.loads(line) for line in witness.read_text().splitlines()]
    last_year = datetime.now(UTC) - timedelta(days=365)
    dated = [json.dumps({**line, "time": last_year.isoformat()}) for line in lines]
    witness.write_text("".join(f"{line}\n" for line in dated))
    code, said = audited(run, capsys)
    assert code == 0
    assert says(said, "older", "ones")
    without_the_last_line(run.parent / "bob" / "sent.jsonl")
    code, said = audited(run, capsys)
    assert code == 1
    assert says(said, "keeps", "1 hashes")


def test_lines_of_the_run_that_the_coordinator_has_no_hash_of_are_counted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run.rename(run.with_name("run-7"))  # that the log's lines are of
    assert audited(run, capsys) == (0, "bob: all 9 hashes are in its log of 9 lines.\n")
    witness = run / "witness.jsonl"
    lines = witness.read_text().splitlines(keepends=True)
    witness.write_text("".join(lines[:3] + lines[5:]))
    code, said = audited(run, capsys)
    assert code == 0
    assert says(said, "all 7 hashes", "of 2 lines", str(witness))


def test_a_log_that_was_written_anew_shows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (run.parent / "bob").iterdir():
        file.unlink()
    long_log(run.parent / "bob", 9)
    code, said = audited(run, capsys)
    assert code == 1
    assert says(said, "keeps", "9 hashes")


def test_an_unknown_hospital_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = run.parent / "bob" / "sent.jsonl"
    assert main(["audit", str(run), "--logs", f"carol={log}"]) == 1
    assert says(capsys.readouterr().out, "hash", "log")
    assert main(["audit", str(run), "--logs", "carol"]) == 7
    assert "write NAME=FILE" in capsys.readouterr().err
