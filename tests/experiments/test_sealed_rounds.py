"""Sealed rounds from end to end, in one process: equal to plain ones, whatever falls away."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from erosion_client.sealed.sealed_site import Greeted, Measured, SealedSite
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import RunError, SiteError
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.sealed.audit import examine, read_disclosure
from erosion_common.sealed.distance import Question
from erosion_common.sealed.phases import (
    DISTANCE,
    MASKED,
    SEALED_DISTANCE,
    UNMASK,
    WORDS,
    Roster,
    SumRules,
)
from erosion_common.sealed.records import RecordFiles
from erosion_server.run.findings import absences, contributions
from erosion_server.run.run_folder import new_run_folder
from tests.support.local_works import layout
from tests.support.sealed_study import (
    ARM,
    HOSPITALS,
    PEERS,
    Killed,
    Line,
    Trouble,
    assert_same,
    hospitals,
    plain,
    run,
    run_in,
    sealed_study,
)
from tests.support.small_study import sixty_patients

SEALABLE = [
    name
    for name, arm in REGISTRY.items()
    if not (arm(algorithm=name).problem_with_sealing() or arm.user_only)
    if not arm(algorithm=name).problem_with_model(layout)  # the study's is the smallest
]


@pytest.mark.parametrize("arm", SEALABLE)
def test_a_sealed_run_is_the_plain_one(tmp_path: Path, arm: str) -> None:
    options = {"distance_penalty": "auto", "erosion_share": 10} if arm == "weight_erosion" else {}
    arms = {arm: options, "local": {}}
    sealed = run(tmp_path / "sealed", arms=arms)
    unsealed = plain(arms=arms)
    assert_same(sealed, unsealed, arm)
    steps = [step.step for step in sealed.records[arm][0].steps]
    assert steps == [TRAIN, DISTANCE, MASKED, UNMASK]
    distances = [
        {name: entry.distance for name, entry in record.hospitals.items()}
        for outcome in (sealed, unsealed)
        for record in outcome.records[arm][:1]
    ]
    assert distances[0] == pytest.approx(distances[1], abs=1e-5)


@pytest.mark.parametrize("step", [TRAIN, DISTANCE, MASKED])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_hospital_that_falls_away_is_absent_from_the_round(
    tmp_path: Path, step: str, is_late: bool
) -> None:
    lost = Trouble(2, step, late=["carol"]) if is_late else Trouble(2, step, lost=["carol"])
    sealed = run(tmp_path / "sealed", lost)
    assert_same(sealed, plain(Trouble(2, TRAIN, lost=["carol"])))
    assert sealed.records[ARM][1].outcome == "done"


def test_a_hospital_that_does_not_help_to_unmask_is_in_the_sum(tmp_path: Path) -> None:
    sealed = run(tmp_path / "sealed", Trouble(2, UNMASK, lost=["carol"]))
    assert_same(sealed, plain())
    records = sealed.records[ARM]
    assert records[1].hospitals["carol"].outcome == "accepted"
    assert records[1].steps[-1].hospitals["carol"].outcome == "absent"
    ledger = contributions(HOSPITALS, records)["carol"]
    assert ledger.rounds == 3
    assert ledger.weight_sum == sum(r.hospitals["carol"].weight_after or 0 for r in records)
    assert absences(HOSPITALS, "alice", {ARM: records}) == ()


@pytest.mark.parametrize(
    ("trouble", "note"),
    [
        (Trouble(2, TRAIN, lost=["bob", "carol"]), "4 usable updates, 5 are needed"),
        (
            Trouble(2, MASKED, lost=["bob", "carol"]),
            "3 usable answers to 'sealed_masked', 4 are needed",
        ),
        (Trouble(2, UNMASK, lost=["bob", "carol"]), "3 hospitals answered to unmask the sum, 4"),
    ],
)
def test_with_too_few_the_round_is_skipped_and_the_next_goes_on(
    tmp_path: Path, trouble: Trouble, note: str
) -> None:
    sealed = run(tmp_path / "sealed", trouble)
    record = sealed.records[ARM][1]
    assert record.outcome == "skipped"
    assert note in record.note
    assert [r.outcome for r in sealed.records[ARM]] == ["done", "skipped", "done"]


def test_the_user_goes_on_alone_for_good_when_fewer_than_four_have_weight(tmp_path: Path) -> None:
    arms = {ARM: {"distance_penalty": 3.0}, "local": {}}
    sealed = run(tmp_path / "sealed", arms=arms)
    first, *later = sealed.records[ARM]
    assert "from here on the user trains alone" in first.note
    assert all(set(record.hospitals) - {"alice"} == set(PEERS) for record in later)
    assert all(record.hospitals["bob"].outcome == "not_asked" for record in later)
    assert sealed.finals[ARM].weights == {"alice": 1.0, **dict.fromkeys(PEERS, 0.0)}
    assert torch.equal(sealed.finals[ARM].params, sealed.finals["local"].params)


def test_where_one_of_four_has_no_weight_two_rounds_are_skipped_and_the_user_goes_on_alone(
    tmp_path: Path,
) -> None:
    """Erin's patients are of another kind; the method might give her weight in a later round."""
    names = list(HOSPITALS[:5])
    arms: dict[str, object] = {"evidence_erosion": {}, "local": {}}
    sites = hospitals(tmp_path)
    head, *rows = (line.split(",") for line in sixty_patients("erin").splitlines())
    turned = [
        [f"{9 * float(row[0]):.4f}", *row[1:-1], "no" if float(row[0]) > 1 else "yes"]
        for row in rows
    ]
    (tmp_path / "erin.csv").write_text("\n".join(",".join(row) for row in [head, *turned]) + "\n")
    study = sealed_study(arms=arms, hospitals=names, rounds=5)
    outcome, _ = run_in(tmp_path, Line(study, {name: sites[name] for name in names}))
    records = outcome.records["evidence_erosion"]
    assert [r.outcome for r in records] == ["done", "skipped", "skipped", "done", "done"]
    assert "the user trains alone from here on" in records[2].note
    assert records[3].hospitals["bob"].outcome == "not_asked"


