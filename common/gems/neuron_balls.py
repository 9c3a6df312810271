"""The balls of hidden neurons whose output stays close (GEMS, equation 3).

A neuron [w, b] may move along z while |relu(a + R P) - relu(a)| <= epsilon_j over the patients,
with a its output before the ReLU and P = [x, 1] z. One matrix P serves all neurons. The left side
never falls as R grows, so a direction that passes at some radius needs no test at a smaller one.
"""

import torch
from torch import Tensor

from erosion.common.gems.balls import LARGEST_RADIUS
from erosion.common.gems.layers import Layer

_HALVINGS = 45  # of [0, R_max]: to less than 1e-9


def neuron_radii(
    layer: Layer,
    inputs: Tensor,
    epsilon: float,
    directions: Tensor,
    *,
    divide_by_count: bool,
) -> Tensor:
    """The radius of every neuron's ball over all directions tried: (out,) float64.

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
    """The smallest radius over all directions, from that of the direction `first`."""
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
    """How fast each direction changes each neuron, at first and far out, summed: (p, out)."""
    at_first = moves.square().T @ (outputs > 0).to(moves.dtype)
    far_out = moves.clamp(min=0.0).square().sum(dim=0)
    return at_first + far_out[:, None]


def _change(output: Tensor, moves: Tensor, radius: float) -> Tensor:
    """|relu(a + R P) - relu(a)| of one neuron (n,) along each direction (n, q): (q,)."""
    moved = torch.add(output[:, None], moves, alpha=radius).relu_()
    return moved.sub_(output.relu()[:, None]).square_().sum(dim=0).sqrt_()


def _bisected(outputs: Tensor, moves: Tensor, limit: float) -> Tensor:
    """Where each pair of columns a, P (n, k) begins to change by more than `limit`: (k,)."""
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
