"""`user = "all"`: every hospital gets a model of its own, over real gRPC."""

import json
import signal
from pathlib import Path

import pytest
import torch

from erosion.command_line import main
from erosion.common.errors import RunError
from erosion.common.rounds import checkpoint
from erosion.common.study.study import EVERY_USER
from erosion.experiments.every_user import for_every_user
from erosion.experiments.free_ports import free_address
from erosion.server.run.run_folder import RunFolder
from tests.support import programs
from tests.support.federation import Federation, small_study, write_site
from tests.support.killed_coordinator import coordinate, start
from tests.support.patience import PATIENCE

# ditto keeps state at the sites: one user's must not become another's.
ARMS = {"weight_erosion": {"distance_penalty": 0.1}, "ditto": {}, "local": {}}


def test_every_hospital_gets_what_a_simulation_with_it_as_the_user_gives(tmp_path: Path) -> None:
    study = small_study(user=EVERY_USER, arms=ARMS, rounds=3)
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        found = federation.finish_every_user()
        folder = federation.run_folder
        hospitals = {name: federation.hospital(name) for name in study.hospitals}
        simulated = for_every_user(study, hospitals)
    assert list(found.users) == list(study.hospitals)
    assert found.without_model == {}
    for user, expected in simulated.items():
        part = folder.of_user(user)
        for arm, final in expected.finals.items():
            digest = study.for_user(user).digest
            deployed = checkpoint.load(part.checkpoint(arm), final, arm=arm, study_digest=digest)
            torch.testing.assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
            assert found.users[user].arms[arm] == expected.evaluation.arms[arm]
        assert json.loads(part.model_card.read_text())["user"] == user
        assert f'href="users/{user}/report.html"' in folder.report.read_text()
    assert json.loads(folder.result.read_text())["verdict"] == found.verdict
    status = json.loads(folder.status.read_text())
    assert (status["phase"], status["verdict"]) == ("finished", found.verdict)


def test_a_hospital_that_only_helps_is_told_of_and_the_others_get_their_models(
    tmp_path: Path,
) -> None:
    study = small_study(user=EVERY_USER, arms=["fedavg"], rounds=2)
    with Federation(study, tmp_path) as federation:
        path = federation.site_file("carol")
        path.write_text(path.read_text() + "[limits]\nas_user = false\n")
        federation.start_program("carol", programs.honest, path)
        for name in ("alice", "bob"):
            federation.start_site(name)
        federation.start()
        found = federation.finish_every_user()
        records = federation.observer.records
    assert list(found.users) == ["alice", "bob"]
    assert "limits.as_user = false" in found.without_model["carol"]
    assert all(r.hospitals["carol"].outcome == "accepted" for r in records)  # of the others' rounds
    assert federation.run_folder.result.exists()


def test_a_hospital_that_is_away_gets_its_model_when_the_run_is_resumed(tmp_path: Path) -> None:
    study = small_study(
        user=EVERY_USER,
        arms=["fedavg"],
        rounds=2,
        federation={
            "join_deadline_seconds": 20.0,
            "round_deadline_seconds": 120.0,
            "start": "quorum",
        },
    )
    with Federation(study, tmp_path) as federation:
        for name in ("alice", "bob"):
            federation.start_site(name)
        federation.start()
        with pytest.raises(RunError, match=r"carol: no model yet.*--resume"):
            federation.finish_every_user()
        folder = federation.run_folder
        assert "alice" in folder.report.read_text()
        assert not folder.result.exists()
        first = {user: folder.of_user(user).result.read_bytes() for user in ("alice", "bob")}

        federation.start_site("carol")
        federation.resume()
        found = federation.finish_every_user()
    assert list(found.users) == ["alice", "bob", "carol"]
    for user, result in first.items():
        assert folder.of_user(user).result.read_bytes() == result  # not run again


def test_a_run_killed_in_the_second_hospitals_part_goes_on_from_there(tmp_path: Path) -> None:
    study = small_study(user=EVERY_USER, arms=["scaffold", "fedavg"], rounds=3)
    text, address = study.canonical_json(), free_address()
    sites = [start(programs.honest, str(write_site(tmp_path, n, address))) for n in study.hospitals]
    runs = {name: RunFolder(tmp_path / name) for name in ("whole", "cut")}
    try:
        whole = start(coordinate, text, str(runs["whole"].path), address, None)
        whole.join(PATIENCE)
        assert whole.exitcode == 0
        killed = start(coordinate, text, str(runs["cut"].path), address, "in bob's part")
        killed.join(PATIENCE)
        assert killed.exitcode == -signal.SIGKILL
        assert runs["cut"].of_user("alice").has_ended
        assert not runs["cut"].of_user("bob").has_ended
        resumed = start(coordinate, text, str(runs["cut"].path), address, None)
        resumed.join(PATIENCE)
        assert resumed.exitcode == 0
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    for user in study.hospitals:
        for arm in study.arms:
            files = [run.of_user(user).checkpoint(arm).read_bytes() for run in runs.values()]
            assert files[0] == files[1], (user, arm)


def test_a_part_of_a_run_is_not_resumed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small_study(user=EVERY_USER)
    with Federation(study, tmp_path) as federation:
        whole = federation.run_folder
    part = whole.of_user("alice")
    part.path.mkdir(parents=True)
    part.study.write_text(whole.study.read_text().replace('"all"', '"alice"'))
    assert main(["server", "--resume", str(part.path), "--insecure"]) == 7
    assert f"part of the run in {whole.path}" in capsys.readouterr().err


def test_the_whole_runs_folder_says_where_the_models_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "users").mkdir()
    assert main(["predict", str(tmp_path), "new.csv"]) == 8
    assert "users/HOSPITAL" in capsys.readouterr().err
