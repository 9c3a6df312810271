"""`erosion study new` on a folder whose tables have columns of their own names."""

from pathlib import Path

import pytest

from erosion_common.program.command_line import main
from tests.support.said import says


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "berlin.csv").write_text("Alter,tot\n" + "50,1\n60,0\n" * 20)
    (tmp_path / "home.csv").write_text("age,dead\n" + "50,1\n60,0\n" * 20)
    return tmp_path


def test_the_table_with_the_outcome(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "new", str(folder), "--target", "dead"]) == 4
    told = capsys.readouterr().err
    assert says(told, "--target", "--user")
    assert main(["study", "new", str(folder), "--target", "dead", "--user", "home"]) == 0


def test_similar_columns_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [*(f"gene{i}" for i in range(300)), "outcome"]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join("1" * 301) + "\n")
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "outcomes"]) == 4
    told = capsys.readouterr().err
    assert says(told, "gene0", "gene1")
    assert says(told, "gene18", "281")


def test_units_and_yes_marks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(
        f"{40 + i % 37},{20 + i % 41} %,{100 + i % 30}/70,{'x' * (i % 3 > 0)},note {i},{i % 2}\n"
        for i in range(90)
    )
    (tmp_path / "a.csv").write_text("age,ef,pressure,diabetes,remark,dead\n" + rows)
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "dead"]) == 0
    told = capsys.readouterr().out
    assert says(told, "pressure", "numbers")
    assert says(told, "diabetes", "without")
    (remark,) = [line for line in told.splitlines() if "remark: left" in line]
    assert "numbers" not in remark
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "diabetes"]) == 2
    (tmp_path / "study.toml").unlink()
    assert main(["study", "new", str(tmp_path / "a.csv"), "--target", "diabetes"]) == 4
    assert says(capsys.readouterr().err, "predicted", "without")


def test_the_default_user_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "new", str(folder), "--target", "tot"]) == 0
    assert says(capsys.readouterr().out, "berlin", "another")
    (folder / "study.toml").unlink()
    assert main(["study", "new", str(folder), "--target", "dead", "--user", "home"]) == 0
    assert "user:" not in capsys.readouterr().out
