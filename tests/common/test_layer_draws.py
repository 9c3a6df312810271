"""Draws of layers from a seed."""

import pytest
import torch

from erosion_common.learning.trainable import draws_from


def test_layers_draw_what_they_draw_after_torch_s_own_seeding() -> None:
    for seed in (0, 7, 2**63 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(5), torch.nn.functional.dropout(torch.ones(20))
        with draws_from(seed):
            found = torch.rand(5), torch.nn.functional.dropout(torch.ones(20))
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def raise_after_a_draw() -> None:
    torch.rand(100)
    raise ZeroDivisionError


def test_nobody_s_draws_change_even_after_a_fault() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with draws_from(5):
        torch.rand(100)
    with pytest.raises(ZeroDivisionError), draws_from(6):
        raise_after_a_draw()
    assert torch.equal(torch.rand(4), expected)
