"""The places of a model's named parameters."""

import torch

from erosion_common.learning.models import (
    Mlp,
    MnistCnn,
    build_model,
    flat_parameters,
    parameter_layout,
)


def test_names_point_to_the_parameters_in_the_flat_vector() -> None:
    settings = Mlp(hidden=(3,))
    layout = parameter_layout(settings, (2,), 2)
    assert dict(layout) == {
        "1.weight": slice(0, 6),
        "1.bias": slice(6, 9),
        "3.weight": slice(9, 15),
        "3.bias": slice(15, 17),
    }
    model = build_model(settings, (2,), 2, seed=4)
    flat = flat_parameters(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(flat[layout[name]], parameter.detach().flatten())


def test_laying_out_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    layout = parameter_layout(MnistCnn(), (1, 28, 28), 10)
    assert max(place.stop for place in layout.values()) == 356_234
    assert torch.equal(before, torch.get_rng_state())
