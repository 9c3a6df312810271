"""Balls of output layers: margins worked out by hand, and the definition beside the formula."""

import pytest
import torch
from torch import Tensor

from erosion_common.algorithms.gems.balls import (
    LARGEST_RADIUS,
    Layer,
    directions,
    good_enough_ball,
    layer_of_flat,
    neuron_radii,
)
from experiments.papers.gems_authors import (
    AuthorsNetwork,
    measured_ball,
)

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
    assert weights_alone.certified == pytest.approx(1)  # the worst direction's: 2 / sqrt(2 (1 + 1))
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
    assert found.is_reached
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


def test_one_patient_moves_a_cells_radius_by_no_more_than_its_share() -> None:
    features = torch.arange(1.0, 21.0)[:, None]
    labels = torch.zeros(20, dtype=torch.long)
    other = features.clone()
    other[10] += 0.5  # the one at the rank
    radii = [
        good_enough_ball(TWO, x, labels, 0.5, along(0, 0, -1, 1), cell=10).radius
        for x in (features, other)
    ]
    assert radii[1] - radii[0] == pytest.approx(2 * 0.5 / 10 / 2**0.5, rel=1e-4)


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
    for epsilon in (0.5, 0.7, 0.9):
        ours = good_enough_ball(layer, features, labels, epsilon, tried).radius
        plain = plain_radius(layer, features, labels, epsilon, tried)
        assert 0.8 * plain <= ours <= plain + 1e-4
        assert good_enough_ball(layer, features, labels, epsilon, tried, cell=5).radius <= ours


def test_every_model_within_the_certified_radius_is_good_enough() -> None:
    layer, features, labels, tried = a_problem()
    certified = good_enough_ball(layer, features, labels, 0.8, tried).certified
    for z in directions(300, 15, torch.Generator().manual_seed(2)):
        moved = layer_of_flat(layer.flat + 0.999 * certified * z, 4, 3)
        assert float((moved(features).argmax(dim=1) == labels).double().mean()) >= 0.8


def test_an_epsilon_that_the_model_does_not_reach_leaves_no_ball_and_says_what_it_reached() -> None:
    layer, features, labels, tried = a_problem()
    found = good_enough_ball(layer, features, labels, 0.95, tried)
    assert not found.is_reached
    assert found.radius == found.certified == 0
    assert found.accuracy == pytest.approx(55 / 60)


# -- Balls of hidden neurons (equation 3): one neuron by hand, many beside the plain  ------------

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
    torch.testing.assert_close(found, torch.tensor(plain).double(), rtol=1e-4, atol=1e-6)