@pytest.mark.parametrize("optimizer", ["none", {"name": "momentum", "learning_rate": 0.1}, "adam"])
def test_where_everybody_loses_all_weight_at_once_the_sealed_run_is_the_plain_one(
    tmp_path: Path, optimizer: object
) -> None:
    arms = {ARM: {"distance_penalty": 100.0, "server_optimizer": optimizer}, "local": {}}
    sealed = run(tmp_path / "sealed", arms=arms)
    assert "from here on the user trains alone" in sealed.records[ARM][0].note
    assert_same(sealed, plain(arms=arms))


def test_ten_rounds_with_losses_in_every_leg_are_plain_rounds_with_the_same_absences(
    tmp_path: Path,
) -> None:
    lost = [
        Trouble(2, TRAIN, lost=["bob"]),
        Trouble(3, DISTANCE, late=["carol"]),
        Trouble(5, MASKED, lost=["dave"]),
        Trouble(6, MASKED, late=["erin"]),
        Trouble(8, UNMASK, lost=["bob"]),
    ]
    absent = [
        Trouble(2, TRAIN, lost=["bob"]),
        Trouble(3, TRAIN, lost=["carol"]),
        Trouble(5, TRAIN, lost=["dave"]),
        Trouble(6, TRAIN, lost=["erin"]),
    ]
    sealed = run(tmp_path / "sealed", *lost, rounds=10)
    assert_same(sealed, plain(*absent, rounds=10))
    assert [record.outcome for record in sealed.records[ARM]] == ["done"] * 10


def test_a_user_that_is_always_too_much_alone_stops_with_a_reason(tmp_path: Path) -> None:
    troubles = [Trouble(number, MASKED, lost=["bob", "carol"]) for number in (1, 2, 3)]
    with pytest.raises(RunError, match="3 rounds in a row were skipped"):
        run(tmp_path / "sealed", *troubles, rounds=4)


@pytest.mark.parametrize("step", [TRAIN, DISTANCE, MASKED, UNMASK])
@pytest.mark.parametrize("answers", [0, 2, 4])
def test_a_coordinator_killed_in_any_leg_goes_on_as_if_nothing_had_been(
    tmp_path: Path, step: str, answers: int
) -> None:
    """The sites live on, and keep to their rules: the same sum, and no second one."""
    study = sealed_study()
    sites = hospitals(tmp_path)
    run = new_run_folder(tmp_path, study)
    with pytest.raises(Killed):
        run_in(tmp_path, Line(study, sites, [Trouble(2, step, kill_after=answers)]), run)
    resumed, _ = run_in(tmp_path, Line(study, sites), run)
    assert_same(resumed, plain())


def test_a_sum_that_was_cut_off_is_of_the_same_hospitals_or_of_none(tmp_path: Path) -> None:
    """In the first start carol was lost in leg 3; when it goes on she is back, and not summed."""
    study, sites = sealed_study(), hospitals(tmp_path)
    run = new_run_folder(tmp_path, study)
    lost = [Trouble(2, MASKED, lost=["carol"]), Trouble(2, UNMASK, kill_after=2)]
    with pytest.raises(Killed):
        run_in(tmp_path, Line(study, sites, lost), run)
    resumed, _ = run_in(tmp_path, Line(study, sites), run)
    assert_same(resumed, plain(Trouble(2, TRAIN, lost=["carol"])))


