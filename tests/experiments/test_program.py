"""`python -m experiments....`: mistakes end in a message, and before anything is computed."""

import argparse
from pathlib import Path

import pytest

from experiments import splits
from experiments.program import output_file, run_program

ROOT = Path(__file__).parents[2]
STARTED_BY_OTHERS = {  # never by a person
    "benchmarks/bare.py",
    "benchmarks/peers/grpc_copy.py",
    "benchmarks/simulation_programs.py",
    "hostile_load/attackers.py",
}


def test_every_program_that_a_person_starts_says_its_mistakes_in_words() -> None:
    folder = ROOT / "experiments"
    texts = {
        str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in folder.rglob("*.py")
    }
    programs = {name for name, text in texts.items() if 'if __name__ == "__main__":' in text}
    assert {p for p in programs if "    run_program(main)\n" not in texts[p]} == STARTED_BY_OTHERS


def test_a_mistake_ends_in_a_message_and_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["splits", "heart-disease", "--data-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run_program(splits.main)
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert "erosion: There is no folder" in said
    assert "Traceback" not in said


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path,
) -> None:
    assert output_file(str(tmp_path / "new" / "a.json")).parent.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match=r"a\.json: its folder cannot be made"):
        output_file(str(tmp_path / "file" / "a.json"))
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
        output_file(str(tmp_path))
