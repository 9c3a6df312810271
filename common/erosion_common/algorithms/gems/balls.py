"""Balls of good-enough models: what they are, and how a hospital measures its own (GEMS, 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite

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
        """Return (n, in) -> (n, out)."""
        return inputs @ self.weight.T + self.bias


def layer_of_neurons(neurons: Tensor) -> Layer:
    """Return the layer with the rows [w, b] as its neurons: (out, in + 1)."""
    return Layer(neurons[:, :-1].contiguous(), neurons[:, -1].contiguous())


def layer_of_flat(flat: Tensor, width_in: int, width_out: int) -> Layer:
    """Return the layer of what `Layer.flat` gave."""
    weights = width_in * width_out
    if flat.shape != (weights + width_out,):
        raise ValueError(
            f"{tuple(flat.shape)} parameters for a layer of {width_in} inputs and {width_out}"
            " outputs; hospitals must have the same architecture"
        )
    return Layer(flat[:weights].reshape(width_out, width_in), flat[weights:])


def split_layers(flat: Tensor, widths: Sequence[int]) -> tuple[Layer, ...]:
    """Return the layers of a perceptron of `widths` (inputs, hidden ..., outputs) from a vector."""
    layers, offset = [], 0
    for width_in, width_out in pairwise(widths):
        count = width_in * width_out + width_out
        layers.append(layer_of_flat(flat[offset : offset + count], width_in, width_out))
        offset += count
    if offset != len(flat):
        raise ValueError(f"{len(flat)} parameters for a perceptron of widths {list(widths)}")
    return tuple(layers)


def hidden_features(layers: Sequence[Layer], inputs: Tensor) -> Tensor:
    """Apply hidden layers with ReLU: (n, in) -> (n, width of the last)."""
    features = inputs
    for layer in layers:
        features = layer(features).relu()
    return features


LARGEST_RADIUS = 4000.0  # R_max: no ball is larger


@dataclass(frozen=True, slots=True, eq=False)
class Balls:
    """Several balls in one space."""

    centres: Tensor  # (k, d) float64
    radii: Tensor  # (k,) float64, 0 or more

    def __len__(self) -> int:
        return len(self.radii)

    def gaps(self, point: Tensor) -> Tensor:
        """Return how far `point` (d,) lies outside each ball, 0 inside: (k,)."""
        distances: Tensor = (self.centres - point).norm(dim=1)
        return (distances - self.radii).clamp(min=0.0)

    def only(self, which: Sequence[int] | Tensor) -> "Balls":
        """Return some of the balls, by their places."""
        chosen = torch.as_tensor(which, dtype=torch.long)
        return Balls(self.centres[chosen], self.radii[chosen])


def balls(centres: Tensor, radii: Tensor) -> Balls:
    """Return balls of centres (k, d) and radii (k,), in double precision. Raises ValueError."""
    if centres.dim() != 2 or radii.shape != centres.shape[:1]:
        raise ValueError(
            f"{tuple(radii.shape)} radii for centres of shape {tuple(centres.shape)};"
            " each centre (k, d) needs one radius (k,)"
        )
    if not bool(torch.isfinite(centres).all()):
        raise ValueError("a ball's centre is not finite")
    for radius in radii.tolist():
        if problem := problem_with_radius(radius):
            raise ValueError(problem)
    return Balls(centres.double(), radii.double())


def problem_with_radius(radius: float) -> str | None:
    """Return why no honest hospital sends this radius, or None."""
    if not isfinite(radius):
        return f"a radius of {radius} is not a finite number"
    if radius < 0:
        return f"a radius of {radius:g} is negative"
    if radius > LARGEST_RADIUS * (1 + 1e-6):  # it may have travelled in single precision
        return f"a radius of {radius:g} is above {LARGEST_RADIUS:g}, the largest that is measured"
    return None


def directions(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Return unit vectors, uniform on the sphere: (count, dim) float32."""
    drawn = torch.randn(count, dim, generator=generator)
    lengths: Tensor = drawn.norm(dim=1, keepdim=True)
    return drawn / lengths.clamp(min=1e-30)


_DIRECTIONS_AT_ONCE = 64  # so that what lies in memory fits into the cache


@dataclass(frozen=True, slots=True)
class GoodEnough:
    """A hospital's ball around its own model, and how good that model is."""

    radius: float  # along the directions tried
    accuracy: float  # of the centre
    needed: float  # the accuracy asked for, epsilon


def good_enough_ball(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    epsilon: float,
    directions: Tensor,
    cell: int = 1,
) -> GoodEnough:
    """Return how far `layer` can move along each direction until its accuracy falls below epsilon.

    features (n, d) and labels (n,) are patients that it was not trained on, directions (p, C d + C)
    unit vectors. The radius is about `cell` patients along the direction that allows least; it is
    0 where fewer may be lost, or where `layer` itself is below epsilon. Raises ValueError without
    patients.
    """
    if not len(labels):
        raise ValueError("no patient to measure a good-enough ball on")
    margins, correct = _margins(layer, features, labels)
    # How many may be lost, and one more; the tolerance undoes .7 * 10 = 7.000000000000001.
    rank = int(correct.sum()) - ceil(epsilon * len(labels) - 1e-9) + 1
    accuracy = float(correct.double().mean())
    if rank < 1:
        return GoodEnough(0.0, accuracy, epsilon)
    right, targets = features[correct], labels[correct]
    inverse = margins[correct].clamp(min=1e-30).reciprocal()  # (n0, C), of a_j
    inverse.scatter_(1, targets[:, None], 0.0)  # there is no margin against the true class
    if rank > len(targets):  # epsilon = 0: everything is good enough
        return GoodEnough(LARGEST_RADIUS, accuracy, epsilon)
    radius = 0.0
    if rank >= cell:
        radius = min(
            _smallest_radius(part, right, targets, inverse, rank, cell)
            for part in torch.split(directions, _DIRECTIONS_AT_ONCE)
        )
    return GoodEnough(radius, accuracy, epsilon)


