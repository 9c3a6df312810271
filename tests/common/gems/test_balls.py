"""GEMS in hand-sized spaces: balls, the point in all of them, merged layers, retraining."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from erosion_common.algorithms.gems.balls import (
    LARGEST_RADIUS,
    Balls,
    Layer,
    balls,
    directions,
    good_enough_ball,
    hidden_features,
    layer_of_flat,
    neuron_radii,
    split_layers,
)
from erosion_common.algorithms.gems.meeting import (
    Found,
    Meeting,
    Spaces,
    descend,
    largest_pairwise_set,
    meet,
    meet_balls,
    merge_neurons,
    personal_weights,
)
from erosion_common.algorithms.gems.retraining import retrain
from erosion_common.learning.models import Mlp, flat_parameters
from experiments.papers.gems_authors import (
    AuthorsNetwork,
    certified_radius,
    fisher_axes,
    fisher_information,
    measured_ball,
)
from tests.support.close import assert_close
from tests.support.refusals import refused

# Logits 2x and 0: at x = 1 class 0 is right with a margin of 2.
TWO = Layer(torch.tensor([[2.0], [0.0]]), torch.zeros(2))
ONE_PATIENT = (torch.tensor([[1.0]]), torch.tensor([0]))


def along(*direction: float) -> Tensor:
    drawn = torch.tensor([direction], dtype=torch.float32)
    length: Tensor = drawn.norm()
    return drawn / length


def test_the_margin_is_lost_where_the_line_says() -> None:
    weights_alone = good_enough_ball(TWO, *ONE_PATIENT, 1.0, along(-1, 1, 0, 0))
    assert weights_alone.radius == pytest.approx(2**0.5)
    certified = certified_radius(TWO, *ONE_PATIENT, weights_alone)
    assert certified == pytest.approx(1)  # the worst direction's: 2 / sqrt(2 (1 + 1))
    and_biases = good_enough_ball(TWO, *ONE_PATIENT, 1.0, along(-1, 1, -1, 1))
    assert and_biases.radius == pytest.approx(1)


def test_as_many_patients_as_epsilon_allows_may_be_lost() -> None:
    features = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    labels = torch.zeros(4, dtype=torch.long)
    bias = along(0, 0, -1, 1)  # patient x is lost at R = 2x / sqrt(2)
    radii = [good_enough_ball(TWO, features, labels, e, bias).radius for e in (1.0, 0.75, 0.5)]
    assert radii == pytest.approx([2 / 2**0.5, 4 / 2**0.5, 6 / 2**0.5])


def test_a_share_of_patients_is_not_rounded_up_by_the_machine() -> None:
    """0.7 * 10 is 7.000000000000001 in some orders of multiplication; 7 of 10 are enough."""
    features = torch.arange(1.0, 11.0)[:, None]
    labels = torch.zeros(10, dtype=torch.long)
    bias = along(0, 0, -1, 1)
    for share in (0.7, 0.1 * 7):
        radius = good_enough_ball(TWO, features, labels, share, bias).radius
        assert radius == pytest.approx(2 * 4 / 2**0.5)  # the fourth to be lost is one too many


def test_with_a_cell_the_radius_is_the_mean_of_those_who_are_lost_last() -> None:
    features = torch.arange(1.0, 21.0)[:, None]
    labels = torch.zeros(20, dtype=torch.long)
    bias = along(0, 0, -1, 1)  # patient x is lost at R = 2x / sqrt(2)
    found = good_enough_ball(TWO, features, labels, 0.5, bias, cell=4)
    assert found.radius == pytest.approx(2 * (8 + 9 + 10 + 11) / 4 / 2**0.5)
    whole = good_enough_ball(TWO, features, labels, 0.5, bias, cell=11)
    assert whole.radius == pytest.approx(2 * 6 / 2**0.5)


def test_where_fewer_may_be_lost_than_a_cell_there_is_no_radius() -> None:
    features = torch.arange(1.0, 21.0)[:, None]
    labels = torch.zeros(20, dtype=torch.long)
    found = good_enough_ball(TWO, features, labels, 0.5, along(0, 0, -1, 1), cell=12)
    assert found.radius == 0
    theirs = AuthorsNetwork(preset="authors", epsilon=0.5, directions=5)
    generator = torch.Generator().manual_seed(1)
    assert measured_ball(TWO, features, labels, theirs, generator, cell=12).radius == 0


def test_a_direction_that_loses_fewer_than_a_cell_tells_nothing_of_them() -> None:
    """Of those who are never lost the radius is known, so that a mean would give the others'."""
    features = torch.tensor([[1.0]] * 3 + [[-1.0]] * 17)
    labels = torch.tensor([0] * 3 + [1] * 17)
    bias = along(0, 0, -1, 1)  # only the three of class 0 are lost
    assert good_enough_ball(TWO, features, labels, 0.5, bias).radius == LARGEST_RADIUS
    assert good_enough_ball(TWO, features, labels, 0.5, bias, cell=10).radius == LARGEST_RADIUS


