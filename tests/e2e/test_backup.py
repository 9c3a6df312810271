"""The handbook's backup brings a federation back that was deleted in the middle of a study."""

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from erosion.simulation.simulator import simulate
from erosion_client.consent.approvals import account_of
from erosion_client.finding import Severity
from erosion_client.preflight.check import check_state
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import CheckpointError, EnrolmentError, SiteError
from erosion_common.program.command_line import main
from erosion_common.rounds import checkpoint
from erosion_common.study.study import Study
from erosion_common.support.network import free_address
from erosion_server.run.journal import read_journal
from erosion_server.run.run_folder import RunFolder, write_study
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study, write_site
from tests.support.forked import Forked
from tests.support.patience import PATIENCE, wait_until

HANDBOOK = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
TARS = re.findall(r"^tar .*$", HANDBOOK.partition("## Backup")[2].partition("\n## ")[0], re.M)
NAMES = ("alice", "bob", "carol")
# scaffold keeps a control variate at every site
STUDY = small_study(rounds=30, arms={"weight_erosion": {"distance_penalty": 0.1}, "scaffold": {}})


def tar(which: str, way: str, home: Path, archive: Path) -> None:
    """Run the handbook's line that makes (c) or unpacks (x) this archive, in another home."""
    (line,) = (each for each in TARS if f"{which}.tar.gz" in each and f" -{way}" in each)
    words = line.partition("#")[0].split()
    place = {"/var/lib/erosion": str(home), f"{which}.tar.gz": str(archive)}
    command = [place.get(word, word) for word in words]
    subprocess.run(command, check=True, timeout=PATIENCE)


def lay_out(folder: Path, address: str, study: Study = STUDY) -> dict[str, Path]:
    """The folders of the systemd units: one home for the coordinator and one for each site."""
    home = folder / "coordinator"
    home.mkdir()
    federation = make_federation(home / "federation", *NAMES)
    write_study(home / "study.toml", study)
    sites = {}
    for name in NAMES:
        (folder / name).mkdir()
        unpack_kit(federation, name, folder / name).rename(folder / name / "site")
        (folder / name / "site").rename(folder / name / name)
        path = write_site(folder / name, name, address)
        keys = {"root_certificate": "ca.crt", "certificate": "node.crt", "private_key": "node.key"}
        values = "".join(f'{key} = "{file}"\n' for key, file in keys.items())
        path.write_text(path.read_text().replace("[coordinator]\n", f"[coordinator]\n{values}"))
        (folder / name / name).rename(folder / name / "site")
        sites[name] = folder / name / "site" / "site.toml"
    return sites


def run(folder: Path, sites: dict[str, Path], address: str, *, until: int | None) -> None:
    """Coordinator and sites, until they end or there are so many lines in the journal."""
    home = folder / "coordinator"
    study = ["--resume"] if (home / "run").exists() else ["--run-folder"]
    options = ["--address", address, "--federation", str(home / "federation")]
    with ExitStack() as stack:
        arguments = ["server", str(home / "study.toml"), *study, str(home / "run"), *options]
        server = Forked("server", arguments, folder / "server.log")
        stack.callback(server.close)
        for name, site in sites.items():
            program = Forked(name, ["client", str(site)], folder / f"{name}.log")
            stack.callback(program.close)
        stack.callback(server.close)  # before any site, or it would go on without that one
        if until is None:
            assert server.wait() == 0, server.text()
            return
        journal = RunFolder(home / "run").journal
        wait_until(lambda: journal.exists() and len(list(read_journal(journal))) >= until)


def test_a_deleted_federation_is_restored_and_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, address = tmp_path / "live", free_address()
    live.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(live / "alice" / ".local" / "state"))
    sites = lay_out(live, address)
    run(live, sites, address, until=33)  # in the second arm
    assert not RunFolder(live / "coordinator" / "run").has_ended
    homes = {name: "site" if name in NAMES else name for name in ("coordinator", *NAMES)}
    for name, which in homes.items():
        (live / name / ".local" / "state" / "erosion").mkdir(parents=True, exist_ok=True)
        tar(which, "c", live / name, tmp_path / f"{name}.tar.gz")
    shutil.rmtree(live)
    for name, which in homes.items():
        (live / name).mkdir(parents=True)
        tar(which, "x", live / name, tmp_path / f"{name}.tar.gz")
    run(live, sites, address, until=None)
    hospitals = {name: Hospital(load_site(path)) for name, path in sites.items()}
    for arm, final in simulate(STUDY, hospitals).finals.items():
        path = RunFolder(live / "coordinator" / "run").checkpoint(arm)
        deployed = checkpoint.load(path, final, arm=arm, study_digest=STUDY.digest)
        assert torch.equal(deployed.params, final.params), arm
    for path in sites.values():
        assert main(["log", "verify", str(load_site(path).records_folder / "sent.jsonl")]) == 0
    # Half of a backup is refused.
    (load_site(sites["bob"]).consent_folder / "secret.key").unlink()
    outcomes = [check_state(load_site(sites[name])).outcome for name in ("carol", "bob")]
    assert outcomes == [Severity.OK, Severity.FAILED]
    client = ["client", str(sites["bob"]), "--give-up-seconds", "5"]
    assert main(client) == SiteError.exit_code
    home = live / "coordinator"
    (home / "federation" / "roster.toml").unlink()
    again = ["server", str(home / "study.toml"), "--federation", str(home / "federation")]
    assert main([*again, "--runs", str(tmp_path / "runs")]) == EnrolmentError.exit_code


def test_a_coordinator_of_last_week_and_a_lost_log_cost_no_budget_and_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(rounds=12, arms={"fedavg": {}})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    address, live = free_address(), tmp_path / "live"
    live.mkdir()
    sites = lay_out(live, address, study)
    home, older = live / "coordinator", tmp_path / "older"
    run(live, sites, address, until=3)
    shutil.copytree(home, older)
    run(live, sites, address, until=8)
    resume = ["server", "--resume", str(home / "run"), "--federation", str(home / "federation")]
    for lost, code in {
        "run/rounds.jsonl": CheckpointError.exit_code,
        "federation/coordinator.pem": EnrolmentError.exit_code,
        "federation/ca.crt": EnrolmentError.exit_code,
        "federation/federation.toml": EnrolmentError.exit_code,
    }.items():
        (home / lost).rename(tmp_path / "aside")
        assert main([*resume, "--address", address]) == code, lost
        (tmp_path / "aside").rename(home / lost)
    shutil.rmtree(home)
    shutil.copytree(older, home)
    bob = load_site(sites["bob"])
    shutil.rmtree(bob.records_folder)
    run(live, sites, address, until=None)
    assert "sent.jsonl ends with line 0" in (live / "bob.log").read_text()
    records = Records.of(bob)
    used = {budget: used for budget, _, used, _ in account_of(bob, records)}
    records.close()
    assert used["rounds"] == 12  # asked about some of them twice
    hospitals = {name: Hospital(load_site(path)) for name, path in sites.items()}
    final = simulate(study, hospitals).finals["fedavg"]
    path = RunFolder(home / "run").checkpoint("fedavg")
    deployed = checkpoint.load(path, final, arm="fedavg", study_digest=study.digest)
    assert torch.equal(deployed.params, final.params)
