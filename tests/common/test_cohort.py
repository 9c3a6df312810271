"""A cohort's answers, in hand-sized vectors."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from erosion_common.aggregation import vectors
from erosion_common.aggregation.cohort import DiskCohort, MemoryCohort, Update, store
from erosion_common.algorithms import REGISTRY
from tests.support.close import assert_close
from tests.support.contexts import CONTEXT
from tests.support.disk_memory import measure
from tests.support.hand_sized import cohort, update
from tests.support.refusals import refused


def test_the_user_comes_first_and_the_peers_by_name() -> None:
    mixed = cohort(update("m", 1.0), update("z", 2.0), update("a", 3.0))
    assert mixed.peers == ("a", "z")
    assert [u.agent for u in mixed.updates] == ["m", "a", "z"]


def test_distances_are_relative_to_the_users_own_norm() -> None:
    own = update("own", 3.0, 4.0)  # |d_0| = 5
    same = update("same", 3.0, 4.0)  # |(0, 0)| / 5 = 0
    still = update("still", 0.0, 0.0)  # |(-3, -4)| / 5 = 1
    across = update("across", -3.0, 4.0)  # |(-6, 0)| / 5 = 1.2
    distances = cohort(own, same, still, across).distances_to_own()
    assert distances.tolist() == [1.2, 0.0, 1.0]  # across, same, still
    assert distances.dtype == torch.float64


def test_a_user_without_peers_has_no_distances() -> None:
    alone = cohort(update("own", 3.0, 4.0))
    assert alone.distances_to_own().shape == (0,)
    assert alone.norms().tolist() == [5.0]
    assert alone.gram().tolist() == [[25.0]]


def test_where_the_users_update_is_zero_only_another_zero_is_near() -> None:
    stuck = cohort(update("own", 0.0, 0.0), update("a", 0.0, 0.0), update("b", 1.0, 0.0))
    assert stuck.distances_to_own().tolist() == [0.0, math.inf]


# -- Block by block: accuracy against float64 at the size of a real model, and equal  ------------

DIM = 11_181_642  # torchvision's resnet18 with ten classes


def as_cohort(*deltas: Tensor) -> MemoryCohort:
    updates = [Update(f"h{i}", 1, delta, 10, 10) for i, delta in enumerate(deltas)]
    return MemoryCohort(updates[0], {u.agent: u for u in updates[1:]})


def distance_in_float64(left: Tensor, right: Tensor) -> float:
    total = 0.0
    for a, b in zip(torch.split(left, 1 << 20), torch.split(right, 1 << 20), strict=True):
        total += float((a.double() - b.double()).square().sum())
    return math.sqrt(total)


@pytest.mark.parametrize("apart", [1.0, 1e-4])
def test_distances_of_large_models_are_true_to_a_millionth(apart: float) -> None:
    random = torch.Generator().manual_seed(1)
    own = torch.randn(DIM, generator=random) + 3.0  # a mean, so that sums grow large
    peer = own + apart * torch.randn(DIM, generator=random)
    [measured] = as_cohort(own, peer).distances_to_own().tolist()
    expected = distance_in_float64(peer, own) / distance_in_float64(own, torch.zeros(DIM))
    assert math.isclose(measured, expected, rel_tol=1e-6)


@pytest.mark.parametrize("dim", [1, 5, 200_003])
def test_the_answers_are_those_of_whole_vectors(dim: int) -> None:
    deltas = [torch.randn(dim, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    hospitals = as_cohort(*deltas)
    whole = torch.stack(deltas).double()
    assert_close(hospitals.gram(), whole @ whole.T)
    assert_close(hospitals.norms(), whole.norm(dim=1), rtol=1e-6, atol=0)
    weights = torch.tensor([0.5, 0.0, 0.25, 2.0, -1.0], dtype=torch.float64)
    assert_close(hospitals.weighted_sum(weights).double(), weights @ whole, rtol=1e-4, atol=1e-5)
    centre = torch.ones(dim)
    assert_close(
        vectors.distances_to(centre, hospitals.blocks()), (whole - 1).norm(dim=1), rtol=1e-6, atol=0
    )


def test_a_small_distance_between_long_vectors_survives_in_the_gram_matrix() -> None:
    random = torch.Generator().manual_seed(2)
    own = 1000 + torch.randn(100_000, generator=random)
    near = own + 0.01 * torch.randn(100_000, generator=random)
    gram = as_cohort(own, near).gram()
    squared = float(gram[0, 0] + gram[1, 1] - 2 * gram[0, 1])
    assert math.isclose(math.sqrt(squared), distance_in_float64(own, near), rel_tol=1e-3)


def test_values_whose_squares_overflow_float32_have_a_distance() -> None:
    [measured] = as_cohort(torch.tensor([3e20, 0.0]), torch.tensor([0.0, 4e20])).distances_to_own()
    assert math.isclose(measured, 5 / 3, rel_tol=1e-6)


def test_a_weight_too_few_is_noticed() -> None:
    with refused(ValueError, 1, 2):
        as_cohort(torch.ones(2), torch.ones(2)).weighted_sum(torch.ones(1))


def test_finite_values_whose_sum_is_too_large_for_float32_are_finite() -> None:
    assert vectors.is_finite(torch.tensor([3e38, 3e38]))
    assert vectors.is_finite(torch.tensor([3e38, 3e38, -3e38, -3e38]))
    for bad in (float("inf"), float("-inf"), float("nan")):
        assert not vectors.is_finite(torch.tensor([3e38, bad, 3e38]))
    assert not vectors.is_finite(torch.tensor([float("inf"), float("-inf")]))


# -- Updates on disk: the same answers as in memory, and memory that does not grow ---------------


def updates(
    dim: int, num_hospitals: int = 5, attachment_sizes: Mapping[str, int] | None = None
) -> list[Update]:
    return [
        Update(
            f"h{i}",
            1,
            1 + torch.randn(dim, generator=torch.Generator().manual_seed(i)),
            num_samples=10 + i,
            samples_seen=10,
            attachments={
                name: torch.full((size,), 1.0 + i)
                for name, size in (attachment_sizes or {}).items()
            },
        )
        for i in range(num_hospitals)
    ]


def both(
    folder: Path, dim: int, attachment_sizes: Mapping[str, int] | None = None
) -> tuple[MemoryCohort, DiskCohort]:
    own, *others = updates(dim, attachment_sizes=attachment_sizes)
    stored_own, *stored = (store(folder, update) for update in (own, *others))
    return (
        MemoryCohort(own, {u.agent: u for u in others}),
        DiskCohort(stored_own, {u.agent: u for u in stored}, folder),
    )


@pytest.mark.parametrize("dim", [1, 7, 1_000_003])
def test_every_answer_is_that_of_memory(tmp_path: Path, dim: int) -> None:
    memory, disk = both(tmp_path, dim)
    weights = torch.tensor([1.0, 0.0, 0.5, -2.0, 0.25], dtype=torch.float64)
    assert disk.peers == memory.peers
    assert disk.own_norm() == memory.own_norm()
    assert torch.equal(disk.norms(), memory.norms())
    assert torch.equal(disk.distances_to_own(), memory.distances_to_own())
    assert torch.equal(disk.gram(), memory.gram())
    assert torch.equal(disk.weighted_sum(weights), memory.weighted_sum(weights))
    for (here, rows), (there, others) in zip(disk.blocks(), memory.blocks(), strict=True):
        assert here == there
        assert all(map(torch.equal, rows, others))


def test_every_method_works_from_disk(tmp_path: Path) -> None:
    for name, kind in REGISTRY.items():
        arm = kind(algorithm=name)
        algorithm = arm.build(CONTEXT)
        memory, disk = both(tmp_path, 50, arm.attachment_sizes(50))
        in_memory = algorithm.update(algorithm.init(50), memory)
        from_disk = algorithm.update(algorithm.init(50), disk)
        assert torch.equal(in_memory.delta, from_disk.delta), name
        assert in_memory.weights == from_disk.weights, name


def test_a_methods_state_outlives_the_rounds_files(tmp_path: Path) -> None:
    for name in ("weighted_gradient", "bias_correction", "centered_clipping"):
        algorithm = REGISTRY[name](algorithm=name).build(CONTEXT)
        memory, disk = both(tmp_path, 20)
        expected = algorithm.update(algorithm.init(20), memory).state
        state = algorithm.update(algorithm.init(20), disk).state
        for file in tmp_path.iterdir():  # as the next round's updates would
            file.write_bytes(bytes(file.stat().st_size))
        again = [algorithm.update(s, memory).delta for s in (expected, state)]
        assert torch.equal(again[0], again[1]), name


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    _, disk = both(tmp_path, 10)
    (tmp_path / "h3.f32").write_bytes(b"1234")
    with refused(OSError, "h3.f32", 10):
        disk.gram()


def test_memory_stays_below_four_models_whatever_the_number_of_hospitals(tmp_path: Path) -> None:
    few, many = measure("weight_erosion", (4, 48), 1_500_000, tmp_path)
    assert many < 4
    assert 0 <= many - few < 0.5
