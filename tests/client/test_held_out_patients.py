"""Patients whom a method sets aside at a hospital: neither they nor the others are a few."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.gems.balls import directions
from erosion_common.learning.local_sgd import round_generator
from erosion_common.learning.local_work import hold_out, num_left
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.study.study import Study
from tests.support.small_study import make_site, make_study

CELL = 10
ONE_BY_ONE = [f"{30 + number},f,0" for number in range(40)]
TABLE = "\n".join(["age,sex,ill", *ONE_BY_ONE]) + "\n"  # of one class


def study_of(share: float) -> Study:
    return make_study(
        hospitals=["a", "b", "c"],
        arms={"gems": {"validation_share": share}},
        training={"steps": 2, "batch_size": 40, "learning_rate": 0.01},
    )


def peer(folder: Path) -> Hospital:
    return Hospital(
        make_site(folder, TABLE, name="b", file="b.csv", limits={"min_cell": CELL}),
        secret=b"a site's own",
    )


def request(study: Study, step: str, exchange: int, model: torch.Tensor) -> TrainRequest:
    return TrainRequest(
        study=study,
        arm="gems",
        round=1,
        sent=model if step == "train" else None,
        scaling=None,
        enclosed={} if step == "train" else {"model": model},
        step=step,
        exchange=exchange,
    )


def mean_age_by_gradient(folder: Path, share: float) -> float:
    """Of those trained on: the gradient of a logistic regression at zero is a mean over them."""
    result = peer(folder).train(request(study_of(share), "train", 1, torch.zeros(6)))
    of_age, _, _, _, bias, _ = result.delta.double().tolist()
    return float(of_age / bias)


def num_told_apart(folder: Path, share: float) -> int:
    """Of those held out, by models that call everybody below an age healthy."""
    hospital, study = peer(folder), study_of(share)
    hospital.answer(request(study, "train", 1, torch.zeros(6)))
    found = set()
    for number, age in enumerate(range(29, 71), start=2):
        model = torch.tensor([-1.0, 0.0, 1.0, 0.0, age + 0.5, -age - 0.5])
        answer = hospital.answer(request(study, "check", number, model))
        assert isinstance(answer, StepResult)
        found.add(answer.header.values["accuracy"])
    return len(found) - 1


@pytest.mark.parametrize("share", [0.01, 0.03, 0.25, 0.99])
def test_a_model_is_measured_on_a_cell_of_patients_at_least(tmp_path: Path, share: float) -> None:
    assert num_told_apart(tmp_path, share) >= CELL


def test_no_share_leaves_one_patient_to_train_on(tmp_path: Path) -> None:
    age = mean_age_by_gradient(tmp_path, 0.99)
    assert min(abs(age - one) for one in range(30, 70)) > 0.01


@pytest.mark.parametrize("epsilon", [1.0, 0.9, 0.5])
def test_no_figure_of_a_ball_is_one_patients(tmp_path: Path, epsilon: float) -> None:
    random = torch.Generator().manual_seed(5)
    ages = (60 + 12 * torch.randn(120, generator=random)).round(decimals=3)
    ill = ages + 10 * torch.randn(120, generator=random) > 60
    rows = [f"{age:.3f},{int(is_ill)}" for age, is_ill in zip(ages.tolist(), ill, strict=True)]
    limits = {"min_cell": CELL}
    secret = b"a site's own"
    hospital = Hospital(
        make_site(tmp_path, "\n".join(["age,ill", *rows]), name="b", file="b.csv", limits=limits),
        secret=secret,
    )
    options = {"epsilon": epsilon, "epsilon_of": "own_accuracy", "directions": 1}
    study = make_study(
        task={"kind": "tabular", "target": "ill", "classes": ["0", "1"], "features": ["age"]},
        hospitals=["a", "b", "c"],
        arms={"gems": {"validation_share": 0.5, **options}},
        training={"steps": 2, "batch_size": 16, "learning_rate": 1e-9},
    )
    result = hospital.train(request(study, "train", 1, torch.tensor([-1.0, 1.0, 60.0, -60.0])))
    assert isinstance(result, TrainResult)
    ball = result.attachments["ball"].double()

    margins = (2 * (ages - 60).abs()).double()
    in_any_direction = margins / (2 * (ages.double().square() + 1)).sqrt()
    (z,) = directions(1, 4, round_generator(study.seed, "b", 1, secret)).double()
    falls = ((z[0] - z[1]) * ages + z[2] - z[3]) * (1 - 2 * (ages < 60).double())
    along_it = (margins / falls)[falls > 0]
    of_one = torch.cat([in_any_direction, along_it])
    assert float((of_one / ball[:, None] - 1).abs().min()) > 1e-5
    assert (float(ball[0]) > 0) == (epsilon == 0.5)  # else fewer than a cell may be lost


@pytest.mark.parametrize("sizes", [(40,), (30, 27), (70, 12, 9), (200, 3, 1)])
def test_parts_by_two_shares_are_the_same_or_differ_in_a_cell(sizes: tuple[int, ...]) -> None:
    strata = torch.cat([torch.full((size,), number) for number, size in enumerate(sizes)])
    parts = []
    for percent in range(1, 100):
        rest, held_out = hold_out(
            strata, percent / 100, torch.Generator().manual_seed(1), None, CELL
        )
        assert min(len(rest), len(held_out)) >= CELL
        assert len(rest) == num_left(sizes, percent / 100, CELL)
        parts.append(set(held_out.tolist()))
    distinct = {frozenset(part) for part in parts}
    assert len(distinct) > 1
    for one, other in pairwise(sorted(distinct, key=len)):
        assert len(one ^ other) >= CELL


def test_where_there_are_too_few_for_two_parts_both_are_all() -> None:
    strata = torch.zeros(19, dtype=torch.int64)
    rest, held_out = hold_out(strata, 0.25, torch.Generator(), None, CELL)
    assert rest.tolist() == held_out.tolist() == list(range(19))
    assert num_left([19], 0.25, CELL) == 19
