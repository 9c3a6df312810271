"""The compose testbed's set-up leaves every hospital ready, for sealed studies too."""

import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pytest

from erosion.simulation import container_setup
from erosion.simulation.container_setup import _name_data, main
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import TESTBED_BUDGET
from erosion_client.finding import Severity
from erosion_client.preflight.study_checks import check_sealed
from erosion_client.site_file import Budget, load_site
from erosion_common.errors import StudyError
from erosion_common.study.study import load_study


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty volumes for five hospitals."""
    monkeypatch.setattr(os, "lchown", lambda *_: None)  # it runs as root there
    found = {name: tmp_path / name for name in ("federation", "sites", "runs")}
    for path in (*found.values(), *(found["sites"] / str(n) for n in range(1, 6))):
        path.mkdir()
    return found


def set_up(study: str | Path, places: Mapping[str, Path]) -> int:
    options = [part for name, path in places.items() for part in (f"--{name}", str(path))]
    return main([str(study), "--coordinator", "coordinator", *options])


def contents(places: Mapping[str, Path]) -> dict[str, bytes]:
    """Every file in the volumes."""
    folders = places["federation"], places["sites"]
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def changed(folder: Path, old: str, new: str) -> Path:
    """The default study with another line."""
    text = study_path("breast-cancer").read_text(encoding="utf-8")
    assert old in text
    path = folder / "changed.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_every_hospital_of_a_sealed_study_has_the_others_keys(places: dict[str, Path]) -> None:
    assert set_up("sealed", places) == 0
    study = load_study(study_path("sealed"))
    for volume in places["sites"].iterdir():
        (found,) = check_sealed(load_site(volume / "site.toml"), study)
        assert found.outcome is Severity.OK, found


def test_no_hospital_of_a_testbed_runs_out_of_a_budget(places: dict[str, Path]) -> None:
    assert set_up("breast-cancer", places) == 0
    for volume in places["sites"].iterdir():
        assert load_site(volume / "site.toml").budget == Budget(**TESTBED_BUDGET)
    assert {"rounds", "runs_per_study", "sets"} < TESTBED_BUDGET.keys()


def test_a_set_up_that_is_repeated_deals_nothing_anew_and_takes_the_study_as_it_is_now(
    places: dict[str, Path], tmp_path: Path
) -> None:
    assert set_up("breast-cancer", places) == 0
    before = contents(places)
    longer = changed(tmp_path, "rounds = 30", "rounds = 40")
    assert set_up(longer, places) == 0
    study = str(places["federation"] / "study.toml")
    assert contents(places) == {**before, study: longer.read_bytes()}


@pytest.mark.parametrize("at", ["enrol_site", "write_peers", "write_atomically"])
def test_a_set_up_that_was_cut_off_is_done_again_as_a_whole(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    calls: list[object] = []
    real = getattr(container_setup, at)

    def cut_off(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == (1 if at == "write_atomically" else 3):
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(container_setup, at, cut_off)
        with pytest.raises(KeyboardInterrupt):
            set_up("breast-cancer", places)
    assert set_up("breast-cancer", places) == 0
    study = load_study(study_path("breast-cancer"))
    authority = (places["federation"] / "enrolment" / "ca.crt").read_bytes()
    for number, name in enumerate(study.user_first, start=1):
        site = load_site(places["sites"] / str(number) / "site.toml")
        assert site.name == name
        assert Path(getattr(site.data, "path")).exists()  # noqa: B009
        assert (places["sites"] / str(number) / "ca.crt").read_bytes() == authority


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            'name = "breast-cancer"',
            'name = "another"',
            "for the study breast-cancer; another differs in name.",
        ),
        ('user = "home"', 'user = "alike"', "differs in user, hospitals."),
        ("seed = 0", "seed = 1", "differs in seed."),
    ],
)
def test_a_study_with_other_data_on_used_volumes_is_refused_with_the_remedy(
    places: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    what: str,
) -> None:
    assert set_up("breast-cancer", places) == 0
    before = contents(places)
    assert set_up(changed(tmp_path, old, new), places) == StudyError.exit_code
    said = capsys.readouterr().err
    assert what in said
    assert "docker compose down --volumes" in said
    assert contents(places) == before


def test_volumes_of_an_unknown_study_on_which_a_site_has_run_are_left_alone(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (places["sites"] / "2" / "records").mkdir()
    (places["sites"] / "2" / "records" / "sent.jsonl").write_text("{}")
    before = contents(places)
    assert set_up("breast-cancer", places) == StudyError.exit_code
    assert "docker compose down --volumes" in capsys.readouterr().err
    assert contents(places) == before


def test_the_runs_of_others_stay_theirs(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Path] = []
    monkeypatch.setattr(os, "lchown", lambda path, *_: given.append(path))
    (places["runs"] / "20260101T120000-mine").mkdir()
    owner = places["runs"].stat().st_uid
    assert set_up("breast-cancer", places) == 0
    assert not [path for path in given if places["runs"] in (path, *path.parents)]
    assert places["runs"].stat().st_uid == owner


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another account")
def test_whoever_ran_a_testbed_before_the_containers_can_still_use_the_runs(
    places: dict[str, Path],
) -> None:
    runs = places["runs"]
    os.chown(runs, 1234, 1234)
    runs.chmod(0o700)
    assert set_up("breast-cancer", places) == 0
    found = runs.stat()
    assert (found.st_uid, found.st_gid) == (1234, 10001)
    assert found.st_mode & 0o777 == 0o770


def test_a_site_file_names_what_tells_patients_apart(tmp_path: Path) -> None:
    site_file = tmp_path / "site.toml"
    kit = files("erosion_server") / "kit" / "site_file.toml"
    site_file.write_text(kit.read_text(encoding="utf-8"), encoding="utf-8")
    _name_data(site_file, {"path": "images.npz", "patient": "lesions"})
    data = tomllib.loads(site_file.read_text(encoding="utf-8"))["data"]
    assert data == {"path": "images.npz", "patient": "lesions"}
