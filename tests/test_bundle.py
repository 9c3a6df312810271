"""The bundle for machines without internet: what it installs, and what it refuses."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

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


# Pip as far as an index is concerned: it takes what is named so from `shelf`, and notes how
# it was called. What needs no index is left to pip itself.
PIP = """#!{python}
import os, shutil, sys
from pathlib import Path
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    print(*words, file=calls)
if words[0] == "install":
    os.execv({python!r}, [{python!r}, "-m", "pip", *words])
name = {{"download": words[-1].split("==")[0], "wheel": "erosion_common"}}[words[0]]
if not name.endswith(".lock"):
    to = words[words.index("--dest" if words[0] == "download" else "--wheel-dir") + 1]
    (wheel,) = Path({shelf!r}).glob(name + "-*.whl")
    shutil.copy(wheel, to)
"""


def wheel(shelf: Path, name: str, version: str, needs: Sequence[str] = ()) -> None:
    """A package without a module."""
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    about += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(shelf / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        inside = f"{name}-{version}.dist-info"
        archive.writestr(f"{inside}/METADATA", about)
        archive.writestr(
            f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{inside}/RECORD", "")


def make(
    folder: Path, torch: str, needs: Sequence[str] = (), **environment: str
) -> "tuple[subprocess.CompletedProcess[str], list[str]]":
    """What making `folder`/bundle came to, and how it called pip."""
    shelf, calls, pip = folder / "shelf", folder / "calls", folder / "pip"
    shelf.mkdir()
    wheel(shelf, "erosion_common", "1.0", ["torch==2.13.0"])
    wheel(shelf, "torch", torch, needs)
    pip.write_text(PIP.format(python=sys.executable, calls=str(calls), shelf=str(shelf)))
    pip.chmod(0o755)
    known = {key: value for key, value in os.environ.items() if key != "TORCH_INDEX"}
    made = subprocess.run(
        [str(SCRIPTS / "make"), str(pip), str(folder / "bundle")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**known, **environment},
    )
    return made, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({}, "--index-url https://download.pytorch.org/whl/cpu torch=="),
        (
            {"TORCH_INDEX": "https://mirror.example/cpu"},
            "--index-url https://mirror.example/cpu to",
        ),
        ({"TORCH_INDEX": ""}, "bundle torch=="),
    ],
)
def test_torch_comes_from_the_index_of_its_cpu_build(
    tmp_path: Path, environment: dict[str, str], index: str
) -> None:
    made, calls = make(tmp_path, "2.13.0+cpu", **environment)
    assert made.returncode == 0, made.stderr
    (torch,) = [call for call in calls if "torch==" in call]
    assert index in torch
    assert "torch-2.13.0+cpu-py3-none-any.whl" in (tmp_path / "bundle/SHA256SUMS").read_text()


def test_a_bundle_that_lacks_what_its_torch_needs_is_not_made(tmp_path: Path) -> None:
    made, _ = make(tmp_path, "2.13.0", ["nvidia-cublas-cu12"])
    assert made.returncode == 1
    assert "nvidia-cublas-cu12" in made.stderr
    assert "it is no CPU" in made.stderr
    assert not (tmp_path / "bundle").exists()


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