def test_a_sum_that_was_cut_off_is_skipped_where_a_hospital_is_missing(tmp_path: Path) -> None:
    study, sites = sealed_study(), hospitals(tmp_path)
    run = new_run_folder(tmp_path, study)
    with pytest.raises(Killed):
        run_in(tmp_path, Line(study, sites, [Trouble(2, UNMASK, kill_after=2)]), run)
    missing = [Trouble(2, TRAIN, lost=["carol"])]
    resumed, _ = run_in(tmp_path, Line(study, sites, missing), run)
    outcomes = [record.outcome for record in resumed.records[ARM]]
    assert outcomes == ["done", "skipped", "done"]
    assert "no update enters a second sum" in resumed.records[ARM][1].note


@pytest.mark.parametrize("step", [DISTANCE, MASKED, UNMASK])
def test_a_site_that_restarts_is_absent_until_it_trains_again(tmp_path: Path, step: str) -> None:
    study = sealed_study()
    sites = hospitals(tmp_path, compute={"state": tmp_path / "state"})
    identity = sites["carol"]._sealed._given
    assert identity is not None

    def restart(name: str, request: TrainRequest) -> TrainRequest:
        if (name, request.round, request.step) == ("carol", 2, step):
            sites["carol"].identify(identity)
        return request

    sealed = run_in(tmp_path, Line(study, sites, tamper=restart))[0]
    absent = [] if step == UNMASK else [Trouble(2, TRAIN, lost=["carol"])]
    assert_same(sealed, plain(*absent))


class LyingSite(SealedSite):
    """Says that its update is next to nothing, at about 1, and sums the opposite, four times."""

    def distance(
        self, everyone: Roster, question: Question, modulus_proof: Sequence[int]
    ) -> tuple[int, dict[str, bytes]]:
        greeted = self.phase
        assert isinstance(greeted, Greeted)
        self._phase = replace(greeted, update=np.float32(1 / 16) * greeted.update)
        answer = super().distance(everyone, question, modulus_proof)
        measured = self.phase
        assert isinstance(measured, Measured)
        lie = replace(measured.greeted, update=-4 * greeted.update)
        self._phase = replace(measured, greeted=lie)
        return answer


def test_a_lie_stops_the_arm_and_opened_masks_show_whose_it_is(tmp_path: Path) -> None:
    study = sealed_study()
    sites = hospitals(tmp_path, compute={"state": tmp_path / "state"})
    identity = sites["carol"]._sealed._given
    assert identity is not None
    ledger = sites["carol"]._records.sums
    lying = LyingSite(identity, ledger, SumRules())
    sites["carol"]._sealed.__dict__["_new_rounds"] = lambda _: lying
    outcome, run = run_in(tmp_path, Line(study, sites))
    (record,) = outcome.records[ARM]
    assert record.outcome == "stopped"
    assert "the sum does not fit the distances" in record.note
    assert outcome.finals["local"].round == study.rounds
    found = RecordFiles(run.sealed, ARM).evidence()
    assert found is not None
    evidence, own = found
    findings = {}
    for name in PEERS:
        (kept,) = (tmp_path / "state" / name / "sealed").glob("*/opening.safetensors")
        opening = read_disclosure(kept, SiteError)
        findings[name] = examine(evidence, own.numpy(), opening)
        changed = replace(opening, update=opening.update + np.float32(1))
        assert examine(evidence, own.numpy(), changed).reason
    assert {name for name, found in findings.items() if not found.is_honest} == {"carol"}
    assert findings["carol"].claimed == pytest.approx(1, abs=0.1)
    assert (findings["carol"].shown or 0) > 3


def test_all_that_a_hospital_sends_is_masked_words_and_small_values(tmp_path: Path) -> None:
    study = sealed_study(rounds=1)
    line = Line(study, hospitals(tmp_path, compute={"state": tmp_path / "state"}))
    run_in(tmp_path, line)
    sent = [(name, reply.content) for name, reply in line.replies if name in PEERS]
    assert {type(content) for _, content in sent} == {TrainResult, StepResult}
    for name in PEERS:
        (kept,) = (tmp_path / "state" / name / "sealed").glob("*/opening.safetensors")
        update = read_disclosure(kept, SiteError).update
        for sender, content in sent:
            if isinstance(content, TrainResult):
                assert content.delta.numel() == 0
                tensors = content.attachments
            else:
                assert isinstance(content, StepResult)
                tensors = content.tensors
            assert all(update.tobytes() not in t.numpy().tobytes() for t in tensors.values())
            assert set(tensors) <= {SEALED_DISTANCE, WORDS}, sender