def a_problem() -> tuple[Layer, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    features = torch.randn(60, 4, generator=random)
    layer = Layer(torch.randn(3, 4, generator=random), torch.randn(3, generator=random))
    labels = layer(features).argmax(dim=1)
    labels[:5] = (labels[:5] + 1) % 3  # some are wrong from the start
    return layer, features, labels, directions(40, 15, random)


def plain_radius(
    layer: Layer, features: Tensor, labels: Tensor, epsilon: float, tried: Tensor
) -> float:
    """ConstructBall as the paper writes it, with fixed directions."""
    low, high = 0.0, LARGEST_RADIUS
    while high - low > 1e-5:
        middle = (low + high) / 2
        moved = (layer_of_flat(layer.flat + middle * z, 4, 3) for z in tried)
        right = ((m(features).argmax(dim=1) == labels).double().mean() for m in moved)
        low, high = (middle, high) if all(r >= epsilon for r in right) else (low, middle)
    return low


def test_it_is_never_larger_than_the_bisections_and_nearly_as_large() -> None:
    layer, features, labels, tried = a_problem()
    assert good_enough_ball(layer, features, labels, 0.0, tried).radius == LARGEST_RADIUS
    for epsilon in (0.5, 0.7, 0.9):
        ours = good_enough_ball(layer, features, labels, epsilon, tried).radius
        plain = plain_radius(layer, features, labels, epsilon, tried)
        assert 0.8 * plain <= ours <= plain + 1e-4
        assert good_enough_ball(layer, features, labels, epsilon, tried, cell=5).radius <= ours


def test_every_model_within_the_certified_radius_is_good_enough() -> None:
    layer, features, labels, tried = a_problem()
    ball = good_enough_ball(layer, features, labels, 0.8, tried)
    certified = certified_radius(layer, features, labels, ball)
    for z in directions(300, 15, torch.Generator().manual_seed(2)):
        moved = layer_of_flat(layer.flat + 0.999 * certified * z, 4, 3)
        assert float((moved(features).argmax(dim=1) == labels).double().mean()) >= 0.8


# -- Balls of hidden neurons (equation 3) ----------------------------------------------------------

IDENTITY = Layer(torch.tensor([[1.0]]), torch.zeros(1))  # w = 1, b = 0
ONE_AND_TWO = torch.tensor([[1.0], [2.0]])
UP, DOWN = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])


def radius(epsilon: float, along: Tensor, *, divide: bool) -> float:
    return float(neuron_radii(IDENTITY, ONE_AND_TWO, epsilon, along, divide_by_count=divide))


def test_upwards_the_output_changes_by_the_root_of_five_times_the_radius() -> None:
    assert radius(1.0, UP, divide=False) == pytest.approx(1 / 5**0.5, abs=1e-6)
    assert radius(1.0, UP, divide=True) == pytest.approx(2 / 5**0.5, abs=1e-6)  # as the authors


def test_downwards_the_neuron_falls_asleep_and_changes_no_more() -> None:
    assert radius(1.0, DOWN, divide=False) == pytest.approx(1 / 5**0.5, abs=1e-6)
    assert radius(5**0.5 + 1e-4, DOWN, divide=False) == LARGEST_RADIUS


