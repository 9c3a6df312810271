"""The commit that results name."""

import subprocess
from pathlib import Path

import pytest

from erosion.server.run import provenance

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_names_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(provenance.COMMIT_VARIABLE, raising=False)
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.returncode:
        pytest.skip("this copy of the project is not a git checkout")
    assert provenance.commit().removesuffix("+changes") == head.stdout.strip()
