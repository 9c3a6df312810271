"""Bias correction, BC (Chayti et al. 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Algorithm, BuildContext, Step, alone, relative_weights
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.algorithms.weighted_gradient import Alpha, mixing_shares
from erosion_common.settings.names import OrAuto

Beta = OrAuto[Annotated[float, Field(gt=0, le=1)]]


@dataclass(frozen=True, slots=True)
class AverageBiasState:
    """One bias for the peers' average."""

    bias: Tensor  # (dim,) c
    num_rounds: int  # in which c was learned


@dataclass(frozen=True, slots=True)
class HospitalBiasState:
    """One bias for every peer that has been in a cohort."""

    biases: Mapping[HospitalName, Tensor]  # (dim,) each, c_i
    num_rounds: Mapping[HospitalName, int]  # in which c_i was learned


class BiasCorrection(AggregatingArm):
    """The others' updates count after what they have differed by so far is taken off.

    The step is (1 - alpha) u + alpha (m - c), with u the user's update, m the plain average of the
    peers' and c their bias: a moving average of m - u, from 0, learned after each step from the
    same updates. Once c is known the peers' noise is averaged away and their bias is not taken on.
    Use it for long runs with enough patients that noise, not the number of patients, limits you.
    With bias = "average" one c is kept for all; when hospitals come or go it is still that of the
    earlier group, and forgets it in about 1 / beta rounds. With bias = "per_hospital" each peer has
    its own c_i (memory grows with the hospitals): one that is away keeps it, one that is new starts
    at 0, and nobody else is affected.
    Source: Chayti, Karimireddy, Stich, Flammarion, Jaggi, Linear Speedup in Personalized
    Collaborative Learning, 2021; `warm_up` is ours.
    """

    sums_only: ClassVar[bool] = True
    private_updates: ClassVar[bool] = True

    algorithm: Literal["bias_correction"] = "bias_correction"
    alpha: Alpha = Field(
        default="auto",
        description='A number in [0, 1], or "auto" for N / (N + 1) with the N peers of the round.',
    )
    beta: Beta = Field(
        default="auto",
        description='The newest round\'s share in c, or "auto" for contraction / N, the largest '
        "with which the error still falls like 1 / N.",
    )
    contraction: float = Field(  # eta a
        default=0.1,
        gt=0,
        le=1,
        description="Which share of the way to its own optimum a round takes the user.",
    )
    warm_up: bool = Field(
        default=True, description="Whether the bias starts as the plain mean of all rounds."
    )
    bias: Literal["average", "per_hospital"] = Field(
        default="average",
        description='`"average"`: one bias for all peers together. `"per_hospital"`: one for each.',
    )

    def problem_with_sealing(self) -> str | None:
        """Refuse "per_hospital": such a bias is learned from single updates."""
        if self.bias == "per_hospital":
            return 'bias = "per_hospital" needs single updates, which nobody sees there'
        return super().problem_with_sealing()

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        method: Algorithm[Any]
        if self.bias == "average":
            method = Algorithm(lambda dim: AverageBiasState(torch.zeros(dim), 0), self._average)
        else:
            method = Algorithm(lambda _dim: HospitalBiasState({}, {}), self._per_hospital)
        return method

    def _average(self, state: AverageBiasState, cohort: Cohort) -> Step[AverageBiasState]:
        if not cohort.peers:
            return alone(cohort, state)
        num_peers = len(cohort.peers)
        shares = self._shares(num_peers)
        delta = cohort.weighted_sum(shares).sub_(state.bias, alpha=1 - float(shares[0]))
        seen = cohort.weighted_sum(_minus_own(mixing_shares(1.0, num_peers)))  # m - u
        bias = state.bias.lerp(seen, self._newest_share(state.num_rounds, num_peers))
        after = AverageBiasState(bias, state.num_rounds + 1)
        return Step(delta, relative_weights(cohort, shares.tolist()), after)

    def _per_hospital(self, state: HospitalBiasState, cohort: Cohort) -> Step[HospitalBiasState]:
        if not cohort.peers:
            return alone(cohort, state)
        num_peers = len(cohort.peers)
        shares = self._shares(num_peers)
        delta = cohort.weighted_sum(shares)
        biases, num_rounds = dict(state.biases), dict(state.num_rounds)
        for place, peer in enumerate(cohort.peers, start=1):
            before = state.biases.get(peer, torch.zeros_like(delta))
            delta.sub_(before, alpha=float(shares[place]))
            seen = cohort.weighted_sum(_minus_own(_only(place, num_peers)))  # u_i - u
            rounds = state.num_rounds.get(peer, 0)
            biases[peer] = before.lerp(seen, self._newest_share(rounds, num_peers))
            num_rounds[peer] = rounds + 1
        after = HospitalBiasState(biases, num_rounds)
        return Step(delta, relative_weights(cohort, shares.tolist()), after)

    def _shares(self, num_peers: int) -> Tensor:
        alpha = num_peers / (num_peers + 1) if self.alpha == "auto" else self.alpha
        return mixing_shares(alpha, num_peers)

    def _newest_share(self, num_rounds: int, num_peers: int) -> float:
        beta = self.contraction / num_peers if self.beta == "auto" else self.beta
        return max(beta, 1 / (num_rounds + 1)) if self.warm_up else beta


def _only(place: int, num_peers: int) -> Tensor:
    shares = torch.zeros(num_peers + 1, dtype=torch.float64)
    shares[place] = 1.0
    return shares


def _minus_own(shares: Tensor) -> Tensor:
    return torch.cat([shares[:1] - 1, shares[1:]])