def a_layer() -> tuple[Layer, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    layer = Layer(torch.randn(7, 5, generator=random), torch.randn(7, generator=random))
    return layer, torch.randn(30, 5, generator=random), directions(60, 6, random)


def plain_neuron_radius(neuron: Tensor, inputs: Tensor, epsilon: float, tried: Tensor) -> float:
    """ConstructBall as the paper writes it, with fixed directions."""
    with_one = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1).double()
    before = (with_one @ neuron.double()).relu()
    low, high = 0.0, LARGEST_RADIUS
    while high - low > 1e-7:
        middle = (low + high) / 2
        moved = neuron.double() + middle * tried.double()
        changes = ((with_one @ moved.T).relu() - before[:, None]).norm(dim=0)
        low, high = (middle, high) if bool((changes <= epsilon).all()) else (low, middle)
    return low


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_pruning_changes_nothing(epsilon: float) -> None:
    layer, inputs, tried = a_layer()
    found = neuron_radii(layer, inputs, epsilon, tried, divide_by_count=False)
    plain = [plain_neuron_radius(neuron, inputs, epsilon, tried) for neuron in layer.neurons]
    assert_close(found, torch.tensor(plain).double(), rtol=1e-4, atol=1e-6)


# -- Equation 2 on balls in the plane --------------------------------------------------------------

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
    assert_close(found, torch.tensor(point).double(), atol=0.011, rtol=0)
    assert meeting.residual == pytest.approx(residual, abs=1e-4)
    assert meeting.in_all == (residual == 0)


def personal(hard: int | None) -> tuple[Tensor, Meeting]:
    three = in_the_plane((0, 0, 1), (3, 0, 1), (0, 3, 1))
    weights = torch.tensor([0.0, 1.0, 0.5])
    meeting = meet(three.centres @ three.centres.T, three.radii, weights=weights, hard=hard)
    return meeting.coefficients @ three.centres, meeting


def test_the_users_ball_is_never_left() -> None:
    point, meeting = personal(hard=0)
    assert_close(point, torch.tensor([0.9373, 0.3486]).double(), atol=1e-4, rtol=0)
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
    assert_close(meeting.gaps, given_balls.gaps(found), atol=1e-4, rtol=1e-4)
    start = given_balls.gaps(where.mean(dim=0)).sum()
    assert meeting.residual <= float(start) + 1e-9  # never worse than the mean


def test_centres_that_nearly_depend_on_each_other_do_not_let_coefficients_grow() -> None:
    """Three points all but on a line: coefficients of thousands would hardly change the place."""
    given_balls = balls(torch.tensor([[0.0, 0.25], [2.0, -1.0], [0.375, 0.0]]), torch.zeros(3))
    found, meeting = meet_balls(given_balls)
    assert_close(found, torch.tensor([0.375, 0.0]).double(), atol=0.02, rtol=0)
    assert_close(meeting.gaps, given_balls.gaps(found), atol=1e-6, rtol=0)
    assert float(meeting.coefficients.abs().max()) < 10


def test_there_must_be_a_ball_that_counts() -> None:
    with refused(ValueError, "ball"):
        meet(torch.eye(2), torch.ones(2), weights=torch.zeros(2))


@pytest.mark.parametrize(
    ("radius", "said"),
    [(-0.5, -0.5), (float("inf"), "inf"), (float("nan"), "nan"), (1e30, "1e+30")],
)
def test_a_radius_that_no_honest_hospital_sends_is_named(radius: float, said: object) -> None:
    with refused(ValueError, "radius", said):
        in_the_plane((0, 0, 1), (1, 0, radius))


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
    meeting = meet(gram, four.radii, from_afar=True)
    assert float(meeting.gaps[:3].max()) < 0.3
    point = meeting.coefficients @ four.centres
    assert float(point.norm()) < 1.3


# -- Equation 2 on scales of the hospitals' own: ellipsoids, and the authors' mask -----------------


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
    assert_close(beside.point, table((1, 0))[0], atol=0.011, rtol=0)
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


# -- Training above a merged layer, and the layout of layers in vectors ----------------------------


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_layers_are_those_of_the_studys_perceptron() -> None:
    model = Mlp(hidden=(6, 5)).build((4,), 3)
    layers = split_layers(flat_parameters(model), (4, 6, 5, 3))
    inputs = torch.randn(7, 4, generator=generator())
    logits = layers[-1](hidden_features(layers[:-1], inputs))
    assert_close(logits, model(inputs).detach())


