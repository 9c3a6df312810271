"""Training above a merged layer, and the layout of layers in vectors."""

import torch
from torch import Tensor

from erosion_common.algorithms.gems.balls import (
    Balls,
    balls,
    hidden_features,
    split_layers,
)
from erosion_common.algorithms.gems.meeting import (
    largest_pairwise_set,
    merge_neurons,
    personal_weights,
)
from erosion_common.algorithms.gems.retraining import retrain
from erosion_common.learning.models import Mlp, flat_parameters


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_layers_are_those_of_the_studys_perceptron() -> None:
    model = Mlp(hidden=(6, 5)).build((4,), 3)
    layers = split_layers(flat_parameters(model), (4, 6, 5, 3))
    inputs = torch.randn(7, 4, generator=generator())
    logits = layers[-1](hidden_features(layers[:-1], inputs))
    torch.testing.assert_close(logits, model(inputs).detach())


def test_from_zeros_nothing_is_left_of_a_class_that_nobody_has() -> None:
    features = torch.randn(64, 5, generator=generator())
    labels = (features[:, 0] > 0).long()  # of three classes, two
    (layer,) = retrain(features, labels, (), 3, "zeros", generator())
    assert bool((layer(features).argmax(dim=1) != 2).all())
    two = layer.weight[2]  # moved away by the softmax alone, so against the sum of the others
    torch.testing.assert_close(two, -(layer.weight[0] + layer.weight[1]), atol=1e-6, rtol=0)
    (theirs,) = retrain(features, labels, (), 3, "authors", generator())
    assert float((theirs.weight.sum(dim=0)).abs().max()) > 1e-3  # what it started with survives


def test_the_nearest_peer_counts_fully_and_the_others_by_distance() -> None:
    assert personal_weights([2.0, 2.5, 3.0, 9.0]) == [1.0, 0.5, 0.0, 0.0]
    assert personal_weights([2.0, 2.5], reach=1.0) == [1.0, 0.75]


def test_a_peer_with_the_users_own_update_leaves_no_room_for_others() -> None:
    assert personal_weights([0.0, 1.0]) == [1.0, 0.0]
    assert personal_weights([]) == []


# -- One hidden layer for all hospitals: which neurons become one, and which are appe ------------

TRIANGLE = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3**0.5]])


def of(centres: Tensor, *radii: float) -> Balls:
    return balls(centres, torch.tensor(radii).expand(len(centres)))


def rows(neurons: Tensor) -> set[tuple[float, ...]]:
    return {tuple(round(value, 3) for value in row) for row in neurons.tolist()}


def test_balls_that_have_a_point_in_common_become_one_neuron() -> None:
    found = merge_neurons(of(TRIANGLE, 1.1548), clusters=1)
    assert rows(found.neurons) == {(1.0, 0.577)}
    assert (found.offered, found.merged, found.lost) == (3, 3, 0)


def test_where_only_pairs_meet_one_leaves_the_set() -> None:
    found = merge_neurons(of(TRIANGLE, 1.1), clusters=1)
    assert len(found.neurons) == 2
    assert found.merged == 2
    # Two of the three meet in the middle between them, the third stays as it is.
    left = {tuple(round(v, 3) for v in row) for row in TRIANGLE.tolist()} & rows(found.neurons)
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
