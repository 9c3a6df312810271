"""Studies over real gRPC whose patients lie in a database, in DICOM series and in NIfTI volumes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from erosion_common.study.study import Study
from erosion_server.run.result import Result
from tests.support import omop
from tests.support.federation import Federation, small_study
from tests.support.installed_package import install
from tests.support.omop import SECRET
from tests.support.scans import write_nifti

PAGE = Path(__file__).parents[2] / "docs" / "own-models.md"
HOSPITALS = ["alice", "bob"]
NUM_SCANS = 44  # of each hospital: 11 test patients of each class, more than the smallest cell
IMAGES = {"kind": "image", "target": "labels", "classes": ["well", "ill"]}
COMMON: dict[str, Any] = {
    "hospitals": HOSPITALS,
    "rounds": 2,
    "scaling": "none",
    "arms": {"weight_erosion": {"distance_penalty": 0.1}, "local": {}},
    "training": {"steps": 3, "batch_size": 8, "learning_rate": 0.1},
}

Data = Callable[[Path, str], dict[str, Any]]  # folder and name of a hospital -> its [data]


def run(study: Study, folder: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The study over gRPC, held to a simulation."""
    with Federation(study, folder) as federation:

        def site_file(name: str, index: int | None = None) -> Path:
            del index
            home = folder / name
            home.mkdir(exist_ok=True)
            model = study.model.model_dump()
            site = {
                "name": name,
                "data": data(home, name),
                "coordinator": {"address": federation.link.address},
                "approval": {"automatic": "within_limits"},
                "compute": {"public_order": True},
                "budget": {"runs_per_study": 1000},
                "limits": {
                    "installed_models": {model["entry_point"]: model["sha256"]}
                    if model["name"] == "installed"
                    else {}
                },
            }
            (home / "site.toml").write_text(tomli_w.dumps(site))
            return home / "site.toml"

        monkeypatch.setattr(federation, "site_file", site_file)
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        federation.compare_with_simulation()
        for name in study.hospitals:
            assert federation.observer.events.count(("joined", name)) == 1
    assert result.comparison is not None
    assert result.verdict.text
    assert (federation.run_folder.path / "report.html").exists()
    return result


def holds(folder: Path, word: str) -> list[Path]:
    """The files below a folder that hold a word."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if word.encode() in path.read_bytes()]


def test_an_omop_database_ends_with_a_verdict_and_keeps_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with omop.database(tmp_path, 100) as port:

        def data(home: Path, name: str) -> dict[str, Any]:
            half = f"WHERE person_id % 2 = {HOSPITALS.index(name)}"
            query = f"SELECT * FROM ({omop.QUERY}) AS everyone {half}"
            return {**omop.source(home, port), "password_file": "password", "query": query}

        study = small_study(**{**COMMON, "task": omop.TASK, "scaling": "federated"})
        result = run(study, tmp_path, data, monkeypatch)
    assert set(result.class_counts) == {"none", "infarction"}
    assert {path.name for path in holds(tmp_path, SECRET)} == {"password"}


def test_nifti_volumes_with_the_documented_model_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is the one that the documentation works through."""
    source = next(re.finditer(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)).group(1)
    sha256 = install(
        tmp_path / "packages", monkeypatch, source, package="ward_nets", name="ward-net"
    )

    def data(home: Path, name: str) -> dict[str, Any]:
        if not (home / "scans").exists():
            draws = np.random.default_rng(len(name))
            for number in range(NUM_SCANS):
                label = "ill" if number % 2 else "well"
                values = draws.normal(size=(8, 6, 4))
                values[2:5, 2:4, 1:3] += 3 * (label == "ill")
                write_nifti(home / f"scans/{label}/{number}.nii.gz", values.astype(np.float32))
        return {"source": "nifti", "path": "scans", "window": [0, 8]}

    model = {
        "name": "installed",
        "entry_point": "ward-net",
        "sha256": sha256,
        "options": {"width": 4},
        "frozen": ["0.bias"],
    }
    task = {**IMAGES, "shape": [1, 4, 6, 8], "mean": [0.5], "deviation": [0.25]}
    result = run(
        small_study(**{**COMMON, "task": task, "model": model}), tmp_path, data, monkeypatch
    )
    assert result.class_counts == {"well": 11, "ill": 11}