def _margins(layer: Layer, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logit_y - logit_j: (n, C), and who is predicted rightly: (n,)."""
    logits = layer(features)
    own = logits.gather(1, labels[:, None])
    return own - logits, logits.argmax(dim=1) == labels


def _smallest_radius(
    directions: Tensor, right: Tensor, targets: Tensor, inverse: Tensor, rank: int, cell: int
) -> float:
    """Return the smallest radius that loses `rank` patients, over some directions (q, C d + C).

    Of each direction it is the mean over the last `cell` of them, or the largest radius where so
    many are never lost.
    """
    classes, width = inverse.shape[1], right.shape[1]
    weights = directions[:, : classes * width].reshape(-1, width)  # (q C, d)
    slopes = (weights @ right.T).reshape(len(directions), classes, -1)
    slopes += directions[:, classes * width :, None]
    own = slopes.gather(1, targets.expand(len(directions), 1, -1))
    rates = ((slopes - own) * inverse.T).amax(dim=1)  # 1 / R* of every patient: (q, n0)
    # The smallest R* are those of the largest rates.
    last = rates.topk(rank, dim=1).values[:, rank - cell :].double()
    # A mean with some who are never lost would be about the others alone.
    ends = last[:, -1] > 1 / LARGEST_RADIUS
    return float(last[ends].reciprocal().mean(dim=1).amin()) if ends.any() else LARGEST_RADIUS


_HALVINGS = 45  # of [0, R_max]: to less than 1e-9


def neuron_radii(
    layer: Layer, inputs: Tensor, epsilon: float, directions: Tensor, *, divide_by_count: bool
) -> Tensor:
    """Return the radius of every neuron's ball over all directions tried: (out,) float64.

    inputs (n, d) are the patients' inputs to the layer, directions (p, d + 1) unit vectors.
    `divide_by_count` divides the change of the output by n, as the authors' code does; equation 3
    does not. A neuron that no direction wakes gets the largest radius. Raises ValueError without
    patients.
    """
    if not len(inputs):
        raise ValueError("no patient to measure a neuron's ball on")
    limit = epsilon * (len(inputs) if divide_by_count else 1)
    outputs = layer(inputs)  # (n, out), a of every neuron
    moves = inputs @ directions[:, :-1].T + directions[:, -1]  # (n, p), P
    steepest = _slopes(outputs, moves).argmax(dim=0)  # (out,): likely the first to fail
    radii = _bisected(outputs, moves[:, steepest], limit)
    found = [
        _pruned(output, moves, int(first), float(radius), limit)
        for output, first, radius in zip(outputs.T, steepest, radii, strict=True)
    ]
    return torch.tensor(found, dtype=torch.float64)


def _pruned(output: Tensor, moves: Tensor, first: int, radius: float, limit: float) -> float:
    """Return the smallest radius over all directions, from that of the direction `first`."""
    left, at = moves, first
    while left.shape[1] > 1 and radius > 0:
        change = _change(output, left, radius)
        change[at] = 0.0  # its radius is the one tested
        fails = change > limit
        if not bool(fails.any()):
            break
        left, change = left[:, fails], change[fails]  # the others pass at smaller radii, too
        at = int(change.argmax())
        radius = float(_bisected(output[:, None], left[:, at : at + 1], limit))
    return radius


def _slopes(outputs: Tensor, moves: Tensor) -> Tensor:
    """Return each direction's slope for each neuron, at first plus far out: (p, out)."""
    at_first = moves.square().T @ (outputs > 0).to(moves.dtype)
    far_out = moves.clamp(min=0.0).square().sum(dim=0)
    return at_first + far_out[:, None]


def _change(output: Tensor, moves: Tensor, radius: float) -> Tensor:
    """Return |relu(a + R P) - relu(a)| of one neuron (n,) along each direction (n, q): (q,)."""
    moved = torch.add(output[:, None], moves, alpha=radius).relu_()
    return moved.sub_(output.relu()[:, None]).square_().sum(dim=0).sqrt_()


def _bisected(outputs: Tensor, moves: Tensor, limit: float) -> Tensor:
    """Return where each pair of columns a, P (n, k) begins to change by over `limit`: (k,)."""
    outputs, moves = outputs.double(), moves.double()
    before = outputs.relu()

    def passes(radii: Tensor) -> Tensor:
        changes: Tensor = ((outputs + radii * moves).relu() - before).norm(dim=0)
        return changes <= limit

    low = torch.zeros(moves.shape[1], dtype=torch.float64)
    high = torch.full_like(low, LARGEST_RADIUS)
    without_end = passes(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        good = passes(middle)
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return torch.where(without_end, LARGEST_RADIUS, low)
