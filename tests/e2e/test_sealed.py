"""Sealed rounds over the real line: equal to plain ones, and nowhere a single update."""

import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from erosion.simulation.testbed import KEY, write_identities
from erosion_common.errors import SiteError
from erosion_common.learning.models import build_model, flat_parameters
from erosion_common.program.command import CHECK_FAILED
from erosion_common.program.command_line import main
from erosion_common.rounds import checkpoint
from erosion_common.rounds.arm import initial_state
from erosion_common.sealed import pinned_keys
from erosion_common.sealed.audit import read_disclosure
from erosion_common.sealed.phases import DISTANCE, MASKED, UNMASK
from erosion_common.study.study import Study
from erosion_common.support.network import free_address
from erosion_server.enrolment.enrolment import write_peers
from erosion_server.run.journal import read_journal
from erosion_server.run.run_folder import RunFolder
from tests.support.enrolled import EnrolledFederation
from tests.support.federation import write_site
from tests.support.killed_coordinator import coordinate
from tests.support.memory_search import in_files, in_memory, needles
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import start
from tests.support.sealed_coordinator import coordinate_and_stand_still, killed_in_leg
from tests.support.sealed_programs import (
    AWAY,
    answers_unmask_twice,
    changes_its_limits_as_it_masks,
    changes_its_limits_between_two_legs,
    changes_its_limits_once_it_masked,
    dies_before_it_masks,
    is_away_now_and_then,
    lies,
    serves,
    signs_other_keys,
    waits_for_carol,
)
from tests.support.sealed_study import (
    ARM,
    HOSPITALS,
    PEERS,
    Line,
    Trouble,
    hospitals_of,
    run_in,
    sealed_study,
)
from tests.support.tapped_line import TappedLine

TRAIN = "train"


@contextmanager
def sites(
    folder: Path, address: str, **others: Callable[[str], None]
) -> Iterator[dict[str, BaseProcess]]:
    """All five as processes; a keyword names another program than the honest one."""
    started = {}
    write_identities(folder, HOSPITALS)
    try:
        for name in HOSPITALS:
            path = write_site(folder, name, address)
            with path.open("a") as file:
                file.write(f'[sealed]\nprivate_key = "{KEY}"\n')
            started[name] = start(others.get(name, serves), str(path))
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.join(PATIENCE)


def records_of(run: RunFolder) -> list[dict[str, Any]]:
    """Of the sealed arm."""
    return [record for record in read_journal(run.journal) if record["arm"] == ARM]


def conducted(study: Study, folder: Path, **others: Callable[[str], None]) -> RunFolder:
    """A run from its beginning to its end; a keyword names another program of a site."""
    address, run = free_address(), RunFolder(folder / "runs" / "run")
    with sites(folder, address, **others):
        coordinator = start(coordinate, study.canonical_json(), str(run.path), address, None)
        coordinator.join(PATIENCE)
        assert coordinator.exitcode == 0
    return run


def assert_is_the_plain_run(
    folder: Path, study: Study, run: RunFolder, absent: Iterable[tuple[int, str]]
) -> None:
    """That of a study that is not sealed, without these hospitals in these rounds."""
    plain = sealed_study(rounds=study.rounds, sealed=False)
    (folder / "plain").mkdir()
    away = [Trouble(number, TRAIN, lost=[name]) for number, name in absent]
    outcome = run_in(folder / "plain", Line(plain, hospitals_of(folder), away))[0]
    for arm, expected in outcome.finals.items():
        first, path = initial_state(study, arm), run.checkpoint(arm)
        final = checkpoint.load(path, first, arm=arm, study_digest=study.digest)
        assert final.params.numpy() == pytest.approx(expected.params.numpy(), abs=1e-6)
        assert final.weights == pytest.approx(expected.weights, abs=1e-7)


