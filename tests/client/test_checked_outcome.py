"""A mistake of a method of one's own at a site is told before anything leaves."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.errors import Refusal
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork
from erosion_common.protocol.messages import TrainRequest
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study, twenty_patients

DIM = 6
RIGHT = LocalOutcome(torch.zeros(DIM), 1)


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, gives: Any, **arm: Any) -> Any:
    monkeypatch.setattr(FedAvg, "train", lambda _arm, _work: gives)
    study = make_study(arms={"fedavg": arm, "local": {}})
    hospital = Hospital(make_site(folder, twenty_patients()))
    hospital.describe(study)
    return hospital.train(TrainRequest(study, "fedavg", 1, torch.zeros(DIM), None))


def test_what_is_as_it_should_be_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(tmp_path, monkeypatch, RIGHT).delta.tolist() == [0.0] * DIM


@pytest.mark.parametrize("arm", [{}, {"own_parameters": ["output_bias"]}])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delta": torch.ones(1)}, "`delta` has the shape (1,)…(6,)"),
        ({"delta": torch.ones(DIM).double()}, "torch.float64"),
        ({"delta": None}, "`delta` is a NoneType"),
        ({"delta": torch.ones(DIM, requires_grad=True)}, "detach"),
        ({"samples_seen": 2.0}, "`samples_seen` is 2.0"),
        ({"samples_seen": torch.tensor(2)}, "`samples_seen` is tensor(2)"),
        ({"samples_seen": 0}, "`samples_seen` is 0"),
        ({"steps": 0}, "`steps` is 0"),
        ({"attachments": {"bias": 1.0}}, "'bias' of `attachments` is…float"),
        ({"keep": [torch.ones(1)]}, "`keep` is a list"),
        ({"keep": {1: torch.ones(1)}}, "of `keep` is a int"),
        ({"keep": {"a": torch.ones(1, requires_grad=True)}}, "'a' of `keep`…detach"),
    ],
)
def test_a_wrong_outcome_is_told_in_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: Mapping[str, Any],
    arm: Mapping[str, Any],
    said: str,
) -> None:
    with raises(Refusal, said) as problem:
        trained(tmp_path, monkeypatch, replace(RIGHT, **changes), **arm)
    assert says(str(problem.value), "fedavg", "'train'", "round 1")


@pytest.mark.parametrize("gives", [None, torch.zeros(DIM), LocalAnswer()])
def test_no_outcome_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: Any) -> None:
    with raises(Refusal, f"{type(gives).__name__}", "LocalOutcome"):
        trained(tmp_path, monkeypatch, gives)


@pytest.mark.parametrize("what", ["received", "inputs", "targets"])
def test_inputs_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def changing(_arm: FedAvg, work: LocalWork) -> LocalOutcome:
        getattr(work, what).add_(1)
        return RIGHT

    monkeypatch.setattr(FedAvg, "train", changing)
    study = make_study(arms={"fedavg": {}, "local": {}})
    hospital = Hospital(make_site(tmp_path, twenty_patients()))
    with raises(Refusal, "changed", f"work.{what}"):
        hospital.train(TrainRequest(study, "fedavg", 1, torch.zeros(DIM), None))
