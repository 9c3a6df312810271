"""A site's limits hold for every local training of every method, whatever part it goes over."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_client.training.limits import check_limits
from erosion_common.algorithms import REGISTRY
from erosion_common.errors import Refusal
from erosion_common.learning import local_sgd, local_work
from erosion_common.learning.local_work import PatientCounts
from erosion_common.learning.training import Training
from erosion_common.study.study import Study
from tests.support.registry_cohorts import model_for
from tests.support.said import raises
from tests.support.small_study import TWO_NUMBERS, counts, make_site, make_study

# Hospital d is the one whose patients are public.
ARMS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in REGISTRY},
    "ball_gems": {"algorithm": "personal_gems", "balls": "user", "tuning_rounds": 1},
    "public_gems": {"algorithm": "gems", "public_hospital": "d"},
}
HALVED = {"evidence_erosion"}
HELD_OUT = {"gems", "public_gems", "ball_gems", "network_gems"}
HELD_OUT_BY_THE_USER = {"fedfomo", "model_averaging"}
GRADIENT = {"newton"}  # one step, which min_local_steps = 2 declines


@dataclass(frozen=True)
class Case:
    """Sites of so many training patients with these limits, and which arms they decline."""

    patients: int
    training: dict[str, Any]
    limits: dict[str, int]
    declined: set[str]


CASES = {
    "two steps on all patients, one on a part": Case(
        60, {"epochs": 1, "batch_size": 48}, {}, HALVED | HELD_OUT | HELD_OUT_BY_THE_USER | GRADIENT
    ),
    "too few patients for two parts": Case(16, {"steps": 2, "batch_size": 4}, {}, set()),
    "a few left over after the last batch": Case(
        51, {"epochs": 2, "batch_size": 16}, {"min_batch_size": 16}, GRADIENT
    ),
    "halves smaller than a batch must be": Case(
        60, {"steps": 3, "batch_size": 40}, {"min_batch_size": 40}, HALVED
    ),
    "a hospital smaller than a batch must be": Case(
        60, {"steps": 3, "batch_size": 64}, {"min_batch_size": 64}, set(ARMS)
    ),
    "a layer is retrained in three steps": Case(
        40, {"steps": 5, "batch_size": 8}, {"min_local_steps": 4}, {"network_gems"}
    ),
}
OF_ALL = "two steps on all patients, one on a part"
UNLIKE = sorted(HALVED | HELD_OUT | HELD_OUT_BY_THE_USER | {"fedavg", "apfl", "ditto", "local"})
LOGISTIC, NETWORK = {"name": "logistic"}, {"name": "mlp", "hidden": [8, 8]}
LIMITS = {"min_cell": 10, "min_local_steps": 2, "min_batch_size": 2}


def table(name: str, num_training: int) -> str:
    draws = np.random.default_rng(ord(name)).normal(size=(num_training + 20, 2))
    lines = [
        f"{age:.4f},{dose:.4f},{'train' if row < num_training else 'test'},{'yn'[row % 2]}"
        for row, (age, dose) in enumerate(draws)
    ]
    return "\n".join(["age,dose,part,ill", *lines]) + "\n"


def study_of(arms: list[str], training: dict[str, Any]) -> Study:
    """Methods that have the same model."""
    network = arms == ["network_gems"]
    return make_study(
        hospitals=["a", "b", "c", "d"],
        rounds=1,
        task={**TWO_NUMBERS, "classes": ["n", "y"]},
        training={"learning_rate": 0.1, **training},
        arms={arm: ARMS[arm] for arm in arms},
        scaling="local",
        model=NETWORK if network else model_for(ARMS[arms[0]]["algorithm"]),
        evaluation={"split_column": "part", "bootstrap": 100},
    )


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Of every local training since: how many patients, and how many in each mini-batch."""
    seen: list[tuple[int, list[int]]] = []
    drawn = local_sgd.mini_batches

    def watched(
        num_samples: int,
        training: Training,
        generator: torch.Generator,
        round_number: int = 1,
        smallest: int = 1,
    ) -> Iterator[torch.Tensor]:
        batches = list(drawn(num_samples, training, generator, round_number, smallest))
        seen.append((num_samples, [len(batch) for batch in batches]))
        return iter(batches)

    for module in (local_sgd, local_work):
        monkeypatch.setattr(module, "mini_batches", watched)
    return seen