def test_killed_in_several_legs_with_absences_a_sealed_run_is_the_plain_one(tmp_path: Path) -> None:
    """A coordinator killed in leg 2, in leg 3 and in leg 4, and sites that are away in others."""
    study, address = sealed_study(rounds=5), free_address()
    text, run = study.canonical_json(), RunFolder(tmp_path / "runs" / "killed")
    with sites(tmp_path, address, carol=is_away_now_and_then, dave=is_away_now_and_then):
        for leg, number in ((DISTANCE, 1), (MASKED, 2), (UNMASK, 3)):
            killed = start(killed_in_leg, text, str(run.path), address, leg, number)
            killed.join(PATIENCE)
            assert killed.exitcode == -signal.SIGKILL, leg
        finished = start(coordinate, text, str(run.path), address, None)
        finished.join(PATIENCE)
        assert finished.exitcode == 0
    records = records_of(run)
    assert [record["outcome"] for record in records] == ["done"] * 5
    assert [s["step"] for s in records[0]["steps"]] == [TRAIN, DISTANCE, MASKED, UNMASK]
    reasons = {
        (name, record["round"]): entry["outcome"]
        for record in records
        for name, entry in record["hospitals"].items()
        if entry["outcome"] != "accepted"
    }
    assert set(reasons) == {(name, number) for name, number, _ in AWAY}

    assert_is_the_plain_run(tmp_path, study, run, [(number, name) for name, number, _ in AWAY])

    for name in PEERS:  # each leg is in the site's own log, with what left in it
        lines = (tmp_path / name / "records" / name / "sent.jsonl").read_text().splitlines()
        log = [json.loads(line) for line in lines]
        shown = {
            entry["kind"]: entry["arrays"]
            for entry in log
            if (entry["arm"], entry["round"]) == (ARM, 2) and entry["error"] is None
        }
        assert shown == {
            TRAIN: {"update": [0]},
            f"{TRAIN}.{DISTANCE}": {"sealed_distance": [384]},
            f"{TRAIN}.{MASKED}": {"words": [22]},
            f"{TRAIN}.{UNMASK}": {},
        }


def test_a_site_that_is_killed_in_a_leg_is_absent_and_takes_part_again(tmp_path: Path) -> None:
    study, address = sealed_study(rounds=5), free_address()
    run = RunFolder(tmp_path / "runs" / "run")
    with sites(tmp_path, address, carol=dies_before_it_masks) as started:
        coordinator = start(coordinate, study.canonical_json(), str(run.path), address, None)
        started["carol"].join(PATIENCE)
        assert started["carol"].exitcode == -signal.SIGKILL
        started["carol"] = start(serves, str(tmp_path / "carol" / "site.toml"))
        coordinator.join(PATIENCE)
        assert coordinator.exitcode == 0
    records = records_of(run)
    assert [record["outcome"] for record in records] == ["done"] * 5
    absences = [r["round"] for r in records if r["hospitals"]["carol"]["outcome"] != "accepted"]
    assert absences[0] == 2
    assert_is_the_plain_run(tmp_path, study, run, [(number, "carol") for number in absences])


@pytest.mark.parametrize(
    ("program", "is_summed"),
    [
        (changes_its_limits_between_two_legs, False),
        (changes_its_limits_as_it_masks, False),
        (changes_its_limits_once_it_masked, True),
    ],
)
def test_limits_that_change_in_a_round_hold_from_the_next_message_on_and_cost_no_round(
    tmp_path: Path, program: Callable[[str], None], is_summed: bool
) -> None:
    """The site forgets its secrets of the round, as if its program had been started anew."""
    run = conducted(sealed_study(rounds=5), tmp_path, alice=waits_for_carol, carol=program)
    records = records_of(run)
    assert [record["outcome"] for record in records] == ["done"] * 5
    carols = [record["hospitals"]["carol"] for record in records]
    second = "accepted" if is_summed else "absent"
    assert [e["outcome"] for e in carols] == ["accepted", second, *["absent"] * 3]
    assert "limits.min_summed = 5" in carols[-1]["reason"]
    log = (tmp_path / "carol" / "records" / "carol" / "sent.jsonl").read_text().splitlines()
    sent = [
        (entry["round"], entry["kind"].removeprefix(f"{TRAIN}."))
        for entry in map(json.loads, log)
        if entry["arm"] == ARM and entry["error"] is None
    ]
    assert ((2, MASKED) in sent) == is_summed
    assert max(number for number, leg in sent if leg == MASKED) == 1 + is_summed
    assert max(number for number, leg in sent if leg == UNMASK) == 1


def enrolled(folder: Path, rounds: int, carol: Callable[[str], None]) -> EnrolledFederation:
    """A run among enrolled hospitals over TLS that has ended, with this program at carol."""
    with EnrolledFederation(sealed_study(rounds=rounds), folder) as federation:
        federation.start()
        for name in HOSPITALS:
            path = federation.site_file(name)
            write_peers(federation.keys, path.with_name(pinned_keys.NAME))
            federation.start_program(name, carol if name == "carol" else serves, path)
        federation.finish()
    return federation


def test_a_second_answer_to_the_last_message_ends_its_senders_line_and_costs_no_round(
    tmp_path: Path,
) -> None:
    seen = enrolled(tmp_path, 3, answers_unmask_twice).observer
    records = [r for r in seen.records if r.arm == ARM]
    assert [record.outcome for record in records] == ["done"] * 3
    assert records[0].hospitals["carol"].outcome == "accepted"
    told = [event for event in seen.events if event[0] == "declined"]
    assert any("a reply to what it was not asked" in reason for _, _, reason in told)


