"""`user = "all"`: every hospital gets a model of its own, over real gRPC."""

import json
import signal
from pathlib import Path

import torch

from erosion.simulation.every_user import for_every_user
from erosion.simulation.free_ports import free_address
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json
from erosion_common.rounds import checkpoint
from erosion_common.study.study import EVERY_USER
from erosion_server.run.overview import Overview
from erosion_server.run.run_folder import RunFolder
from tests.support import programs
from tests.support.federation import small_study, write_site
from tests.support.killed_coordinator import coordinate
from tests.support.patience import PATIENCE
from tests.support.processes import start

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
    simulated = for_every_user(study, hospitals)
    assert list(found.users) == list(study.hospitals)
    for user, expected in simulated.items():
        part, digest = whole.of_user(user), study.for_user(user).digest
        for arm, final in expected.finals.items():
            path = part.checkpoint(arm)
            deployed = checkpoint.load(path, final, arm=arm, study_digest=digest)
            torch.testing.assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
            assert found.users[user].arms[arm] == expected.evaluation.arms[arm]
            assert cut.of_user(user).checkpoint(arm).read_bytes() == path.read_bytes(), (user, arm)
        assert json.loads(part.model_card.read_text())["user"] == user
        assert f'href="users/{user}/report.html"' in whole.report.read_text()
    status = json.loads(whole.status.read_text())
    assert (status["phase"], status["verdict"]) == ("finished", found.verdict)
