"""Studies on one's own files: from Python and from the command line, they are the same."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import erosion
from erosion.simulation.testbed_sites import own_data, sites_of_testbed
from erosion_common.learning.models import Mlp, build_model
from erosion_common.program.command_line import main
from erosion_common.study.sections import Federation
from erosion_common.study.study import load_study
from tests.support.small_study import TWO_NUMBERS, make_study, sixty_patients

PRIVATE = {"privacy": {"epsilon": 8.0, "learning_rate": 1.0}, "scaling": "user"}


def write_study(folder: Path, **changes: Any) -> Path:
    found = make_study(
        **{"task": TWO_NUMBERS, "evaluation": {"bootstrap": 100}, "rounds": 2, **changes}
    )
    path = folder / "study.toml"
    path.write_text(tomli_w.dumps(found.model_dump(mode="json", exclude_none=True)))
    return path


def site_text(name: str, table: str, more: str = "") -> str:
    return (
        f'name = "{name}"\n[data]\npath = "{table}"\n[coordinator]\naddress = "127.0.0.1:1"\n{more}'
    )


def tables(folder: Path) -> None:
    for name in "ab":
        (folder / f"{name}.csv").write_text(sixty_patients(name))


def folders(folder: Path) -> None:
    for name in "ab":
        (folder / name).mkdir()
        (folder / name / "patients.csv").write_text(sixty_patients(name))
        (folder / name / "site.toml").write_text(site_text(name, "patients.csv"))


def drafts(folder: Path) -> None:
    (folder / "sites").mkdir()
    for name in "ab":
        (folder / f"table of {name}.csv").write_text(sixty_patients(name))
        (folder / "sites" / f"{name}.toml").write_text(site_text(name, f"../table of {name}.csv"))


def one_of_each(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "patients.csv").write_text(sixty_patients("a"))
    (folder / "a" / "site.toml").write_text(site_text("a", "patients.csv"))
    (folder / "b.csv").write_text(sixty_patients("b"))


@pytest.mark.parametrize(
    ("lay_out", "changes"),
    [(tables, {}), (folders, PRIVATE), (drafts, {}), (one_of_each, PRIVATE)],
    ids=["tables", "folders, private", "drafts", "one of each, private"],
)
def test_a_folder_of_own_files_is_simulated_however_it_is_laid_out(
    tmp_path: Path, lay_out: Any, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_study(tmp_path, **changes)
    lay_out(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    beside = erosion.simulate(tmp_path, progress=False)
    given = erosion.simulate(load_study(path), tmp_path, progress=False)
    assert beside.verdict == given.verdict
    assert not beside.result.absent
    assert main(["testbed", str(tmp_path), "--simulate"]) == 0
    assert beside.verdict in " ".join(capsys.readouterr().out.split())
    assert sorted(tmp_path.rglob("*")) == before  # nothing is kept or counted for a hospital


def test_a_testbed_from_python_takes_the_files_beside_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def run(_study: Any, _folder: Any, hospitals: Any, **options: Any) -> int:
        seen.update(options, own=hospitals)
        return 1

    monkeypatch.setattr("erosion.simulation.testbed.deploy", run)
    write_study(tmp_path)
    folders(tmp_path)
    with pytest.raises(erosion.ErosionError, match="ended with exit code 1"):
        erosion.testbed(tmp_path, runs=tmp_path / "runs", weights=tmp_path / "there")
    assert seen["own"]["b"]["path"] == str(tmp_path / "b" / "patients.csv")
    assert seen["weights"] == tmp_path / "there"
    with pytest.raises(erosion.ErosionError, match="give the path of a study file"):
        erosion.testbed(make_study(), runs=tmp_path / "other")
    with pytest.raises(erosion.ErosionError, match="give the path of a study file"):
        erosion.simulate(make_study(), progress=False)
    assert not (tmp_path / "other").exists()


def test_a_hospital_without_data_or_with_two_site_files_is_named(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path))
    with pytest.raises(erosion.ErosionError, match=r"no data of a, b .* a/site\.toml"):
        own_data(study, tmp_path)
    folders(tmp_path)
    (tmp_path / "b" / "site.toml").write_text(site_text("a", "patients.csv"))
    with pytest.raises(erosion.ErosionError, match="are both of the hospital 'a'"):
        own_data(study, tmp_path)


def test_what_else_lies_in_the_folder_keeps_no_study_from_its_data(tmp_path: Path) -> None:
    """Kits beside the drafts, another study's hospital, a draft of it that is broken, an app."""
    study = load_study(write_study(tmp_path))
    folders(tmp_path)
    drafts(tmp_path)
    for name, text in {
        "c": site_text("c", "patients.csv", "[limits]\nmin_patients = -1\n"),
        "old": "name = ",
        "app": 'name = "app"\n[app]\nfolder = "x"\n',
    }.items():
        (tmp_path / "sites" / f"{name}.toml").write_text(text)
    found = own_data(study, tmp_path)
    assert Path(found["a"]["path"]).name == "table of a.csv"  # as it was drafted
    (tmp_path / "sites" / "a.toml").write_text("name = ")
    with pytest.raises(erosion.ErosionError, match=r"a\.toml is not valid TOML"):
        own_data(study, tmp_path)


