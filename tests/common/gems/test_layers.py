"""Training above a merged layer, and the layout of layers in vectors."""

import pytest
import torch
from torch import nn

from erosion_common.algorithms.gems.balls import (
    Layer,
    hidden_features,
    layer_of_flat,
    layer_of_neurons,
    split_layers,
)
from erosion_common.algorithms.gems.meeting import personal_weights
from erosion_common.algorithms.gems.retraining import Retraining, fine_tune, perceptron, retrain
from erosion_common.learning.models import Mlp, flat_parameters
from tests.support.refusals import refused


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_layers_are_those_of_the_studys_perceptron() -> None:
    model = Mlp(hidden=(6, 5)).build((4,), 3)
    layers = split_layers(flat_parameters(model), (4, 6, 5, 3))
    inputs = torch.randn(7, 4, generator=generator())
    logits = layers[-1](hidden_features(layers[:-1], inputs))
    torch.testing.assert_close(logits, model(inputs).detach())


def test_a_layer_survives_both_of_its_forms() -> None:
    layer = Layer(torch.randn(3, 4), torch.randn(3))
    for again in (layer_of_flat(layer.flat, 4, 3), layer_of_neurons(layer.neurons)):
        assert torch.equal(again.weight, layer.weight)
        assert torch.equal(again.bias, layer.bias)


def test_another_architecture_is_named() -> None:
    with refused(ValueError, "(10,)", 4, 3):
        layer_of_flat(torch.zeros(10), 4, 3)
    with refused(ValueError, 20, "[4, 3]"):
        split_layers(torch.zeros(20), (4, 3))


def test_from_zeros_nothing_is_left_of_a_class_that_nobody_has() -> None:
    features = torch.randn(64, 5, generator=generator())
    labels = (features[:, 0] > 0).long()  # of three classes, two
    (layer,) = retrain(features, labels, (), 3, "zeros", generator())
    assert bool((layer(features).argmax(dim=1) != 2).all())
    two = layer.weight[2]  # moved away by the softmax alone, so against the sum of the others
    torch.testing.assert_close(two, -(layer.weight[0] + layer.weight[1]), atol=1e-6, rtol=0)
    (theirs,) = retrain(features, labels, (), 3, "authors", generator())
    assert float((theirs.weight.sum(dim=0)).abs().max()) > 1e-3  # what it started with survives


@pytest.mark.parametrize("how", ["zeros", "authors"])
def test_retraining_learns_with_hidden_layers_too(how: Retraining) -> None:
    features = torch.randn(2000, 5, generator=generator())
    labels = (features[:, 0] > 0).long()
    for hidden in ((), (8,)):
        layers = retrain(features, labels, hidden, 2, how, generator())
        assert [layer.weight.shape[0] for layer in layers] == [*hidden, 2]
        predicted = layers[-1](hidden_features(layers[:-1], features)).argmax(dim=1)
        assert float((predicted == labels).double().mean()) > 0.9


def test_a_hidden_layer_starts_at_glorots_limit() -> None:
    (linear,) = perceptron((784, 50), generator())
    assert isinstance(linear, nn.Linear)
    assert float(linear.weight.detach().abs().max()) == pytest.approx(0.085, abs=1e-3)
    assert float(linear.bias.detach().abs().max()) == 0


def test_fine_tuning_learns_a_class_that_no_hospital_had() -> None:
    features = torch.randn(300, 5, generator=generator())
    labels = (features[:, 0] > 0).long() + (features[:, 1] > 1).long()
    before = Layer(torch.zeros(3, 5), torch.tensor([0.0, 0.0, -5.0]))
    after = fine_tune(before, features, labels, generator(), epochs=20)
    accuracies = [
        float((layer(features).argmax(dim=1) == labels).double().mean())
        for layer in (before, after)
    ]
    assert accuracies[0] < 0.6 < 0.8 < accuracies[1]


def test_nothing_is_drawn_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    features, labels = torch.ones(8, 2), torch.tensor([0, 1] * 4)
    retrain(features, labels, (3,), 2, "authors", generator())
    fine_tune(Layer(torch.zeros(2, 2), torch.zeros(2)), features, labels, generator(), epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_nearest_peer_counts_fully_and_the_others_by_distance() -> None:
    assert personal_weights([2.0, 2.5, 3.0, 9.0]) == [1.0, 0.5, 0.0, 0.0]
    assert personal_weights([2.0, 2.5], reach=1.0) == [1.0, 0.75]


def test_a_peer_with_the_users_own_update_leaves_no_room_for_others() -> None:
    assert personal_weights([0.0, 1.0]) == [1.0, 0.0]
    assert personal_weights([]) == []
