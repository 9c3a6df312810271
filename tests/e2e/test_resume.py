"""A coordinator killed over gRPC and resumed ends where an uninterrupted one does.

Of the moments at which it can be killed, these are the ones that the line and the sites have a part
in; tests/server/test_resume.py has the others.
"""

import json
import shutil
import signal
from pathlib import Path

import pytest

from erosion.simulation.simulator import simulate
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import CheckpointError, HopelessError
from erosion_common.formats.json_file import read_json
from erosion_common.rounds import checkpoint
from erosion_common.study.study import EVERY_USER, Study
from erosion_common.support.network import free_address
from erosion_server.coordination.run_study import Setup, run_study
from erosion_server.output.observers import Observers
from erosion_server.run.journal import read_journal
from erosion_server.run.overview import Overview
from erosion_server.run.run_folder import RunFolder
from tests.support import programs
from tests.support.close import assert_close
from tests.support.federation import small_study, write_site
from tests.support.killed_coordinator import coordinate, same_run
from tests.support.patience import PATIENCE
from tests.support.processes import start

# scaffold and fedlin keep state at the sites, which must not count a repeated round twice; fedlin
# has two exchanges in a round and parameters that never leave, network_gems has three exchanges.
TWO_ARMS = small_study(
    arms={"scaffold": {}, "fedlin": {"own_parameters": ["output_bias"]}}, rounds=3
)
NETWORK = small_study(
    arms={"network_gems": {"clusters": 4}}, rounds=1, model={"name": "mlp", "hidden": [6]}
)
SELECTION = small_study(arms={"scaffold": {}, "local": {}}, rounds=2, selection={"folds": 2})
BETWEEN = "between two exchanges"
RUNS: dict[str, tuple[Study, str | None]] = {  # name of the folder -> study, when it is killed
    "two-arms": (TWO_ARMS, None),
    "two-arms-upload": (TWO_ARMS, "during an upload"),
    "two-arms-files": (TWO_ARMS, "between journal and checkpoint"),
    "two-arms-exchanges": (TWO_ARMS, BETWEEN),
    "network": (NETWORK, None),
    "network-exchanges": (NETWORK, BETWEEN),
    "selection": (SELECTION, None),
    "selection-trials": (SELECTION, "in a later trial"),
}


def test_a_run_that_was_restored_and_cannot_be_continued_says_to_begin_again(
    tmp_path: Path,
) -> None:
    """The sites keep state of later rounds, and answer no round from another state."""
    address, study = free_address(), small_study(arms={"scaffold": {}}, rounds=6)
    sites = [
        start(programs.honest, str(write_site(tmp_path, name, address))) for name in study.hospitals
    ]
    folder, backup = tmp_path / "runs" / "mine", tmp_path / "backup"
    arguments = (study.canonical_json(), str(folder), address)
    try:
        killed = start(coordinate, *arguments, "between journal and checkpoint")
        killed.join(PATIENCE)
        shutil.copytree(folder, backup)
        whole = start(coordinate, *arguments, None)
        whole.join(PATIENCE)
        assert whole.exitcode == 0
        shutil.rmtree(folder)
        backup.rename(folder)
        with pytest.raises(HopelessError) as problem:
            run_study(study, RunFolder(folder), Observers({}), Setup(address))
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    assert "without --resume" in str(problem.value)


def test_killed_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    address = free_address()
    names = TWO_ARMS.hospitals
    sites = [start(programs.honest, str(write_site(tmp_path, name, address))) for name in names]
    folders = {name: RunFolder(tmp_path / "runs" / name) for name in RUNS}
    try:
        for name, (study, phase) in RUNS.items():
            arguments = (study.canonical_json(), str(folders[name].path), address)
            if phase is not None:
                killed = start(coordinate, *arguments, phase)
                killed.join(PATIENCE)
                assert killed.exitcode == -signal.SIGKILL, name
            finished = start(coordinate, *arguments, None)
            finished.join(PATIENCE)
            assert finished.exitcode == 0, name
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    lines = {name: list(read_journal(folders[name].journal)) for name in ("two-arms", "network")}
    assert [(line["arm"], line["round"]) for line in lines["two-arms"]] == [
        (arm, number) for arm in TWO_ARMS.arms for number in (1, 2, 3)
    ]
    steps = {name: [step["step"] for step in found[-1]["steps"]] for name, found in lines.items()}
    assert steps == {"two-arms": ["gradient", "train"], "network": ["neurons", "output", "check"]}
    wholes = {study.digest: folders[name] for name, (study, phase) in RUNS.items() if phase is None}
    for name, (study, _) in RUNS.items():
        assert same_run(study, folders[name], wholes[study.digest]), name


# -- `user = "all"`: every hospital gets a model of its own, over real gRPC ----------------------

# ditto and scaffold keep state at the sites: one user's must not become another's.
ARMS = {"weight_erosion": {"distance_penalty": 0.1}, "ditto": {}, "scaffold": {}, "local": {}}


def test_every_hospital_gets_what_a_simulation_gives_it_also_after_a_kill(tmp_path: Path) -> None:
    study = small_study(user=EVERY_USER, arms=ARMS, rounds=3)
    text, address = study.canonical_json(), free_address()
    files = {name: write_site(tmp_path, name, address) for name in study.hospitals}
    sites = [start(programs.honest, str(path)) for path in files.values()]
    whole, cut = (RunFolder(tmp_path / name) for name in ("whole", "cut"))
    try:
        finished = start(coordinate, text, str(whole.path), address, None)
        finished.join(PATIENCE)
        assert finished.exitcode == 0
        killed = start(coordinate, text, str(cut.path), address, "in bob's part")
        killed.join(PATIENCE)
        assert killed.exitcode == -signal.SIGKILL
        assert cut.of_user("alice").has_ended
        assert not cut.of_user("bob").has_ended
        resumed = start(coordinate, text, str(cut.path), address, None)
        resumed.join(PATIENCE)
        assert resumed.exitcode == 0
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    found = read_json(whole.result, Overview, version=1, error=CheckpointError, remedy="")
    hospitals = {name: Hospital(load_site(path)) for name, path in files.items()}
    simulated = {user: simulate(study.for_user(user), hospitals) for user in study.hospitals}
    assert list(found.users) == list(study.hospitals)
    for user, expected in simulated.items():
        part, digest = whole.of_user(user), study.for_user(user).digest
        for arm, final in expected.finals.items():
            path = part.checkpoint(arm)
            deployed = checkpoint.load(path, final, arm=arm, study_digest=digest)
            assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
            assert found.users[user].arms[arm] == expected.evaluation.arms[arm]
            assert cut.of_user(user).checkpoint(arm).read_bytes() == path.read_bytes(), (user, arm)
        assert json.loads(part.model_card.read_text())["user"] == user
        assert f'href="users/{user}/report.html"' in whole.report.read_text()
    status = json.loads(whole.status.read_text())
    assert (status["phase"], status["verdict"]) == ("finished", found.verdict)
