"""The commit that results name."""

import subprocess
from pathlib import Path

import pytest

from erosion_server.run import provenance


def test_cells_that_were_written_are_no_change_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(provenance.COMMIT_VARIABLE, raising=False)
    program = tmp_path / "server" / "erosion_server" / "run" / "provenance.py"
    cell = tmp_path / "experiments" / "results" / "titanic" / "cells" / "0.json"
    for path in (program, cell):
        path.parent.mkdir(parents=True)
        path.write_text("1\n")

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    monkeypatch.setattr(provenance, "__file__", str(program))
    clean = provenance.commit()
    assert len(clean) == 40
    cell.write_text("2\n")
    cell.with_name("1.json").write_text("1\n")
    assert provenance.commit() == clean
    program.write_text("2\n")
    assert provenance.commit() == f"{clean}+changes"
    git("checkout", "--quiet", ".")
    program.with_name("new.py").write_text("1\n")
    assert provenance.commit() == f"{clean}+changes"
