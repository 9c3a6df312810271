"""Federated averaging and local training, by hand."""

import pytest
import torch

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.local import Local
from tests.support.contexts import CONTEXT


def three_hospitals() -> MemoryCohort:
    own = Update("own", 1, torch.tensor([1.0, 0.0]), num_samples=10, samples_seen=5)
    near = Update("near", 1, torch.tensor([2.0, 1.0]), num_samples=20, samples_seen=5)
    far = Update("far", 1, torch.tensor([-1.0, 4.0]), num_samples=70, samples_seen=5)
    return MemoryCohort(own, {"near": near, "far": far})


def test_fedavg_by_samples_counts_every_patient_once() -> None:
    algorithm = FedAvg(weighting="samples").build(CONTEXT)
    step = algorithm.update(algorithm.init(2), three_hospitals())
    # 0.1 (1, 0) + 0.2 (2, 1) + 0.7 (-1, 4) = (-0.2, 3)
    assert step.delta.tolist() == pytest.approx([-0.2, 3.0])
    assert step.weights == {"own": 1.0, "near": 2.0, "far": 7.0}  # relative to the user's own
    assert step.outcome == "done"


def test_fedavg_uniformly_counts_every_hospital_once() -> None:
    algorithm = FedAvg(weighting="uniform").build(CONTEXT)
    step = algorithm.update(algorithm.init(2), three_hospitals())
    # ((1, 0) + (2, 1) + (-1, 4)) / 3 = (2/3, 5/3)
    assert step.delta.tolist() == pytest.approx([2 / 3, 5 / 3])
    assert step.weights == {"own": 1.0, "near": 1.0, "far": 1.0}


def test_fedavg_with_an_absent_hospital_averages_the_others() -> None:
    full = three_hospitals()
    algorithm = FedAvg().build(CONTEXT)
    step = algorithm.update(
        algorithm.init(2), MemoryCohort(full.own, {"near": full.others["near"]})
    )
    # (10 (1, 0) + 20 (2, 1)) / 30 = (5/3, 2/3)
    assert step.delta.tolist() == pytest.approx([5 / 3, 2 / 3])


def test_fedavg_always_asks_everyone() -> None:
    algorithm = FedAvg().build(CONTEXT)
    assert algorithm.asks(algorithm.init(2), "near")


def test_local_training_keeps_to_the_users_own_update() -> None:
    algorithm = Local().build(CONTEXT)
    step = algorithm.update(algorithm.init(2), three_hospitals())
    assert step.delta.tolist() == [1.0, 0.0]
    assert step.weights == {"own": 1.0, "near": 0.0, "far": 0.0}


def test_local_training_asks_nobody() -> None:
    algorithm = Local().build(CONTEXT)
    assert not algorithm.asks(algorithm.init(2), "near")
