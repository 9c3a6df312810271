"""The sums that a hospital lets its update into, and the weights lowered until it does."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from erosion_common.sealed.coordinator import SKETCH_SLACK, check_sum
from erosion_common.sealed.masks import BUCKETS, sketch
from erosion_common.sealed.phases import SumRules
from tests.common.sealed.vectors import f32

RULES = SumRules()


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([0.3, 0.3, 0.3, 0.0], "3 hospitals"),
        ([0.4, 0.4, 1e-12, 1e-12], "2 hospitals"),
        ([0.2, 0.2, 0.2, 0.0199], "3 hospitals"),
        ([0.2, 0.2, 0.2, 5e-324], "3 hospitals"),
        ([0.4, 0.1, 0.1, 0.1], "has 0.667"),
        ([0.3, 0.3, 0.1, 0.1], "has 0.6"),
        ([0.5, 0.5, 0.5, 0.5], "add up"),
        ([-0.1, 0.2, 0.2, 0.2], "outside"),
        ([1.5, 0.2, 0.2, 0.2], "outside"),
        ([float("nan"), 0.2, 0.2, 0.2], "outside"),
        ([float("inf"), 0.2, 0.2, 0.2], "outside"),
        ([], "0 hospitals"),
        ([0.0], "0 hospitals"),
    ],
)
def test_a_sum_that_shows_too_much_has_a_reason(weights: list[float], reason: str) -> None:
    assert reason in str(RULES.problem_with(named(weights)))


def named(weights: Iterable[float]) -> dict[str, float]:
    return {f"h{place}": weight for place, weight in enumerate(weights)}


WEIGHTS = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 5e-324, 1e-300, 1e-12, 1e-6, 0.01, 0.1, 0.3, 0.5])
)


@given(
    st.lists(WEIGHTS, min_size=1, max_size=9),
    st.integers(3, 6),
    st.sampled_from([0.2, 0.34, 0.5]),
    st.integers(1, 5),
    st.data(),
)
def test_whoever_helps_the_coordinator_what_is_left_of_a_sum_is_as_the_rules_say(
    drawn: list[float], min_summed: int, share: float, helpers: int, data: st.DataObject
) -> None:
    """With k helpers: min_summed + 1 - k hospitals, none with above share / (1 - (k - 1) share).

    Counted are those with a tenth of the largest weight. Of the default's .5 nothing is said from
    two helpers on, as that would be all; of 1 / (k + 1) half is left.
    """
    rules = SumRules(min_summed, share)
    weights = [weight / max(1.0, sum(drawn)) for weight in drawn]
    if rules.problem_with(named(weights)):
        return
    helpers = min(helpers, len(weights))
    gone = data.draw(st.permutations(range(len(weights))))[:helpers]
    left = [weight for place, weight in enumerate(weights) if place not in gone]
    real = sum(weight >= 0.1 * max(weights) for weight in left)
    assert real >= min_summed + 1 - helpers
    if left and (bound := 1 - (helpers - 1) * share) > 0:
        assert max(left) <= share / bound * sum(left) * (1 + 1e-6)


def test_the_largest_weights_are_lowered_to_what_the_rules_allow() -> None:
    """Without b, a may have as much as the rest: .1 + .05."""
    assert list((RULES.capped(named([0.9, 0.2, 0.1, 0.05])) or {}).values()) == pytest.approx(
        [0.15, 0.15, 0.1, 0.05]
    )
    assert list((RULES.capped(named([0.5, 0.1, 0.1, 0.05])) or {}).values()) == pytest.approx(
        [0.15, 0.1, 0.1, 0.05]
    )
    unchanged = named([0.2, 0.2, 0.2, 0.2, 0.0])
    assert RULES.capped(unchanged) == unchanged
    assert RULES.capped(named([0.3, 0.3, 0.3, 0.0])) is None
    assert RULES.capped(named([0.3, 0.3, 0.3, 1e-12])) is None


@given(
    st.lists(WEIGHTS, min_size=3, max_size=10),
    st.sampled_from([0.34, 0.4, 0.5]),
)
def test_lowered_weights_may_be_summed_and_keep_their_order(
    drawn: list[float], largest_share: float
) -> None:
    rules = SumRules(largest_share=largest_share)
    weights = named(weight / max(1.0, sum(drawn)) for weight in drawn)
    capped = rules.capped(weights)
    if capped is None:
        assert rules.problem_with(weights) is not None
        return
    assert rules.problem_with(capped) is None
    assert all(capped[name] <= weights[name] for name in weights)
    lowered = [name for name in weights if capped[name] < weights[name]]
    kept = [capped[name] for name in weights if name not in lowered]
    assert all(capped[name] >= max(kept) * (1 - 1e-9) for name in lowered)


def test_no_honest_sum_fails_the_check_by_the_sketch_more_often_than_once_in_10_9() -> None:
    """Where all distances are of one direction, and so too short together."""
    assert chi2.cdf(BUCKETS / SKETCH_SLACK**2, BUCKETS) <= 1.001e-9
    dim, draws = 300, np.random.default_rng(0)
    own, apart = (f32(draws.normal(size=dim)) for _ in range(2))
    length = float(np.linalg.norm(apart))
    seeds = [number.to_bytes(32) for number in range(2000)]
    shares = np.array([np.square(sketch(apart, seed)).sum() for seed in seeds]) / length**2
    worst = float(shares.min()) ** 0.5
    assert shares.std() == pytest.approx((2 / BUCKETS) ** 0.5, rel=0.1)
    assert 1.01 / SKETCH_SLACK < worst < 0.9
    weights, own_norm = dict.fromkeys("abcd", 0.2), float(np.linalg.norm(own))
    claimed = dict.fromkeys("abcd", worst * length / own_norm)
    total = 0.8 * (own + apart)
    assert check_sum(total, own, weights, claimed, own_norm=own_norm, rounding=0).holds


def test_the_check_by_hand() -> None:
    """g_0 = (3, 4), g = (8, 4), (3, 9), (-3, -4) at 1, 1, 2, weights .25, .25, .8/3.6."""
    own = f32([3, 4])
    others = np.array([[8, 4], [3, 9], [-3, -4]])
    weights = {"a": 0.25, "b": 0.25, "c": 0.8 / 3.6}
    total = np.array(list(weights.values())) @ others
    check = check_sum(total, own, weights, {"a": 1, "b": 1, "c": 2}, own_norm=5, rounding=0)
    assert check.apart == pytest.approx(0.53432, abs=1e-5)
    assert check.at_most == pytest.approx(4.72222 * 1.001, abs=1e-4)
    assert check.holds
    lie = check_sum(total, own, weights, {"a": 0.1, "b": 0.1, "c": 0.1}, own_norm=5, rounding=0)
    assert not lie.holds
