"""Balls of hidden neurons (equation 3): one neuron by hand, many beside the plain definition."""

import pytest
import torch
from torch import Tensor

from erosion_common.algorithms.gems.balls import LARGEST_RADIUS, Layer, directions, neuron_radii
from experiments.papers.gems_authors import AuthorsNetwork, measured_neurons
from tests.support.refusals import refused

IDENTITY = Layer(torch.tensor([[1.0]]), torch.zeros(1))  # w = 1, b = 0
ONE_AND_TWO = torch.tensor([[1.0], [2.0]])
UP, DOWN = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])


def radius(epsilon: float, along: Tensor, *, divide: bool) -> float:
    return float(neuron_radii(IDENTITY, ONE_AND_TWO, epsilon, along, divide_by_count=divide))


def test_upwards_the_output_changes_by_the_root_of_five_times_the_radius() -> None:
    assert radius(1.0, UP, divide=False) == pytest.approx(1 / 5**0.5, abs=1e-6)


def test_the_authors_divide_by_the_number_of_patients() -> None:
    assert radius(1.0, UP, divide=True) == pytest.approx(2 / 5**0.5, abs=1e-6)


def test_downwards_the_neuron_falls_asleep_and_changes_no_more() -> None:
    assert radius(1.0, DOWN, divide=False) == pytest.approx(1 / 5**0.5, abs=1e-6)
    assert radius(5**0.5 + 1e-4, DOWN, divide=False) == LARGEST_RADIUS


def a_layer() -> tuple[Layer, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    layer = Layer(torch.randn(7, 5, generator=random), torch.randn(7, generator=random))
    return layer, torch.randn(30, 5, generator=random), directions(60, 6, random)


def plain_radius(neuron: Tensor, inputs: Tensor, epsilon: float, tried: Tensor) -> float:
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
    plain = [plain_radius(neuron, inputs, epsilon, tried) for neuron in layer.neurons]
    torch.testing.assert_close(found, torch.tensor(plain).double(), rtol=1e-4, atol=1e-6)


def test_the_radius_falls_with_epsilon_and_does_not_depend_on_the_order() -> None:
    layer, inputs, tried = a_layer()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    shuffled = Layer(layer.weight[order], layer.bias[order])
    last = torch.full((7,), LARGEST_RADIUS + 1).double()
    for epsilon in (10.0, 1.0, 0.1):
        found = neuron_radii(layer, inputs, epsilon, tried, divide_by_count=True)
        assert bool((found < last).all())
        other = neuron_radii(shuffled, inputs, epsilon, tried, divide_by_count=True)
        torch.testing.assert_close(other, found[order], rtol=1e-5, atol=0)
        last = found


def test_a_dead_neuron_gets_a_finite_radius() -> None:
    dead = Layer(torch.zeros(1, 5), torch.tensor([-1e6]))
    _, inputs, tried = a_layer()
    assert neuron_radii(dead, inputs, 0.1, tried, divide_by_count=False).tolist() == [4000.0]


def test_there_must_be_a_patient() -> None:
    layer, inputs, tried = a_layer()
    with refused(ValueError, "patient"):
        neuron_radii(layer, inputs[:0], 1.0, tried, divide_by_count=False)


def test_the_authors_preset_returns_the_middle_of_an_interval_of_one() -> None:
    layer, inputs, _ = a_layer()
    options = AuthorsNetwork(preset="authors", neuron_epsilon=0.001)
    found = measured_neurons(layer, inputs, options, torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, torch.full((7,), 4000 / 2**13).double())
