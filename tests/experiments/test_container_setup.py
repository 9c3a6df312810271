"""The compose testbed's set-up leaves every hospital ready, for sealed studies too."""

import os
from pathlib import Path

import pytest

from erosion.client.finding import Outcome
from erosion.client.preflight.sealed import check_sealed
from erosion.client.site_file import load_site
from erosion.common.study.study import load_study
from erosion.experiments.container_setup import main
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
