"""Equation 2 on balls in the plane, worked out by hand; distances that grow by hand, too."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from erosion_common.algorithms.gems.balls import (
    Balls,
    Layer,
    balls,
)
from erosion_common.algorithms.gems.meeting import (
    Found,
    Meeting,
    Spaces,
    descend,
    meet,
    meet_balls,
    meet_from_afar,
)
from experiments.papers.gems_authors import fisher_axes, fisher_information
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


plane = st.tuples(*[st.floats(-5, 5, width=32)] * 2)


@settings(max_examples=30, deadline=None)
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


@settings(max_examples=30, deadline=None)
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


def test_the_order_of_hospitals_does_not_matter() -> None:
    given_balls = [(0, 0, 1), (4, 0, 1.5), (1, 3, 0.5)]
    first, first_meeting = meet_balls(in_the_plane(*given_balls))
    for order in permutations(given_balls):
        found, meeting = meet_balls(in_the_plane(*order))
        torch.testing.assert_close(found, first, atol=1e-6, rtol=0)
        assert meeting.residual == pytest.approx(first_meeting.residual, abs=1e-9)


def test_a_ball_of_weight_zero_does_not_count() -> None:
    three = in_the_plane((0, 0, 1), (1, 0, 1), (50, 0, 1))
    meeting = meet(
        three.centres @ three.centres.T, three.radii, weights=torch.tensor([1.0, 1.0, 0.0])
    )
    assert meeting.in_all
    assert (meeting.coefficients @ three.centres).tolist() == [0.5, 0]
    assert float(meeting.gaps[2]) == pytest.approx(48.5)  # it is told how far it is, all the same


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


@pytest.mark.parametrize("distance", [10.0, 1e3, 1e6])
def test_a_model_far_away_hardly_moves_the_result(distance: float) -> None:
    near = [(0.0, 0.0, 1.0), (0.5, 0.0, 1.0), (0.0, 0.5, 1.0)]
    four = in_the_plane(*near, (distance, distance, 0.0))
    gram = four.centres @ four.centres.T
    meeting = meet_from_afar(gram, four.radii)
    assert float(meeting.gaps[:3].max()) < 0.3
    point = meeting.coefficients @ four.centres
    assert float(point.norm()) < 1.3


# -- Equation 2 on scales of the hospitals' own: ellipsoids, and the authors' mask, b ------------

# Logits 2x and 0: at x = 1 class 0 is right with a margin of 2.


def table(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def spaces(centres: Tensor, scales: Tensor, radii: Tensor, weights: Tensor | None = None) -> Spaces:
    shares = torch.ones_like(radii) if weights is None else weights
    return Spaces(centres.double(), radii.double(), shares.double(), scales.double())


def met(centres: Tensor, scales: Tensor, radii: Tensor, weights: Tensor | None = None) -> Found:
    where = spaces(centres, scales, radii, weights)
    return descend(where, where.mean)


def test_an_ellipsoid_reaches_further_along_its_long_axis() -> None:
    """(0, 0) with axes 1 and .25 and radius 1 holds (1, 0) and (0, .25); the others are balls."""
    short = 1 / table((1, 0.25), (1, 1))
    radii = torch.tensor([1.0, 2.0])
    beside = met(table((0, 0), (3, 0)), short, radii)  # touching in (1, 0)
    torch.testing.assert_close(beside.point, table((1, 0))[0], atol=0.011, rtol=0)
    assert beside.in_all
    above = met(table((0, 0), (0, 3)), short, radii)
    assert not above.in_all
    # In (0, y) the ellipsoid is missed by 4y - 1 and the ball by 1 - y: together by 3y down to
    # y = .25, where only the ball is, by .75.
    assert float(above.point[1]) == pytest.approx(0.25, abs=0.04)
    assert above.residual == pytest.approx(0.75, abs=0.04)


def test_the_authors_mask_multiplies_by_the_centre() -> None:
    """c = 2 and 4, r = 4 and 1. From 3 the second misses by |4 (4 - 3)| - 1 = 3; its slope is -4,
    and at 3.75 it misses by nothing, where the first has |2 (3.75 - 2)| = 3.5 of 4."""
    centres, radii = table((2,), (4,)), torch.tensor([4.0, 1.0])
    found = met(centres, centres, radii)
    assert found.in_all
    assert 3.75 <= float(found.point) <= 3.75 + 0.04
    without, _ = meet_balls(balls(centres, radii))
    assert float(without) == 3  # in both as it is


def test_a_parameter_of_zero_is_no_distance_at_all_for_the_mask() -> None:
    centres = table((1, 0), (1, 50))
    found = met(centres, centres, torch.tensor([0.0, 1300.0]))
    assert found.steps == 0
    assert found.point.tolist() == [1, 25]  # 25 from the first, whose second parameter is 0


points = st.lists(st.tuples(*[st.floats(-5, 5, width=32)] * 2), min_size=1, max_size=5)


@settings(max_examples=15, deadline=None)
@given(points, st.floats(0, 2))
def test_with_scales_of_one_it_is_that_of_balls(
    centres: list[tuple[float, float]], radius: float
) -> None:
    where = table(*centres)
    radii = torch.full((len(where),), radius)
    point, meeting = meet_balls(balls(where, radii))
    found = met(where, torch.ones_like(where), radii)
    assert found.residual == pytest.approx(meeting.residual, abs=0.03)
    torch.testing.assert_close(found.point, point, atol=0.05, rtol=0)


def test_the_fisher_information_of_an_undecided_model() -> None:
    """Both classes have a chance of .5: a slope is .5 or -.5, whichever class is drawn."""
    undecided = Layer(torch.zeros(2, 2), torch.zeros(2))
    patients = torch.tensor([[2.0, 0.0], [0.0, 4.0]])  # mean squares 2 and 8
    found = fisher_information(undecided, patients, torch.Generator())
    assert found.tolist() == pytest.approx([0.5, 2, 0.5, 2, 0.25, 0.25])
    # 1 / F is 2, .5 and 4; beside the longest, 4, that is .5, .125 and 1.
    assert fisher_axes(undecided, patients, torch.Generator()).tolist() == pytest.approx(
        [0.5, 0.125, 0.5, 0.125, 1, 1], rel=1e-4
    )
    # A pixel that nobody has set may move furthest, and no axis is below a tenth of that.
    axes = fisher_axes(undecided, torch.tensor([[2.0, 0.0]]), torch.Generator())
    assert axes.tolist() == pytest.approx([0.1, 1, 0.1, 1, 0.1, 0.1])
