"""A coordinator that asks a site for what the study's own rules never ask it."""

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord

from erosion_client.records.account import dataset_of
from erosion_client.records.audit_log import AuditLog
from erosion_client.records.records import FILE_NAME, Records
from erosion_client.records.recovery import recover
from erosion_common.protocol import wire
from erosion_common.protocol.messages import TrainRequest
from erosion_common.rounds.selection import fold_studies, trials
from erosion_common.study.study import Study
from tests.support.said import says
from tests.support.served import Served, refusal_in
from tests.support.small_study import make_site, make_study, twenty_patients
from tests.support.without_noise import make_fedavg_ask_for_a_mean

DIM = 6  # of the logistic regression


class Peer(Served):
    """The program of hospital b; what it answers is in its log."""

    def __init__(self, folder: Path, study: Study) -> None:
        state = {"state": folder / "state"}
        site = make_site(folder, twenty_patients(), name="b", file="b.csv", compute=state)
        super().__init__(site, study)
        self.study, self.log = study, folder / "records"

    def why_not(
        self,
        request: TrainRequest,
        kind: str = "",
        header: Mapping[str, object] = MappingProxyType({}),
    ) -> str:
        """The words of its refusal, "" where it answers.

        `kind`: of the message, in place of what fits the request; `header`: what it says instead.
        """
        content = wire.Encoder().encode(request)
        said: Mapping[str, Any] = json.loads(wire.header_text(content))
        content["header"] = ConfigRecord({"json": json.dumps({**said, **header})})
        kind = kind or wire.train_type(request.step)
        reply = self.ask(kind, content)
        with AuditLog(self.log) as log:
            log.record(self.request(kind, content), reply)
        return refusal_in(reply)


def request(study: Study, arm: str, step: str = "train", exchange: int = 1) -> TrainRequest:
    """With other parameters at every place in the round."""
    model = torch.full((DIM,), 0.1 * exchange)
    return TrainRequest(study, arm, 1, model, None, "r", {}, step=step, exchange=exchange)


@pytest.mark.parametrize("promised", [False, True], ids=["plain", "private"])
def test_no_answer_is_given_whose_round_the_log_would_not_know(
    tmp_path: Path, promised: bool
) -> None:
    privacy = {"epsilon": 3.0, "learning_rate": 1.0} if promised else None
    site = Peer(tmp_path, make_study(privacy=privacy))
    for number in ("1", 1.0, True):
        said = site.why_not(request(site.study, "fedavg"), header={"round": number})
        assert "WireError" in said, number
    assert site.why_not(request(site.study, "fedavg"), header={"round": 1}) == ""


@pytest.mark.parametrize("kind", ["train.gradient", "train.sealed_distance", "train.check"])
def test_a_step_is_answered_to_a_message_of_its_own_type(tmp_path: Path, kind: str) -> None:
    site = Peer(tmp_path, make_study(privacy={"epsilon": 3.0, "learning_rate": 1.0}))
    assert says(site.why_not(request(site.study, "fedavg"), kind), "asks", "'train'")


def test_where_patients_have_privacy_no_step_is_answered_but_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fedavg_ask_for_a_mean(monkeypatch)
    study = make_study(privacy={"epsilon": 3.0, "learning_rate": 1.0})
    site = Peer(tmp_path, study)
    assert says(site.why_not(request(study, "fedavg", "mean")), "'mean'", "answers")
    with closing(Records.of(site.site)) as ledger:
        assert ledger.privacy.spent(dataset_of(site.site)).in_all == 0
    assert site.why_not(request(study, "fedavg", exchange=2)) == ""
    (tmp_path / "plain").mkdir()
    plain = make_study()
    assert Peer(tmp_path / "plain", plain).why_not(request(plain, "fedavg", "mean")) == ""


def test_what_was_answered_is_found_again_in_the_log(tmp_path: Path) -> None:
    site = Peer(tmp_path, make_study(privacy={"epsilon": 3.0, "learning_rate": 1.0}))
    assert site.why_not(request(site.study, "fedavg")) == ""
    log, dataset = site.log / "sent.jsonl", dataset_of(site.site)
    found = recover(Records(tmp_path / "book", "b"), "c", dataset, log)
    assert (found.answers, found.releases) == (1, 1)