def test_a_folder_may_lack_hospitals_that_a_study_begins_without(tmp_path: Path) -> None:
    folders(tmp_path)
    more = {"hospitals": ["a", "b", "c"], "federation": {"quorum": 2, "start": "quorum"}}
    run = erosion.simulate(make_study(task=TWO_NUMBERS, **more), tmp_path, progress=False)
    assert [absent.hospital for absent in run.result.absent] == ["c"]
    with pytest.raises(erosion.ErosionError, match="There are no data of c for a testbed"):
        erosion.simulate(
            make_study(task=TWO_NUMBERS, hospitals=["a", "b", "c"]), tmp_path, progress=False
        )


def test_the_limits_of_site_files_that_are_given_hold_in_a_simulation(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, federation={"quorum": 1}))
    folders(tmp_path)
    site = tmp_path / "b" / "site.toml"
    site.write_text(site.read_text() + "[limits]\nmin_patients = 100\n")
    run = erosion.simulate(study, tmp_path, progress=False)
    assert [absent.hospital for absent in run.result.absent] == ["b"]
    assert any(note.startswith("b took no part (") for note in run.notes)


def test_what_keeps_a_simulation_from_beginning_is_said_in_its_own_words(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path))
    tables(tmp_path)
    own = {name: tmp_path / f"{name}.csv" for name in "ab"}
    nowhere = tmp_path / "nix.csv"
    with pytest.raises(erosion.ErosionError) as refused:
        erosion.simulate(study, {**own, "a": nowhere}, progress=False)
    assert str(refused.value) == (
        f"The user's own site 'a' cannot take part: There is no data file {nowhere}. Check the path"
        " (data.path in a site file)."
    )
    with pytest.raises(erosion.ErosionError, match="there are no sites of b: give them"):
        erosion.simulate(study, {"a": own["a"]}, progress=False)
    quorum = study.model_copy(update={"federation": Federation(quorum=1, start="quorum")})
    alone = erosion.simulate(quorum, {"a": own["a"]}, progress=False)
    assert not alone.weights.query("hospital == 'b'")["weight"].any()
    with pytest.raises(erosion.ErosionError, match=r"a\.csv' is no folder"):
        erosion.simulate(study, own["a"], progress=False)


def test_a_study_that_was_changed_by_hand_is_checked_again(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path))
    with pytest.raises(erosion.ErosionError, match="rounds = 0; it must be 1 or more"):
        erosion.simulate(study.model_copy(update={"rounds": 0}), tmp_path, progress=False)


def test_a_model_starts_from_the_weights_in_the_folder_that_is_named(tmp_path: Path) -> None:
    weights = tmp_path / "elsewhere"
    weights.mkdir()
    task = make_study(task=TWO_NUMBERS).task
    start = build_model(Mlp(hidden=(4,)), task.input_shape, task.num_outputs, seed=99)
    torch.save(start.state_dict(), weights / "net.pt")
    digest = hashlib.sha256((weights / "net.pt").read_bytes()).hexdigest()
    pretrained = {"file": "net.pt", "sha256": digest}
    model = {"name": "mlp", "hidden": [4], "pretrained": pretrained}
    path = write_study(tmp_path, model=model)
    folders(tmp_path)
    own = [tmp_path / name / "site.toml" for name in "ab"]
    found = [
        erosion.simulate(path, sites, weights=weights, progress=False).verdict
        for sites in (None, own, {n: tmp_path / n / "patients.csv" for n in "ab"})
    ]
    assert len(set(found)) == 1
    command = ["testbed", str(path), "--simulate"]
    assert main([*command, "--weights", str(weights)]) == 0
    assert main(command) == 2
    with pytest.raises(erosion.ErosionError, match="There are no weights"):
        erosion.simulate(path, progress=False)
    with pytest.raises(erosion.ErosionError, match="There are no weights"):
        erosion.testbed(path, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_sites_of_own_files_allow_what_a_testbed_of_them_does(tmp_path: Path) -> None:
    training = {"steps": 5, "batch_size": 4, "order": "sequential"}
    study = load_study(write_study(tmp_path, training=training))
    tables(tmp_path)
    assert all(
        site.compute.public_order
        for site in sites_of_testbed(study, tmp_path, tmp_path, None, None).values()
    )
    assert not erosion.simulate(tmp_path, progress=False).result.absent
