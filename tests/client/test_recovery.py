"""A book of answers that was restored is held against the log of what was sent."""

import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from erosion_client.audit.audit_log import AuditLog
from erosion_client.consent.approvals import decide, entry_of
from erosion_client.consent.consent import Consent
from erosion_client.records.account import dataset_of
from erosion_client.records.answers import Answer
from erosion_client.records.records import FILE_NAME, Records
from erosion_client.records.recovery import recover
from erosion_client.training.limits import needs_of
from erosion_common.errors import Refusal
from erosion_common.protocol import wire
from erosion_common.protocol.messages import StepReply, StepResult, TrainRequest
from erosion_common.rounds.selection import (
    SelectedSettings,
    candidates,
    chosen,
    fold_studies,
    trials,
)
from erosion_common.study.study import Study
from tests.support.said import raises
from tests.support.sent_logs import long_log
from tests.support.small_study import make_site, make_study

DIGEST = make_study().digest
ARMS = ("fedavg", "local")


def answer(number: int) -> Answer:
    return Answer(DIGEST, "run-7", DIGEST, "fedavg", number, "train")


def noted(folder: Path, numbers: range) -> Records:
    records = Records(folder / "state", "b")
    for number in numbers:
        records.answers.note(("c", "d"), answer(number), f"hash {number}")
    return records


def test_what_the_log_alone_has_is_used_up_and_not_answered_again(tmp_path: Path) -> None:
    long_log(tmp_path, 5)
    records = noted(tmp_path, range(1, 6))
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 0
    assert records.log_was_read_to(tmp_path / "sent.jsonl") == 5
    records.close()
    file = tmp_path / "state" / FILE_NAME
    shutil.copy(file, tmp_path / "backup")
    long_log(tmp_path, 9)  # rounds 1 to 9 again: the log has fourteen lines
    shutil.copy(tmp_path / "backup", file)
    records = Records(tmp_path / "state", "b")
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 4
    assert records.answers.used(("c", "d")).rounds == 9
    assert [
        records.answers.is_recovered(("c", "d"), answer(number)) for number in (5, 6, 9, 10)
    ] == [False, True, True, False]
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 0
    assert records.answers.used(("c", "d")).rounds == 9


def neurons(place: int) -> Answer:
    return Answer(DIGEST, "run-7", DIGEST, "network_gems", 1, f"neurons ({place})")


def neurons_sent(folder: Path, places: tuple[int, ...]) -> Path:
    """A log of one step at these places of a round."""
    header = StepReply(hospital="b", arm="network_gems", round=1, step="neurons", seconds=0.1)
    with AuditLog(folder) as log:
        for place in places:
            asked = TrainRequest(
                make_study(), "network_gems", 1, None, None, "run-7", {}, "neurons", place
            )
            message = Message(wire.encode_train(asked), 1, wire.train_type("neurons"))
            result = StepResult(header, {"neurons": torch.zeros(2, 3)})
            log.record(message, Message(wire.encode_result(result), reply_to=message))
        return log.path


def test_of_a_step_that_is_asked_for_twice_a_round_the_book_may_have_one(tmp_path: Path) -> None:
    path = neurons_sent(tmp_path, (1, 2))
    records = Records(tmp_path / "state", "b")
    records.answers.note(("c", "d"), neurons(1), "hash")
    assert recover(records, "c", "d", path).answers == 1
    assert not records.answers.is_recovered(("c", "d"), neurons(1))
    assert records.answers.is_recovered(("c", "d"), neurons(2))
    assert records.answers.steps(("c", "d"), neurons(3)) == ["neurons (1)", "neurons (2)"]


def test_without_the_book_the_log_keeps_the_budgets(tmp_path: Path) -> None:
    long_log(tmp_path, 9)
    records = Records(tmp_path / "state", "b")
    assert recover(records, "c", "d", tmp_path / "sent.jsonl").answers == 9
    assert records.answers.used(("c", "d")).rounds == 9
    assert records.answers.runs(("c", "d"), DIGEST) == ["run-7"]
    assert records.answers.pairs() == [("c", "d")]


