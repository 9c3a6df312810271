"""Noise and bias, told apart by how updates vary from round to round.

With u_t the user's update of round t, m_t the peers' average and D_t = m_t - u_t:
V_0 = |u_t - u_(t-1)|^2 / 2 and V_a = |m_t - m_(t-1)|^2 / 2, because what two rounds in a row do not
share is mostly noise; B^2 = <D_t, D_(t-1)>, because noise of different rounds is uncorrelated and
only the bias is in both. Drift of the parameters counts as noise in V_0 and V_a; that is small as
long as a round moves the model little.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName

MEMORY = 0.9  # a round's share in the estimates falls by this each round, once there are ten


@dataclass(frozen=True, slots=True)
class Variation:
    """The last round's updates, and running means over all pairs of rounds in a row."""

    peers: tuple[HospitalName, ...]  # of the last round
    own: Tensor  # (dim,) u of the last round
    average: Tensor  # (dim,) m of the last round
    num_pairs: int
    own_variance: float  # V_0
    average_variance: float  # V_a; sigma_a^2 / N in the paper
    squared_bias: float  # B^2; below 0 where noise outweighs it


def nothing_seen(dim: int) -> Variation:
    """Before the first round."""
    return Variation((), torch.zeros(dim), torch.zeros(dim), 0, 0.0, 0.0, 0.0)


def observe(
    before: Variation, peers: Sequence[HospitalName], own: Tensor, average: Tensor
) -> Variation:
    """One round more; `own` and `average` (dim,) are not changed.

    A pair of rounds with different peers tells nothing: their averages differ for another reason
    than noise.
    """
    # The user's update may be mapped from a file of this round, so it is copied.
    last = replace(before, peers=tuple(peers), own=own.clone(), average=average)
    if last.peers != before.peers:
        return last
    num_pairs = before.num_pairs + 1
    share = max(1 / num_pairs, 1 - MEMORY)  # a plain mean at first, then a moving one

    def mean(old: float, new: float) -> float:
        return (1 - share) * old + share * new

    bias_now, bias_before = average - own, before.average - before.own
    shared = float(torch.dot(bias_now.double(), bias_before.double()))
    return replace(
        last,
        num_pairs=num_pairs,
        own_variance=mean(before.own_variance, _square(own - before.own) / 2),
        average_variance=mean(before.average_variance, _square(average - before.average) / 2),
        squared_bias=mean(before.squared_bias, shared),
    )


def _square(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2
