"""A hospital's own will against a real coordinator: approvals, and questions nobody approved."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from erosion_client.consent.approvals import decide, entry_of
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_common.program.command_line import main
from erosion_common.protocol import wire
from erosion_common.protocol.messages import DescribeReply, TrainRequest
from erosion_common.study.study import Study, load_study
from erosion_common.support.network import free_address
from erosion_common.support.status import read_status_file
from erosion_server.run.journal import read_journal
from erosion_server.run.run_folder import RunFolder, write_study
from tests.support import programs, sealed_programs
from tests.support.federation import Federation, small_study, write_site
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import start
from tests.support.rogue import Rogue

WAITING = {"join_deadline_seconds": PATIENCE, "round_deadline_seconds": PATIENCE, "quorum": 3}


def without_a_rule(site_file: Path) -> None:
    """Leave every decision to a person."""
    text = site_file.read_text()
    assert 'automatic = "within_limits"' in text
    site_file.write_text(text.replace('automatic = "within_limits"', 'automatic = "never"'))


def told(events: list[tuple[Any, ...]], hospital: str) -> bool:
    """The coordinator was told that nobody there has decided yet."""
    return any(e[:2] == ("declined", hospital) and "erosion review" in e[2] for e in events)


def approve(site_file: Path, study: Study) -> None:
    """What `erosion review --approve` does, while the site is running."""
    records = Records.of(load_site(site_file))
    decide(records, entry_of(study, records), approve=True, by="dpo")
    records.close()


def test_a_study_goes_on_once_the_last_hospital_has_approved_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = small_study(arms={"fedavg": {}}, rounds=2, federation=WAITING)
    with Federation(study, tmp_path) as federation:
        files = {name: federation.site_file(name) for name in study.hospitals}
        without_a_rule(files["alice"])  # the user's own site, too, may take its time
        without_a_rule(files["bob"])
        for name, path in files.items():
            federation.start_program(name, programs.honest, path)
        federation.start()
        for name in ("alice", "bob"):
            seen = federation.observer
            seen.wait_for(partial(told, seen.events, name))
            assert main(["review", str(files[name])]) == 0
            assert "waits for a decision" in capsys.readouterr().out
            digest = study.digest[:10]
            assert main(["review", str(files[name]), digest, "--approve", "--by", "dpo"]) == 0
            assert "Approved by dpo" in capsys.readouterr().out
        result = federation.finish()
    assert result.arms["fedavg"].rounds == 2


def test_the_study_that_was_approved_is_the_one_that_begins_with_its_quorum(tmp_path: Path) -> None:
    """And the one that is gone on with, by the command that a supervisor gives."""
    address, file, folder = free_address(), tmp_path / "study.toml", RunFolder(tmp_path / "run")
    wait = {"join_deadline_seconds": 1.0, "round_deadline_seconds": PATIENCE, "quorum": 2}
    write_study(file, small_study(arms={"fedavg": {}}, rounds=3, federation=wait))
    sites = {name: write_site(tmp_path, name, address) for name in ("alice", "bob")}
    for path in sites.values():
        without_a_rule(path)
        approve(path, load_study(file))
    place = ("--insecure", "--address", address)
    begin = ("server", str(file), "--run-folder", str(folder.path), "--start-with-quorum", *place)
    log = str(tmp_path / "coordinator.log")
    alice = start(programs.honest, str(sites["alice"]))
    bobs = [start(programs.dies_in_round_2, str(sites["bob"]))]
    coordinators = [start(programs.erosion, log, *begin)]
    try:
        bobs[0].join(PATIENCE)  # without it the next round cannot be done
        assert bobs[0].exitcode is not None, Path(log).read_text()
        assert [line["round"] for line in read_journal(folder.journal)] == [1]
        coordinators[0].kill()
        coordinators[0].join(PATIENCE)
        resume = ("server", "--resume", str(folder.path), *place)
        coordinators.append(start(programs.erosion, log, *resume))
        bobs.append(start(programs.honest, str(sites["bob"])))
        coordinators[1].join(PATIENCE)
        assert coordinators[1].exitcode == 0, Path(log).read_text()
    finally:
        for process in (alice, *bobs, *coordinators):
            process.kill()
            process.join(PATIENCE)
    bob = [line["hospitals"]["bob"]["outcome"] for line in read_journal(folder.journal)]
    assert bob == ["accepted"] * 3
    assert load_study(folder.study).digest == load_study(file).digest


def changed(site_file: Path, old: str, new: str) -> None:
    """What an editor does."""
    text = site_file.read_text()
    assert old in text
    site_file.write_text(text.replace(old, new))


def test_what_changes_in_a_site_file_holds_at_once_and_in_a_run_under_way(tmp_path: Path) -> None:
    study = small_study(arms={"fedavg": {}}, rounds=3, scaling="local")
    with Federation(study, tmp_path) as federation:
        path = federation.site_file("bob")
        status = path.parent / "records" / "bob" / "status.json"

        def trouble() -> str:
            seen = read_status_file(status)
            return "" if seen is None else str(seen.values["trouble"])

        changed(path.parent / "data.csv", "age,dose", "Alter,dose")
        process = federation.start_program("bob", sealed_programs.serves, path)
        site: Any = SimpleNamespace(lives=True)
        rogue = Rogue(federation.link, site)

        def trained(number: int) -> str:
            asked = TrainRequest(study, "fedavg", number, torch.zeros(6), None, "r1")
            return rogue.why_not(wire.Encoder().encode(asked), wire.train_type(asked.step))

        assert "DataError" in str(rogue.describe(study))
        changed(path, "[coordinator]", '[data.columns]\nage = "Alter"\n[coordinator]')
        assert isinstance(rogue.describe(study), DescribeReply)
        assert trained(1) == ""
        changed(path, "[approval]", '[limits]\nstudies = ["other"]\n[approval]')
        assert "limits.studies accepts only other" in trained(2)
        assert "limits.studies accepts only other" in str(rogue.describe(study))
        wait_until(lambda: "limits.studies" in status.read_text())
        changed(path, '"other"', '"*"')
        assert trained(2) == ""
        whole = path.read_text()
        path.write_text(whole + "[limits")
        wait_until(lambda: "answers nothing until" in trouble())
        assert "not valid TOML" in trouble()
        path.write_text(whole)
        assert trained(3) == ""
        assert process.is_alive()