def test_a_gradient_of_all_patients_is_given_once_a_round(tmp_path: Path) -> None:
    """At each of 32 places of a round it was given at other parameters."""
    study = make_study(arms={"fedlin": {}})
    site = Peer(tmp_path, study)
    asked = [request(study, "fedlin", "gradient", place) for place in (1, 2, 3, 32)]
    said = [site.why_not(each) for each in asked]
    assert said[0] == ""
    assert all(says(words, "gradient", "round") for words in said[1:])
    assert site.why_not(asked[0]) == ""  # the same question


def test_a_book_that_was_lost_gives_no_other_place_in_the_round(tmp_path: Path) -> None:
    study = make_study(arms={"fedlin": {}})
    site = Peer(tmp_path, study)
    assert site.why_not(request(study, "fedlin", "gradient", 1)) == ""
    site.records.close()
    for file in site.site.consent_folder.glob(f"{FILE_NAME}*"):  # and what was written ahead
        file.unlink()
    site = Peer(tmp_path, study)
    log, dataset = site.log / "sent.jsonl", dataset_of(site.site)
    assert recover(site.records, "c", dataset, log).answers == 1
    assert says(site.why_not(request(study, "fedlin", "gradient", 1)), "start", "new")
    assert says(site.why_not(request(study, "fedlin", "gradient", 2)), "gradient", "round")


@pytest.mark.parametrize(
    ("keys", "one_more"),
    [({}, 0), ({"evaluation": {"folds": 2}}, 0), ({"selection": {"folds": 2}}, 1)],
    ids=["study", "fold", "trial"],
)
def test_only_a_trial_has_one_more(tmp_path: Path, keys: dict[str, object], one_more: int) -> None:
    study = make_study(rounds=2, **keys)
    site = Peer(tmp_path, study)
    if study.selection is not None:
        asked = next(trials(study, "fedavg"))[0]
    else:
        asked = next(iter(fold_studies(study)), study)
    models = [torch.full((DIM,), 0.1 * number) for number in (1, 2, 3, 4)]
    said = [
        site.why_not(TrainRequest(asked, "fedavg", number, model, None, "r", {}))
        for number, model in enumerate(models, start=1)
    ]
    answered = 2 + one_more
    assert said[:answered] == [""] * answered
    assert all(f"approved {answered} rounds" in words for words in said[answered:])


def test_an_arm_of_the_user_alone_has_no_update_of_anybody_else(tmp_path: Path) -> None:
    site = Peer(tmp_path, make_study())
    assert site.why_not(request(site.study, "fedavg")) == ""
    assert says(site.why_not(request(site.study, "local")), "local", "ask b")


MODEL = {"model": torch.zeros(DIM)}


@pytest.mark.parametrize(
    ("arm", "step", "sent", "enclosed", "values"),
    [
        ("gems", "check", None, {}, {}),
        ("gems", "check", None, MODEL, {}),  # before any training
        ("gems", "check", None, {"model": torch.zeros(1, DIM)}, {}),
        ("gems", "check", None, {"model": torch.zeros(DIM, dtype=torch.uint8)}, {}),
        ("fedamp", "train", torch.zeros(DIM), {"cloud": torch.zeros(1, DIM)}, {}),
        ("fedavg", "train", torch.tensor(0.0), {}, {}),
        ("fedavg", "train", torch.zeros(0, DIM), {}, {}),
        ("fedlin", "gradient", None, {}, {}),
        ("network_gems", "neurons", None, {}, {"hospitals": "x"}),
        ("network_gems", "neurons", None, {"x": torch.zeros(0, 3)}, {"hospitals": 2}),
        ("network_gems", "output", None, {}, {}),
    ],
)
def test_what_a_method_cannot_use_is_no_fault_of_the_program(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    arm: str,
    step: str,
    sent: torch.Tensor | None,
    enclosed: dict[str, torch.Tensor],
    values: dict[str, object],
) -> None:
    model = {"name": "mlp", "hidden": [4]} if arm == "network_gems" else {"name": "logistic"}
    study = make_study(arms={arm: {}}, model=model)
    asked = TrainRequest(study, arm, 1, sent, None, "r", enclosed, step, values=values)
    refused = Peer(tmp_path, study).why_not(asked)
    assert refused
    assert "unexpected" not in refused
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


def test_no_hospital_but_the_public_one_tunes(tmp_path: Path) -> None:
    study = make_study(hospitals=["a", "b", "c"], arms={"gems": {"public_hospital": "c"}})
    site = Peer(tmp_path, study)
    enclosed = {"model": torch.zeros(DIM)}
    asked = TrainRequest(study, "gems", 1, None, None, "r", enclosed, "tune", 3)
    assert says(site.why_not(asked), "hospital", "public")
