"""A cohort's answers, in hand-sized vectors."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from erosion_common.aggregation.cohort import MemoryCohort, Update

small = st.floats(-100, 100, width=32)
vector = st.lists(small, min_size=3, max_size=3)


def update(agent: str, *delta: float) -> Update:
    return Update(agent, 1, torch.tensor(delta, dtype=torch.float32), 10, 10)


def cohort(own: Update, *others: Update) -> MemoryCohort:
    return MemoryCohort(own, {other.agent: other for other in others})


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


def test_the_gram_matrix_holds_all_inner_products() -> None:
    own, peer = update("own", 3.0, 4.0), update("peer", 1.0, -2.0)
    # 9 + 16 = 25; 3 - 8 = -5; 1 + 4 = 5
    assert cohort(own, peer).gram().tolist() == [[25.0, -5.0], [-5.0, 5.0]]


def test_a_weighted_sum_takes_the_users_own_weight_first() -> None:
    mixed = cohort(update("own", 1.0, 0.0), update("b", 0.0, 2.0), update("a", 4.0, 4.0))
    # 0.5 (1, 0) + 0.25 (4, 4) [a] + 2 (0, 2) [b] = (1.5, 5)
    total = mixed.weighted_sum(torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64))
    assert total.tolist() == [1.5, 5.0]
    assert total.dtype == torch.float32


def test_a_user_without_peers_has_no_distances() -> None:
    alone = cohort(update("own", 3.0, 4.0))
    assert alone.distances_to_own().shape == (0,)
    assert alone.norms().tolist() == [5.0]
    assert alone.gram().tolist() == [[25.0]]


def test_where_the_users_update_is_zero_only_another_zero_is_near() -> None:
    stuck = cohort(update("own", 0.0, 0.0), update("a", 0.0, 0.0), update("b", 1.0, 0.0))
    assert stuck.distances_to_own().tolist() == [0.0, math.inf]


def test_norms_do_not_overflow_in_float32() -> None:
    # (3e20)^2 is beyond float32, so the squares must be summed in float64.
    assert math.isclose(cohort(update("own", 3e20, 4e20)).norms().item(), 5e20, rel_tol=1e-6)


@given(own=vector, peers=st.lists(vector, min_size=1, max_size=4))
def test_distances_follow_from_the_gram_matrix(own: list[float], peers: list[list[float]]) -> None:
    mixed = cohort(update("own", *own), *(update(f"p{i}", *p) for i, p in enumerate(peers)))
    gram = mixed.gram()
    for i, distance in enumerate(mixed.distances_to_own().tolist(), start=1):
        # |d_i - d_0|^2 = <d_i, d_i> - 2 <d_i, d_0> + <d_0, d_0>
        squared = float(gram[i, i] - 2 * gram[i, 0] + gram[0, 0])
        if gram[0, 0] > 1e-6:
            expected = math.sqrt(max(0.0, squared) / float(gram[0, 0]))
            scale = 1 + math.sqrt(float(gram[i, i] / gram[0, 0]))
            assert math.isclose(distance, expected, abs_tol=1e-5 * scale)


@given(own=vector, peers=st.lists(vector, min_size=2, max_size=4))
def test_the_order_of_arrival_changes_nothing(own: list[float], peers: list[list[float]]) -> None:
    updates = [update(f"p{i}", *p) for i, p in enumerate(peers)]
    forward = cohort(update("own", *own), *updates)
    backward = cohort(update("own", *own), *reversed(updates))
    weights = torch.linspace(0.1, 1.0, len(peers) + 1, dtype=torch.float64)
    assert forward.peers == backward.peers
    assert torch.equal(forward.distances_to_own(), backward.distances_to_own())
    assert torch.equal(forward.weighted_sum(weights), backward.weighted_sum(weights))