def declines(hospital: Hospital, study: Study) -> bool:
    try:
        hospital.describe(study)
    except Refusal:
        return True
    return False


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_local_training_is_within_the_limits_or_declined(
    tmp_path: Path, case: Case, trainings: list[tuple[int, list[int]]]
) -> None:
    limits = {**LIMITS, **case.limits}
    hospitals = {
        name: Hospital(
            make_site(
                tmp_path, table(name, case.patients), name=name, file=f"{name}.csv", limits=limits
            )
        )
        for name in "abcd"
    }
    allowed: dict[str, list[str]] = {}  # by what keeps methods out of one study
    for arm in ARMS if case is CASES[OF_ALL] else UNLIKE:
        study = study_of([arm], case.training)
        assert declines(hospitals["a"], study) == (arm in case.declined), arm
        by_peer = arm in case.declined - HELD_OUT_BY_THE_USER and not study.arms[arm].user_only
        if len(case.declined) < len(ARMS):
            assert declines(hospitals["b"], study) == by_peer, arm
        if arm not in case.declined:
            allowed.setdefault(f"{study.model} {arm in HALVED}", []).append(arm)
    for arms in allowed.values():
        trainings.clear()  # of layers that are warmed up
        simulate(study_of(arms, case.training), hospitals, clock=timeless)
        assert len(trainings) >= len(arms)
        # Halves of less than a cell are told of in means alone.
        fewest = 1 if HALVED & {*arms} else limits["min_cell"]
        for num_patients, batches in trainings:
            assert num_patients >= fewest, arms
            assert len(batches) >= limits["min_local_steps"], arms
            assert min(batches) >= limits["min_batch_size"], arms


def test_the_public_hospitals_tuning_is_within_its_limits(tmp_path: Path) -> None:
    public = {"algorithm": "gems", "public_hospital": "d", "tuning_epochs": 1}
    study = make_study(arms={"gems": public}, hospitals=["a", "b", "d"])
    for name, declined in {"b": False, "d": True}.items():
        site = make_site(tmp_path, name=name, limits={"min_local_steps": 3})
        if declined:
            with raises(Refusal, "1", "32"):
                check_limits(site, study, counts(60))
        else:
            check_limits(site, study, counts(60))


@pytest.mark.parametrize("algorithm", ["gems", "network_gems"])
def test_a_public_hospital_only_tunes(tmp_path: Path, algorithm: str) -> None:
    network = {"name": "mlp", "hidden": [8]}
    study = make_study(
        arms={algorithm: {"public_hospital": "d"}},
        hospitals=["a", "b", "d"],
        model=network if algorithm == "network_gems" else LOGISTIC,
        training={"epochs": 1, "batch_size": 48},  # one batch of those not held out
    )
    sites = {name: make_site(tmp_path, name=name, limits={"min_local_steps": 2}) for name in "abd"}
    check_limits(sites["d"], study, counts(60))
    for declined in (study, study.for_user("d")):
        for name in sorted({"b", declined.user}):
            with raises(Refusal, algorithm, "1", "48"):
                check_limits(sites[name], declined, counts(60))


def test_of_patients_with_many_rows_a_half_may_be_those_with_the_fewest(tmp_path: Path) -> None:
    study = make_study(training={"epochs": 1, "batch_size": 30}, arms=["evidence_erosion"])
    site = make_site(tmp_path, name="b")
    check_limits(site, study, counts(60, 2))  # halves of 60 rows
    uneven = PatientCounts((1,) * 30 + (3,) * 30, (60,), 60)  # as many rows in all
    with raises(Refusal, "limits.min_local_steps"):
        check_limits(site, study, uneven)
