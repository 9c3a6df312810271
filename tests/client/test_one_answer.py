"""Asked again, a site gives the answer that it gave, or none: over the program that serves it."""

import shutil
from pathlib import Path

import pytest
import torch

from erosion_client.training.kept_state import KeptState, Moment, StateKey
from erosion_common.protocol import wire
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest
from tests.support.said import says
from tests.support.served import Served, refusal_in
from tests.support.small_study import make_site, make_study, twenty_patients

ARMS = {
    "ditto": {},
    "scaffold": {},
    "bias": {"algorithm": "fedavg", "own_parameters": ["output_bias"]},
}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("order", [(3,), (1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_repeated_rounds_have_one_answer(tmp_path: Path, arm: str, order: tuple[int, ...]) -> None:
    site = Asked(tmp_path)
    first = {number: site.update(arm, number) for number in (1, 2, 3)}
    assert all(isinstance(answer, bytes) for answer in first.values())
    for number in order:
        again = site.update(arm, number)
        assert again == first[number] or "once" in str(again)


def test_final_figures_are_of_one_personal_model(tmp_path: Path) -> None:
    site = Asked(tmp_path, evaluation={"test_share": 0.4, "bootstrap": 100})
    for number in (1, 2, 3):
        site.update("ditto", number)
    first = site.evaluate("ditto")
    assert "log_loss" in first
    assert site.evaluate("ditto") == first
    site.update("ditto", 1)  # back to what the run began with
    assert says(site.evaluate("ditto"), "parameters", "another")


class Asked(Served):
    """Site a, where a study of methods that keep a state was approved."""

    def __init__(self, folder: Path, *, coordinator: str = "c", **keys: object) -> None:
        self.study = make_study(arms=ARMS, **keys)
        site = make_site(folder, twenty_patients(), compute={"state": str(folder / "state")})
        super().__init__(site, self.study, coordinator=coordinator)

    def update(self, arm: str, number: int, run: str = "r") -> bytes | str:
        """The update of a round, which always starts from the same parameters; or the refusal."""
        parameters = torch.full((6,), 0.1 * number)
        reply = self.train(TrainRequest(self.study, arm, number, parameters, None, run))
        if reply.has_error():
            return refusal_in(reply)
        return wire.decode_train_result(reply.content).delta.numpy().tobytes()

    def evaluate(self, arm: str) -> str:
        request = EvaluateRequest(self.study, {arm: torch.full((6,), 0.5)}, None, "r")
        reply = self.ask(wire.EVALUATE, wire.Encoder().encode(request, with_study=True))
        return refusal_in(reply) or wire.header_text(reply.content)


LOST = "a has lost what it keeps of"


def other_arms_are_kept(folder: Path, count: int) -> None:
    """Each of a run of its own."""
    kept = KeptState(folder / "state" / "a")
    for number in range(count):
        study = f"{number:016x}" * 4
        place = StateKey(study, "ditto", f"run {number}", study)
        kept.keep(place, Moment(1), {}, {"v": torch.ones(1)})


@pytest.mark.parametrize("arm", ARMS)
def test_a_resumed_run_is_whole(tmp_path: Path, arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erosion_client.training.kept_state.MOST_FILES", 2)
    site = Asked(tmp_path)
    for number in (1, 2):
        site.update(arm, number)
    other_arms_are_kept(tmp_path, 4)
    assert says(str(Asked(tmp_path).update(arm, 3)), LOST, arm, "compute.state")
    assert says(site.evaluate(arm), LOST, arm, "compute.state")
    assert isinstance(site.update(arm, 3, run="r2"), bytes)


@pytest.mark.parametrize("arm", ARMS)
def test_state_that_was_restored_alone_to_an_earlier_round_is_not_used(
    tmp_path: Path, arm: str
) -> None:
    site = Asked(tmp_path)
    folder = tmp_path / "state" / "a" / site.study.digest[:16]
    site.update(arm, 1)
    shutil.copytree(folder, tmp_path / "backup")
    second = site.update(arm, 2)
    shutil.copytree(tmp_path / "backup", folder, dirs_exist_ok=True)
    assert says(str(site.update(arm, 3)), LOST, arm, "compute.state")
    assert says(site.evaluate(arm), LOST, arm, "compute.state")
    assert site.update(arm, 2) == second  # which begins where round 1 ended
    assert isinstance(site.update(arm, 3), bytes)


def test_a_run_whose_state_another_run_of_the_study_replaced_is_refused(tmp_path: Path) -> None:
    site = Asked(tmp_path)
    site.update("ditto", 1)
    site.update("ditto", 1, run="r2")
    assert says(str(site.update("ditto", 2)), f"{LOST} ditto", "run")
    assert isinstance(site.update("ditto", 2, run="r2"), bytes)


def test_what_was_lost_in_the_first_round_is_not_missed_there(tmp_path: Path) -> None:
    site = Asked(tmp_path)
    first = site.update("ditto", 1)
    shutil.rmtree(tmp_path / "state" / "a" / site.study.digest[:16])
    assert site.update("ditto", 1) == first


def test_what_is_kept_for_one_coordinator_is_not_missed_by_another(tmp_path: Path) -> None:
    site, of_another = Asked(tmp_path), Asked(tmp_path, coordinator="another")
    site.update("ditto", 1)
    shutil.rmtree(tmp_path / "state" / "a" / site.study.digest[:16])
    assert says(str(site.update("ditto", 2)), f"{LOST} ditto", "run")
    assert isinstance(of_another.update("ditto", 2), bytes)


def test_an_arm_that_the_study_lacks_is_no_path(tmp_path: Path) -> None:
    site = Asked(tmp_path)
    assert says(str(site.update("../ditto", 1)), "study", "scaffold")
    assert says(site.evaluate("../../ditto"), "study", "scaffold")


@pytest.mark.parametrize("run", ["a  b", " a", "a ", "a\nb", "\x1b[31m", "a" * 201])
def test_a_run_that_the_log_would_write_otherwise_is_refused(tmp_path: Path, run: str) -> None:
    site = Asked(tmp_path)
    request = TrainRequest(site.study, "ditto", 1, torch.zeros(6), None, run)
    refused = refusal_in(site.train(request))
    assert refused
    if len(run) <= 200:  # a longer one is no message
        assert says(refused, "plain", "letters")
