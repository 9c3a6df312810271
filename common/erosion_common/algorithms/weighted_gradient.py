"""Weighted gradient averaging, WGA (Chayti et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import (
    Algorithm,
    BuildContext,
    NoState,
    Step,
    alone,
    no_state,
    relative_weights,
)
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.settings.names import OrAuto

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
    """Return the state before the first round."""
    return Variation((), torch.zeros(dim), torch.zeros(dim), 0, 0.0, 0.0, 0.0)


def observe(
    before: Variation, peers: Sequence[HospitalName], own: Tensor, average: Tensor
) -> Variation:
    """Return the estimates after one more round; `own` and `average` (dim,) are not changed.

    A pair of rounds with different peers is left out: its averages differ not only by noise.
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


Alpha = OrAuto[Annotated[float, Field(ge=0, le=1)]]


class WeightedGradient(AggregatingArm):
    """The user's own update and the average of the others', mixed by one weight.

    The step is (1 - alpha) u + alpha m, with u the user's update and m the plain average of the
    peers'. A larger alpha averages more noise away and takes on more of the others' bias. With
    alpha = "auto" it is V_0 / (V_0 + V_a + T B^2), where V_0 and V_a are the variances of u and m
    and B is their bias, all estimated from how u and m vary between rounds in a row; the estimates
    of earlier rounds are used, and until there are any alpha is N / (N + 1), the average of all.
    Use it where the others are alike among themselves, and you want one number for how far to
    follow them. Without a horizon T is the study's rounds, but no more than 2 / contraction: an
    error is forgotten at that pace, so a longer run adds up no more of it.
    Source: Chayti, Karimireddy, Stich, Flammarion, Jaggi, Linear Speedup in Personalized
    Collaborative Learning, 2021. Its optimal alpha has mu T / L for our T; mu <= L, so T errs
    towards the user's own update. 2 / contraction is the exact T of the steady state on its noisy
    quadratic.
    """

    sums_only: ClassVar[bool] = True
    private_updates: ClassVar[bool] = True

    algorithm: Literal["weighted_gradient"] = "weighted_gradient"
    alpha: Alpha = Field(default="auto", description='A number in [0, 1] or "auto".')
    horizon: float | None = Field(
        default=None,
        gt=0,
        description="T: over how many rounds bias adds up while noise averages out.",
    )
    contraction: float = Field(  # eta a
        default=0.1,
        gt=0,
        le=1,
        description="Which share of the way to its own optimum a round takes the user.",
    )

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        method: Algorithm[Any]
        if self.alpha == "auto":
            method = _estimating(self.horizon or min(context.rounds, 2 / self.contraction))
        else:
            method = _fixed(self.alpha)
        return method


def _fixed(alpha: float) -> Algorithm[NoState]:
    def update(state: NoState, cohort: Cohort) -> Step[NoState]:
        if not cohort.peers:
            return alone(cohort, state)
        shares = mixing_shares(alpha, len(cohort.peers))
        return Step(cohort.weighted_sum(shares), relative_weights(cohort, shares.tolist()), state)

    return Algorithm(no_state, update)


def _estimating(horizon: float) -> Algorithm[Variation]:
    def update(state: Variation, cohort: Cohort) -> Step[Variation]:
        if not cohort.peers:
            return alone(cohort, state)
        num_peers = len(cohort.peers)
        shares = mixing_shares(estimated_alpha(state, num_peers, horizon), num_peers)
        average = cohort.weighted_sum(mixing_shares(1.0, num_peers))
        after = observe(state, cohort.peers, cohort.own.delta, average)
        delta = cohort.own.delta.lerp(average, 1 - float(shares[0]))
        return Step(delta, relative_weights(cohort, shares.tolist()), after)

    return Algorithm(nothing_seen, update)


def estimated_alpha(seen: Variation, num_peers: int, horizon: float) -> float:
    """Return the alpha with the least expected error after `horizon` rounds, as far as was seen."""
    bias = horizon * max(0.0, seen.squared_bias)
    total = seen.own_variance + seen.average_variance + bias
    if total == 0:  # nothing seen yet, or neither noise nor bias
        return num_peers / (num_peers + 1)
    return seen.own_variance / total


def mixing_shares(alpha: float, num_peers: int) -> Tensor:
    """Return 1 - alpha for the user, alpha / n for each peer: (num_peers + 1,) float64."""
    return torch.tensor(
        [1 - alpha, *(alpha / num_peers for _ in range(num_peers))], dtype=torch.float64
    )
