"""The compose testbed's set-up leaves every hospital ready, for sealed studies too."""

import os
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from erosion.client.finding import Outcome
from erosion.client.preflight.sealed import check_sealed
from erosion.client.site_file import load_site
from erosion.common.study.study import load_study
from erosion.experiments.container_setup import _name_data, main
from erosion.experiments.sources import HospitalFiles
from erosion.experiments.testbed import study_path


def test_every_hospital_of_a_sealed_study_has_the_others_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "chown", lambda *_: None)  # it runs as root there
    places = {name: tmp_path / name for name in ("federation", "sites", "runs")}
    for path in (*places.values(), *(places["sites"] / str(n) for n in range(1, 6))):
        path.mkdir()
    options = [part for name, path in places.items() for part in (f"--{name}", str(path))]
    assert main(["sealed", "--coordinator", "coordinator", *options]) == 0
    study = load_study(study_path("sealed"))
    for volume in places["sites"].iterdir():
        (found,) = check_sealed(load_site(volume / "site.toml"), study)
        assert found.outcome is Outcome.OK, found


def test_a_site_file_names_what_tells_patients_apart(tmp_path: Path) -> None:
    site_file = tmp_path / "site.toml"
    kit = files("erosion.server") / "kit" / "site_file.toml"
    site_file.write_text(kit.read_text(encoding="utf-8"), encoding="utf-8")
    made = HospitalFiles(tmp_path / "images.npz", {"images": "pictures"}, patient="lesions")
    _name_data(site_file, made.data.name, made.keys)
    data = tomllib.loads(site_file.read_text(encoding="utf-8"))["data"]
    assert data == {"path": "images.npz", "patient": "lesions", "columns": {"images": "pictures"}}
