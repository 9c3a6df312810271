"""The bundle for machines without internet: what it installs, and what it refuses."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "docker" / "bundle"


def bundle(folder: Path) -> Path:
    """A bundle whose only package is one that requires nothing."""
    folder.mkdir()
    shutil.copy(SCRIPTS / "install", folder)
    (folder / "requirements.lock").write_text("")
    files = sorted(path for path in folder.iterdir())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    return folder


def install(
    folder: Path, target: Path, python: str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(folder / "install"), python, str(target)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_bundle_with_a_changed_file_is_not_installed(tmp_path: Path) -> None:
    made = bundle(tmp_path / "bundle")
    (made / "requirements.lock").write_text("# another\n")
    refused = install(made, tmp_path / "erosion")
    assert refused.returncode != 0
    assert "requirements.lock: FAILED" in refused.stdout
    assert not (tmp_path / "erosion").exists()


def test_a_file_that_the_list_does_not_name_is_neither_run_nor_installed(tmp_path: Path) -> None:
    made = bundle(tmp_path / "bundle")
    ran = tmp_path / "ran"
    (made / "venv.py").write_text(f"open({str(ran)!r}, 'w')\n")  # that `python -m venv` would find
    refused = install(made, tmp_path / "erosion")
    assert refused.returncode == 1
    assert "does not list" in refused.stderr
    assert not ran.exists()
    assert not (tmp_path / "erosion").exists()


def test_the_list_of_hashes_is_shown_to_be_compared(tmp_path: Path) -> None:
    made = bundle(tmp_path / "bundle")
    digest = hashlib.sha256((made / "SHA256SUMS").read_bytes()).hexdigest()
    shown = install(made, tmp_path / "erosion", "false").stdout  # without going on to install
    assert shown.startswith(digest)


def test_a_bundle_is_made_and_installed_by_the_hashes_and_without_an_index() -> None:
    made, installed = ((SCRIPTS / name).read_text() for name in ("make", "install"))
    assert "--require-hashes" in made
    assert "--require-hashes -r requirements.lock" in installed
    assert "--no-index" in installed