def test_another_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    long_log(tmp_path / "one", 9)
    long_log(tmp_path / "other", 3)
    records = Records(tmp_path / "state", "b")
    recover(records, "c", "d", tmp_path / "one" / "sent.jsonl")
    recover(records, "c", "d", tmp_path / "other" / "sent.jsonl")
    assert records.log_was_read_to(tmp_path / "other" / "sent.jsonl") == 3
    assert records.log_was_read_to(tmp_path / "one" / "sent.jsonl") == 9  # as a second kit has it


def variants_of(kind: str) -> tuple[Study, list[Study]]:
    """A study, and those that it leads to."""
    if kind == "every user":
        approved = make_study(user="all")
        return approved, [approved.for_user(user) for user in ("a", "b")]
    if kind == "folds":
        approved = make_study(evaluation={"folds": 2})
        return approved, [*fold_studies(approved), approved]
    approved = make_study(
        selection={"folds": 2, "candidates": {"fedavg": [{"weighting": "uniform"}]}}
    )
    picked = {arm: SelectedSettings(dict(candidates(approved, arm)[0]), 3, 0.1) for arm in ARMS}
    tried = [trial for arm in ARMS for folds in trials(approved, arm) for trial in folds]
    return approved, [*tried, chosen(approved, picked)]


def sent(folder: Path, studies: list[Study], runs: list[str]) -> Path:
    """A log of one answer about each study in each run."""
    header = StepReply(hospital="b", arm="fedavg", round=1, step="train", seconds=0.1)
    with AuditLog(folder) as log:
        for study, run in product(studies, runs):
            asked = TrainRequest(study, next(iter(study.arms)), 1, torch.zeros(6), None, run)
            message = Message(wire.encode_train(asked), 1, wire.train_type("train"))
            result = StepResult(header, {})
            log.record(message, Message(wire.encode_result(result), reply_to=message))
        return log.path


@pytest.mark.parametrize("kind", ["one user", "every user", "folds", "trials"])
def test_runs_of_the_log_count_for_the_study(tmp_path: Path, kind: str) -> None:
    approved, studies = variants_of(kind) if kind != "one user" else (make_study(), [make_study()])
    here = make_site(tmp_path, name="b", file="b.csv", budget={"runs_per_study": 5})
    records, dataset = Records(tmp_path / "state", "b"), dataset_of(here)
    decide(records, entry_of(approved, records), approve=True, by="somebody")
    most = 5 * needs_of(here, approved).runs  # for each of its users
    runs = [f"r{number}" for number in range(most)]
    recover(records, "c", dataset, sent(tmp_path, studies, runs))
    used = records.answers.used(("c", dataset))
    assert (used.studies, used.runs, used.rounds) == (1, most, most * len(studies))
    consent = Consent(here, records, "c")
    for study in studies:
        with raises(Refusal, f"{most} runs"):
            consent.authorise(
                TrainRequest(study, next(iter(study.arms)), 1, torch.zeros(6), None, "more")
            )


def test_runs_of_a_study_that_the_book_lacked_count_once_it_is_asked_for(tmp_path: Path) -> None:
    approved, studies = variants_of("every user")
    here = make_site(tmp_path, name="b", file="b.csv", budget={"runs_per_study": 5})
    records = Records(tmp_path / "state", "b")
    most = 5 * needs_of(here, approved).runs
    runs = [f"r{number}" for number in range(most)]
    recover(records, "c", dataset_of(here), sent(tmp_path, studies, runs))
    decide(records, entry_of(approved, records), approve=True, by="somebody")
    with raises(Refusal, f"{most} runs"):
        Consent(here, records, "c").authorise(
            TrainRequest(studies[0], "fedavg", 1, torch.zeros(6), None, "more")
        )