def test_a_lie_stops_the_arm_and_the_audit_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person at each hospital hands over its opening; the study's other arm goes on."""
    study = sealed_study()
    run = conducted(study, tmp_path, carol=lies)
    records = list(read_journal(run.journal))
    assert [r["outcome"] for r in records if r["arm"] == ARM] == ["stopped"]
    assert [r["outcome"] for r in records if r["arm"] == "local"] == ["done"] * study.rounds
    openings = [str(opening_of(tmp_path, name)) for name in PEERS]
    assert main(["audit", str(run.path), *openings]) == CHECK_FAILED
    said = capsys.readouterr().out
    assert "What carol sent is not what was said of it." in said
    assert said.count("and that is what it summed") == len(PEERS) - 1


def test_among_enrolled_hospitals_keys_that_nobody_signed_cost_no_round(tmp_path: Path) -> None:
    """The coordinator knows whose key is whose, and leaves the wrong one out itself."""
    seen = enrolled(tmp_path, 2, signs_other_keys).observer
    records = [r for r in seen.records if r.arm == ARM]
    assert [record.outcome for record in records] == ["done"] * 2
    for record in records:
        assert "not signed by the key that it is enrolled with" in record.hospitals["carol"].reason
        assert record.hospitals["bob"].outcome == "accepted"


def opening_of(folder: Path, name: str) -> Path:
    """What an audit needs of a peer."""
    (path,) = (folder / name / "state" / name / "sealed").glob("*/opening.safetensors")
    return path


def updates_of(folder: Path) -> dict[str, NDArray[np.float32]]:
    """What each peer put under its masks last."""
    return {name: read_disclosure(opening_of(folder, name), SiteError).update for name in PEERS}


@pytest.mark.parametrize("updates", ["memory", "disk"])
def test_no_memory_file_or_traffic_holds_a_single_update(tmp_path: Path, updates: str) -> None:
    """The coordinator stands still before and after it takes the masks off, and is searched."""
    study = sealed_study(rounds=2, model={"name": "mlp", "hidden": [150, 120]})
    address, marks = free_address(), tmp_path / "marks"
    run, traffic = RunFolder(tmp_path / "runs" / "searched"), tmp_path / "traffic"
    marks.mkdir()
    with TappedLine(address, traffic) as tapped, sites(tmp_path, tapped.address):
        arguments = (study.canonical_json(), str(run.path), address, str(marks), updates)
        coordinator = start(coordinate_and_stand_still, *arguments)
        assert coordinator.pid is not None
        for moment in ("masked", "unmasked"):
            told = wait_for_mark(marks / moment, coordinator)
            sought: dict[str, bytes] = {}
            for name, update in updates_of(tmp_path).items():
                times = {"unweighted": told["scale"], "weighted": told["scale"] * told[name]}
                sought |= needles(update, name, times)
            known = needles(last_parameters(study, run), "the model", {})
            found = in_memory(coordinator.pid, {**sought, **known})
            assert found & set(known), "the search finds nothing, not even the model"
            assert found & set(sought) == set()
            assert in_files(run.path, sought) == set()
            assert in_files(traffic, sought) == set()
            if moment == "unmasked":
                planted = updates_of(tmp_path)["carol"]
                plant(marks, planted.tobytes(), coordinator)
                found = in_memory(coordinator.pid, sought)
                assert found == {w for w in sought if w.startswith("carol") and "float32" in w}
            (marks / f"{moment}.go").touch()
        coordinator.join(PATIENCE)
        assert coordinator.exitcode == 0
    in_float32 = {what: needle for what, needle in known.items() if what.endswith("float32")}
    assert in_files(traffic, in_float32), "the model's parameters are in the traffic"
    assert in_files(run.path, in_float32), "and in the run's folder"


def plant(marks: Path, content: bytes, coordinator: BaseProcess) -> None:
    """Have the coordinator hold an update, as it would if it had one."""
    (marks / "planted.new").write_bytes(content)
    (marks / "planted.new").rename(marks / "planted")
    wait_until(lambda: (marks / "held").exists() or not coordinator.is_alive())


def last_parameters(study: Study, run: RunFolder) -> NDArray[np.float32]:
    """The parameters that the newest round started from."""
    path = run.checkpoint(ARM)
    if path.exists():
        return next(v for v in safetensors.numpy.load_file(path).values() if v.dtype == np.float32)
    model = build_model(study.model, study.task.input_shape, study.task.num_outputs)
    return flat_parameters(model).numpy()


def wait_for_mark(path: Path, process: BaseProcess) -> Mapping[str, float]:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    told: dict[str, float] = json.loads(path.read_text())
    return told
