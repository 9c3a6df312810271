"""Block by block: accuracy against float64 at the size of a real model, and equal answers."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from erosion_common.aggregation import vectors
from erosion_common.aggregation.cohort import MemoryCohort, Update
from tests.support.refusals import refused

DIM = 11_181_642  # torchvision's resnet18 with ten classes


def as_cohort(*deltas: Tensor) -> MemoryCohort:
    updates = [Update(f"h{i}", 1, delta, 10, 10) for i, delta in enumerate(deltas)]
    return MemoryCohort(updates[0], {u.agent: u for u in updates[1:]})


def distance_in_float64(left: Tensor, right: Tensor) -> float:
    total = 0.0
    for a, b in zip(torch.split(left, 1 << 20), torch.split(right, 1 << 20), strict=True):
        total += float((a.double() - b.double()).square().sum())
    return math.sqrt(total)


@pytest.mark.parametrize("apart", [1.0, 1e-3, 1e-4])
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
    torch.testing.assert_close(hospitals.gram(), whole @ whole.T)
    torch.testing.assert_close(hospitals.norms(), whole.norm(dim=1), rtol=1e-6, atol=0)
    weights = torch.tensor([0.5, 0.0, 0.25, 2.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(
        hospitals.weighted_sum(weights).double(), weights @ whole, rtol=1e-4, atol=1e-5
    )
    centre = torch.ones(dim)
    torch.testing.assert_close(
        vectors.distances_to(centre, hospitals.blocks()),
        (whole - 1).norm(dim=1),
        rtol=1e-6,
        atol=0,
    )


def test_blocks_cover_every_value_once_and_in_order() -> None:
    hospitals = as_cohort(*(torch.arange(300_000.0) + i for i in range(3)))
    parts = [(place, [row.clone() for row in rows]) for place, rows in hospitals.blocks()]
    assert parts[0][0].start == 0
    assert all(a.stop == b.start for (a, _), (b, _) in pairwise(parts))
    for i, update in enumerate(hospitals.updates):
        assert torch.equal(torch.cat([rows[i] for _, rows in parts]), update.delta)


@pytest.mark.parametrize("num_vectors", [1, 10, 65, 1000])
@pytest.mark.parametrize("dim", [5_000_000, 11_181_642, 100_000_000])
def test_a_block_of_all_vectors_is_at_most_half_of_one(dim: int, num_vectors: int) -> None:
    widths = {place.stop - place.start for place in vectors.block_places(dim, num_vectors)}
    assert max(widths) * num_vectors <= dim / 2


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


def test_without_any_weight_the_sum_is_zero() -> None:
    total = as_cohort(torch.ones(2), torch.ones(2)).weighted_sum(torch.zeros(2))
    assert total.tolist() == [0.0, 0.0]


def test_finite_values_whose_sum_is_too_large_for_float32_are_finite() -> None:
    assert vectors.is_finite(torch.tensor([3e38, 3e38]))
    assert vectors.is_finite(torch.tensor([3e38, 3e38, -3e38, -3e38]))
    for bad in (float("inf"), float("-inf"), float("nan")):
        assert not vectors.is_finite(torch.tensor([3e38, bad, 3e38]))
    assert not vectors.is_finite(torch.tensor([float("inf"), float("-inf")]))