def test_from_zeros_nothing_is_left_of_a_class_that_nobody_has() -> None:
    features = torch.randn(64, 5, generator=generator())
    labels = (features[:, 0] > 0).long()  # of three classes, two
    (layer,) = retrain(features, labels, (), 3, "zeros", generator())
    assert bool((layer(features).argmax(dim=1) != 2).all())
    two = layer.weight[2]  # moved away by the softmax alone, so against the sum of the others
    assert_close(two, -(layer.weight[0] + layer.weight[1]), atol=1e-6, rtol=0)
    (theirs,) = retrain(features, labels, (), 3, "authors", generator())
    assert float((theirs.weight.sum(dim=0)).abs().max()) > 1e-3  # what it started with survives


def test_the_nearest_peer_counts_fully_and_the_others_by_distance() -> None:
    assert personal_weights([2.0, 2.5, 3.0, 9.0]) == [1.0, 0.5, 0.0, 0.0]
    assert personal_weights([2.0, 2.5], reach=1.0) == [1.0, 0.75]


def test_a_peer_with_the_users_own_update_leaves_no_room_for_others() -> None:
    assert personal_weights([0.0, 1.0]) == [1.0, 0.0]
    assert personal_weights([]) == []


# -- One hidden layer for all hospitals ------------------------------------------------------------

CORNERS = torch.tensor(TRIANGLE)


def of(centres: Tensor, *radii: float) -> Balls:
    return balls(centres, torch.tensor(radii).expand(len(centres)))


def rows(neurons: Tensor) -> set[tuple[float, ...]]:
    return {tuple(round(value, 3) for value in row) for row in neurons.tolist()}


def test_balls_that_have_a_point_in_common_become_one_neuron() -> None:
    found = merge_neurons(of(CORNERS, 1.1548), clusters=1)
    assert rows(found.neurons) == {(1.0, 0.577)}
    assert (found.offered, found.merged, found.lost) == (3, 3, 0)


def test_where_only_pairs_meet_one_leaves_the_set() -> None:
    found = merge_neurons(of(CORNERS, 1.1), clusters=1)
    assert len(found.neurons) == 2
    assert found.merged == 2
    # Two of the three meet in the middle between them, the third stays as it is.
    left = {tuple(round(v, 3) for v in row) for row in CORNERS.tolist()} & rows(found.neurons)
    assert len(left) == 1


def many() -> Balls:
    random = torch.Generator().manual_seed(1)
    return balls(torch.randn(24, 4, generator=random), torch.rand(24, generator=random))


def test_permuting_neurons_or_hospitals_changes_nothing() -> None:
    first = merge_neurons(many(), clusters=5)
    assert 0 < first.merged < 24
    for seed in range(4):
        order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(merge_neurons(many().only(order), clusters=5).neurons, first.neurons)


def test_many_neurons_that_are_the_same_become_one() -> None:
    """Whatever rounding a fast way to measure distances would have."""
    one = torch.linspace(-3, 7, 40, dtype=torch.float64).reshape(1, -1).sin() * 3
    same = balls(one.repeat(30, 1), torch.zeros(30))
    assert len(largest_pairwise_set(same)) == 30
    assert merge_neurons(same, 5).neurons.shape == (1, 40)


def test_a_dead_neurons_large_ball_takes_its_cluster_nowhere_else() -> None:
    pair = torch.tensor([[1.0, 0.0], [1.2, 0.0]])
    found = merge_neurons(of(pair, 0.05, 4000.0), clusters=1)
    (neuron,) = found.neurons
    assert float((neuron - pair[0]).norm()) <= 0.05 + 0.01  # within the step's length


def test_the_authors_loop_loses_the_first_cluster() -> None:
    pairs = torch.tensor([[0.0, 0.0], [1.0, 0.0], [100.0, 0.0], [101.0, 0.0]])
    found = merge_neurons(of(pairs, 0.6), clusters=2, skip_first_cluster=True)
    assert found.lost == 2
    assert len(found.neurons) == 1
    only = merge_neurons(of(pairs, 1000.0), clusters=1, skip_first_cluster=True)
    assert len(only.neurons) == 1, "a layer without neurons is no layer"


def test_with_the_authors_mask_the_merged_neuron_is_another() -> None:
    """c = 2 and 4, radii 4 and 1: both meet in 3, but by the mask only from 3.75 on."""
    two = balls(torch.tensor([[2.0], [4.0]]), torch.tensor([4.0, 1.0]))
    assert merge_neurons(two, clusters=1).neurons.tolist() == [[3.0]]
    (masked,) = merge_neurons(two, clusters=1, masked_distance=True).neurons.flatten().tolist()
    assert 3.75 <= masked <= 3.79
