"""Equation 2 on balls in the plane, worked out by hand; distances that grow by hand, too."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from erosion_common.algorithms.gems.balls import LARGEST_RADIUS, Balls, balls, problem_with_radius
from erosion_common.algorithms.gems.meeting import Meeting, meet, meet_balls, meet_from_afar
from tests.support.refusals import refused

TRIANGLE = ((0.0, 0.0), (2.0, 0.0), (1.0, 3**0.5))


def in_the_plane(*given: tuple[float, float, float]) -> Balls:
    """Balls of (x, y, radius)."""
    numbers = torch.tensor(given, dtype=torch.float64)
    return balls(numbers[:, :2], numbers[:, 2])


@pytest.mark.parametrize(
    ("given", "point", "residual"),
    [
        pytest.param([(0, 0, 1), (3, 0, 2)], (1, 0), 0, id="touching"),
        pytest.param([(0, 0, 1), (4, 0, 1)], (2, 0), 2, id="apart: the middle, where it starts"),
        pytest.param([(0, 0, 1), (0.5, 0, 3)], (0.25, 0), 0, id="nested: the mean lies in both"),
        pytest.param([(0, 0, 1), (4, 0, 6)], (1, 0), 0, id="nested: down to the border"),
        pytest.param([(*c, 1.1548) for c in TRIANGLE], (1, 0.5774), 0, id="three with a point"),
        pytest.param([(*c, 1.1) for c in TRIANGLE], (1, 0.5774), 0.1641, id="three without one"),
        pytest.param([(0, 0, 1), (1, 0, 3), (6, 0, 2)], (2.3333, 0), 3, id="on a line"),
        pytest.param([(0, 0, 1.5), (2, 0, 1.5), (0, 2, 1.5)], (2 / 3, 2 / 3), 0, id="a corner"),
    ],
)
def test_the_point_and_what_it_misses(
    given: list[tuple[float, float, float]], point: tuple[float, float], residual: float
) -> None:
    found, meeting = meet_balls(in_the_plane(*given))
    torch.testing.assert_close(found, torch.tensor(point).double(), atol=0.011, rtol=0)
    assert meeting.residual == pytest.approx(residual, abs=1e-4)
    assert meeting.in_all == (residual == 0)


def test_where_the_loss_is_flat_any_point_of_the_gap_will_do() -> None:
    found, meeting = meet_balls(in_the_plane((0, 0, 1), (4, 0, 2)))
    assert 1 <= float(found[0]) <= 2
    assert meeting.residual == pytest.approx(1)


def test_a_mean_that_lies_in_all_balls_is_left_where_it_is() -> None:
    found, meeting = meet_balls(in_the_plane((0, 0, 1), (0.5, 0, 3)))
    assert meeting.steps == 0
    assert found.tolist() == [0.25, 0]


def test_balls_that_meet_in_pairs_need_not_have_a_point_in_common() -> None:
    three = in_the_plane(*[(*c, 1.1) for c in TRIANGLE])
    for pair in ((0, 1), (0, 2), (1, 2)):
        assert meet_balls(three.only(pair))[1].in_all
    assert not meet_balls(three)[1].in_all


def personal(hard: int | None) -> tuple[Tensor, Meeting]:
    three = in_the_plane((0, 0, 1), (3, 0, 1), (0, 3, 1))
    weights = torch.tensor([0.0, 1.0, 0.5])
    meeting = meet(three.centres @ three.centres.T, three.radii, weights=weights, hard=hard)
    return meeting.coefficients @ three.centres, meeting


def test_the_users_ball_is_never_left() -> None:
    point, meeting = personal(hard=0)
    torch.testing.assert_close(point, torch.tensor([0.9373, 0.3486]).double(), atol=1e-4, rtol=0)
    assert meeting.residual == pytest.approx(1.9981, abs=1e-4)
    assert float(point.norm()) <= 1 + 1e-9


def test_without_it_the_weights_decide() -> None:
    point, _ = personal(hard=None)
    assert float(point[0]) > float(point[1])


plane = st.tuples(*[st.floats(-5, 5, width=32)] * 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(plane, min_size=1, max_size=6), plane, st.floats(0, 2))
def test_a_point_in_all_balls_leaves_no_gap(
    centres: list[tuple[float, float]], common: tuple[float, float], more: float
) -> None:
    middle = torch.tensor(common).double()
    where = torch.tensor(centres).double()
    # Each ball reaches a little beyond the point, so that steps of .01 find it.
    radii = (where - middle).norm(dim=1) + 0.02 + more
    found, meeting = meet_balls(balls(where, radii))
    assert meeting.residual == 0
    assert float((Balls(where, radii).gaps(found)).max()) <= 1e-5


@settings(max_examples=60, deadline=None)
@given(st.lists(plane, min_size=1, max_size=6))
def test_the_point_is_a_combination_and_its_gaps_are_true(
    centres: list[tuple[float, float]],
) -> None:
    where = torch.tensor(centres).double()
    given_balls = balls(where, torch.full((len(where),), 0.5))
    found, meeting = meet_balls(given_balls)
    assert float(meeting.coefficients.sum()) == pytest.approx(1, abs=1e-9)
    torch.testing.assert_close(meeting.gaps, given_balls.gaps(found), atol=1e-4, rtol=1e-4)
    start = given_balls.gaps(where.mean(dim=0)).sum()
    assert meeting.residual <= float(start) + 1e-9  # never worse than the mean


def test_centres_that_nearly_depend_on_each_other_do_not_let_coefficients_grow() -> None:
    """Three points all but on a line: coefficients of thousands would hardly change the place."""
    given_balls = balls(torch.tensor([[0.0, 0.25], [2.0, -1.0], [0.375, 0.0]]), torch.zeros(3))
    found, meeting = meet_balls(given_balls)
    torch.testing.assert_close(found, torch.tensor([0.375, 0.0]).double(), atol=0.02, rtol=0)
    torch.testing.assert_close(meeting.gaps, given_balls.gaps(found), atol=1e-6, rtol=0)
    assert float(meeting.coefficients.abs().max()) < 10


def test_two_hospitals_with_one_model_share_what_it_gets() -> None:
    four = in_the_plane((0, 0, 0), (0, 0, 0), (3, 0, 0), (0, 3, 0))
    found, meeting = meet_balls(four)
    assert float(found.norm()) < 0.02  # where two of four are
    torch.testing.assert_close(meeting.gaps, four.gaps(found), atol=1e-6, rtol=0)
    first, second, *_ = meeting.coefficients.tolist()
    assert first == pytest.approx(second, abs=1e-6)


def test_the_order_of_hospitals_does_not_matter() -> None:
    given_balls = [(0, 0, 1), (4, 0, 1.5), (1, 3, 0.5)]
    first, first_meeting = meet_balls(in_the_plane(*given_balls))
    for order in permutations(given_balls):
        found, meeting = meet_balls(in_the_plane(*order))
        torch.testing.assert_close(found, first, atol=1e-6, rtol=0)
        assert meeting.residual == pytest.approx(first_meeting.residual, abs=1e-9)


def test_one_centre_for_all_is_that_centre() -> None:
    found, meeting = meet_balls(in_the_plane((1, 2, 0), (1, 2, 0)))
    assert found.tolist() == [1, 2]
    assert meeting.in_all


def test_a_ball_of_weight_zero_does_not_count() -> None:
    three = in_the_plane((0, 0, 1), (1, 0, 1), (50, 0, 1))
    meeting = meet(
        three.centres @ three.centres.T, three.radii, weights=torch.tensor([1.0, 1.0, 0.0])
    )
    assert meeting.in_all
    assert (meeting.coefficients @ three.centres).tolist() == [0.5, 0]
    assert float(meeting.gaps[2]) == pytest.approx(48.5)  # it is told how far it is, all the same


def test_a_ball_of_weight_zero_far_away_does_not_make_a_gap_count_as_none() -> None:
    three = in_the_plane((0, 0, 1), (4, 0, 1), (0, 1e7, 1))
    weights = torch.tensor([1.0, 1.0, 0.0])
    meeting = meet(three.centres @ three.centres.T, three.radii, weights=weights)
    assert not meeting.in_all
    assert meeting.residual == pytest.approx(2, abs=1e-2)


def test_there_must_be_a_ball_that_counts() -> None:
    with refused(ValueError, "ball"):
        meet(torch.eye(2), torch.ones(2), weights=torch.zeros(2))


@pytest.mark.parametrize(
    ("radius", "said"),
    [
        (-0.5, -0.5),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (1e30, "1e+30"),
    ],
)
def test_a_radius_that_no_honest_hospital_sends_is_named(radius: float, said: object) -> None:
    with refused(ValueError, "radius", said):
        in_the_plane((0, 0, 1), (1, 0, radius))


def test_radii_at_both_ends_of_the_range_are_honest() -> None:
    assert problem_with_radius(0.0) is None
    assert problem_with_radius(LARGEST_RADIUS) is None


def test_a_ball_without_its_radius_and_a_centre_that_is_not_finite_are_refused() -> None:
    with refused(ValueError, "centre"):
        balls(torch.zeros(2, 3), torch.zeros(3))
    with refused(ValueError, "finite"):
        in_the_plane((0, float("nan"), 1))


@pytest.mark.parametrize("distance", [10.0, 1e3, 1e6])
def test_a_model_far_away_hardly_moves_the_result(distance: float) -> None:
    near = [(0.0, 0.0, 1.0), (0.5, 0.0, 1.0), (0.0, 0.5, 1.0)]
    four = in_the_plane(*near, (distance, distance, 0.0))
    gram = four.centres @ four.centres.T
    meeting = meet_from_afar(gram, four.radii)
    assert float(meeting.gaps[:3].max()) < 0.3
    point = meeting.coefficients @ four.centres
    assert float(point.norm()) < 1.3


def test_steps_from_afar_lead_where_short_ones_do() -> None:
    three = in_the_plane((0, 0, 1), (4, 0, 1.5), (1, 3, 0.5))
    gram = three.centres @ three.centres.T
    far, near = meet_from_afar(gram, three.radii), meet(gram, three.radii)
    assert far.residual == pytest.approx(near.residual, abs=1e-3)
    torch.testing.assert_close(far.coefficients, near.coefficients, atol=0.02, rtol=0)
