"""Whatever one enrolled site sends, the others' run goes on, and the journal names the culprit.

All attackers take part in one study at once, to save time: real programs, a real coordinator.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from erosion.simulation.simulator import simulate
from erosion_common.errors import RunError
from erosion_common.rounds import checkpoint
from erosion_common.rounds.arm import initial_state
from erosion_common.study.study import EVERY_USER
from erosion_common.support.process import peak_megabytes
from tests.support import fuzzing, hostile_sites, programs
from tests.support.enrolled import EnrolledFederation
from tests.support.federation import Federation, small_study

HONEST = ("alice", "bob", "carol", "dave", "erin", "frank", "grace")
# Whose answers cannot be used, and the words by which the journal says so.
NAMED = {
    "claims-patients": "9007199254740992 samples, but it introduced itself with",
    "huge-value": "norm 3e+38",
    "not-a-number": "not finite",
    "unasked": "it sent a reply to what it was not asked",
    "metrics": "at most 64 metrics",
    "orphans": "bytes, where",
}


class Lines(logging.Handler):
    """What the coordinator logs."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@dataclass
class Attacked:
    federation: EnrolledFederation
    log: list[str]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    study = small_study(
        hospitals=[*HONEST, *hostile_sites.TRAIN],
        rounds=3,
        arms={"fedavg": {}, "local": {}},
        federation={
            "round_deadline_seconds": 20.0,
            "join_deadline_seconds": 300.0,
            "quorum": len(HONEST),
        },
    )
    handler = Lines()
    logging.getLogger("erosion").addHandler(handler)
    with EnrolledFederation(study, tmp_path_factory.mktemp("attacked")) as federation:
        for name in HONEST:
            federation.start_site(name)
        for name in hostile_sites.TRAIN:
            federation.start_site(name, hostile_sites.attacks)
        federation.start()
        federation.finish()
    logging.getLogger("erosion").removeHandler(handler)
    return Attacked(federation, handler.said)


def entries(attacked: Attacked, name: str) -> list[tuple[str, str]]:
    rounds = [record for record in attacked.federation.observer.records if record.arm == "fedavg"]
    return [(r.hospitals[name].outcome, r.hospitals[name].reason) for r in rounds]


def test_every_round_of_the_others_was_done(attacked: Attacked) -> None:
    assert [record.outcome for record in attacked.federation.observer.records] == ["done"] * 6
    for name in HONEST:
        assert [outcome for outcome, _ in entries(attacked, name)] == ["accepted"] * 3


@pytest.mark.parametrize("name", NAMED)
def test_the_journal_names_the_culprit(attacked: Attacked, name: str) -> None:
    said = entries(attacked, name)
    assert "accepted" not in {outcome for outcome, _ in said}
    assert any(outcome == "rejected" and NAMED[name] in reason for outcome, reason in said), said


def test_a_second_reply_changes_nothing(attacked: Attacked) -> None:
    assert ("accepted", "") in entries(attacked, "twice")  # the first of two counts


def test_a_body_that_never_comes_costs_the_round_its_deadline_at_most(attacked: Attacked) -> None:
    outcome, reason = entries(attacked, "drips")[0]
    assert outcome in ("absent", "rejected")
    assert reason


def test_a_hundred_bad_calls_are_told_of_in_a_few_lines(attacked: Attacked) -> None:
    about = [line for line in attacked.log if "bad-calls" in line]
    assert 1 <= len(about) <= 5, about
    assert len(attacked.log) < 100


def test_what_collaborating_is_compared_with_has_not_moved_at_all(attacked: Attacked) -> None:
    study = attacked.federation.study
    alone = study.model_copy(update={"arms": {"local": study.arms["local"]}})
    hospitals = {name: attacked.federation.hospital(name) for name in HONEST}
    alone = alone.model_copy(update={"hospitals": HONEST})
    simulated = simulate(alone, hospitals)
    path = attacked.federation.run_folder.checkpoint("local")
    template = initial_state(study, "local")
    deployed = checkpoint.load(path, template, arm="local", study_digest=study.digest)
    assert torch.equal(deployed.params, simulated.finals["local"].params)


def test_the_poisoned_counts_and_values_have_not_moved_the_average_far(attacked: Attacked) -> None:
    path = attacked.federation.run_folder.checkpoint("fedavg")
    template = initial_state(attacked.federation.study, "fedavg")
    final = checkpoint.load(
        path, template, arm="fedavg", study_digest=attacked.federation.study.digest
    )
    assert final.params.isfinite().all()
    assert final.params.abs().max() < 10


def test_figures_of_no_arm_cost_their_user_its_model_and_nobody_else_theirs(tmp_path: Path) -> None:
    study = small_study(
        user=EVERY_USER, hospitals=["alice", "mallory", "carol"], rounds=2, arms={"fedavg": {}}
    )
    with EnrolledFederation(study, tmp_path) as federation:
        for name in ("alice", "carol"):
            federation.start_site(name)
        federation.start_site("mallory", hostile_sites.evaluates_nothing)
        federation.start()
        with pytest.raises(RunError, match="mallory: no model yet"):
            federation.finish_every_user()
        failed = [event for event in federation.observer.events if event[0] == "user_failed"]
        ended = {name: federation.run_folder.of_user(name).has_ended for name in study.hospitals}
    assert ended == {"alice": True, "mallory": False, "carol": True}
    (event,) = failed
    assert event[1] == "mallory"
    assert "its figures lack fedavg" in event[2]


# -- Sites that answer every request with nonsense, two hundred times in all ---------------------

ROUNDS = 200 // len(fuzzing.SITES)
MOST_MEGABYTES = 1000  # more than before: 490 to 640 were seen, and the site pushes several GB


def test_200_malformed_replies_cost_nobody_a_round_and_leave_nothing_behind(tmp_path: Path) -> None:
    study = small_study(
        rounds=ROUNDS,
        arms={"fedavg": {}},
        hospitals=["alice", "carol", *fuzzing.SITES],
        federation={"round_deadline_seconds": 10.0},
    )
    before = peak_megabytes() or 0.0
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice", programs.takes_its_time)
        for name in fuzzing.SITES:
            federation.start_site(name, fuzzing.fuzzes)
        federation.start_site("carol")
        federation.start()
        result = federation.finish()
        records = federation.observer.records
        assert len(federation.link._sessions.exchange) == 0
    assert [r.outcome for r in records] == ["done"] * ROUNDS
    for record in records:
        for name in fuzzing.SITES:
            liar = record.hospitals[name]
            assert liar.outcome in ("rejected", "absent"), (record.round, name)
            assert liar.reason
        assert record.hospitals["alice"].outcome == "accepted", record.round
        assert record.hospitals["carol"].outcome == "accepted", record.round
    assert result.verdict.text
    assert federation.run_folder.report.exists()
    assert (peak_megabytes() or 0.0) - before < MOST_MEGABYTES
