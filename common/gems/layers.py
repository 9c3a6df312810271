"""The layers of a multilayer perceptron, as neurons and as flat parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A linear layer. As in torch, a neuron is a row."""

    weight: Tensor  # (out, in)
    bias: Tensor  # (out,)

    @property
    def neurons(self) -> Tensor:
        """[w, b] of every neuron: (out, in + 1)."""
        return torch.cat([self.weight, self.bias[:, None]], dim=1)

    @property
    def flat(self) -> Tensor:
        """The weights row by row, then the biases: (out * in + out,)."""
        return torch.cat([self.weight.flatten(), self.bias])

    def __call__(self, inputs: Tensor) -> Tensor:
        """(n, in) -> (n, out)."""
        return inputs @ self.weight.T + self.bias


def layer_of_neurons(neurons: Tensor) -> Layer:
    """The layer whose neurons are the rows [w, b]: (out, in + 1)."""
    return Layer(neurons[:, :-1].contiguous(), neurons[:, -1].contiguous())


def layer_of_flat(flat: Tensor, width_in: int, width_out: int) -> Layer:
    """The layer of what `Layer.flat` gave."""
    weights = width_in * width_out
    if flat.shape != (weights + width_out,):
        raise ValueError(
            f"{tuple(flat.shape)} parameters for a layer of {width_in} inputs and {width_out}"
            " outputs; hospitals must have the same architecture"
        )
    return Layer(flat[:weights].reshape(width_out, width_in), flat[weights:])


def split_layers(flat: Tensor, widths: Sequence[int]) -> tuple[Layer, ...]:
    """The layers of a perceptron with `widths` (inputs, hidden ..., outputs) from one vector."""
    layers, offset = [], 0
    for width_in, width_out in pairwise(widths):
        count = width_in * width_out + width_out
        layers.append(layer_of_flat(flat[offset : offset + count], width_in, width_out))
        offset += count
    if offset != len(flat):
        raise ValueError(f"{len(flat)} parameters for a perceptron of widths {list(widths)}")
    return tuple(layers)


def hidden_features(layers: Sequence[Layer], inputs: Tensor) -> Tensor:
    """What comes out of hidden layers with ReLU: (n, in) -> (n, width of the last)."""
    features = inputs
    for layer in layers:
        features = layer(features).relu()
    return features
