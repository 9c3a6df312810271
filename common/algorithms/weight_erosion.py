"""Weight Erosion (Grimberg et al. 2020, Algorithm 1, equations 4-6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from common.algorithm import Algorithm, ArmBase, BuildContext, Step
from common.cohort import AgentId, Cohort, Update

SizeUnit = Literal["seen", "formula", "completed_passes", "batches"]


@dataclass(frozen=True, slots=True)
class WeightErosionState:
    """One weight and one counter for every peer that has been in a cohort."""

    round: int  # rounds aggregated so far; r - 1 in the paper
    weights: Mapping[AgentId, float]  # alpha_i; the user's own is always 1 and not stored
    samples_seen: Mapping[AgentId, int]  # samples that hospital i has used in earlier rounds


def _init(_dim: int) -> WeightErosionState:
    return WeightErosionState(round=0, weights={}, samples_seen={})


def _asks(state: WeightErosionState, agent: AgentId) -> bool:
    # A weight of 0 never rises again (eq. 5), so an eroded hospital need not train any more.
    return state.weights.get(agent, 1.0) > 0.0


class WeightErosion(ArmBase):
    """Hospitals start with full weight and lose it by how far their updates are from the user's.

    In round r hospital i's weight falls by (1 + p_s k_i) p_d d_i, where d_i = |g_i - g_0| / |g_0|
    is its relative distance and k_i how often its data have been used up; the aggregate is the
    average by the new weights. Similar hospitals help for many rounds, different ones for few, and
    small ones for fewer the more often their samples repeat. Use it where you do not know who is
    like you.
    Parameters: `distance_penalty` (p_d), `size_penalty` (p_s), `size_unit` and `batch_size` (how
    k_i counts), `zero_norm` (what to do where the user's own update vanishes), `newcomer` (the
    weight of a late joiner).
    Source: Grimberg, Hartley, Jaggi, Karimireddy, Weight Erosion, 2020.
    """

    algorithm: Literal["weight_erosion"] = "weight_erosion"
    distance_penalty: float = Field(default=0.01, ge=0)  # p_d in eq. 5
    size_penalty: float = Field(default=0.2, ge=0)  # p_s in eq. 5
    size_unit: SizeUnit = "seen"
    batch_size: int | None = Field(default=None, ge=1)  # b in eq. 5; None: samples of the round
    zero_norm: Literal["freeze", "erode", "stop"] = "freeze"
    zero_norm_below: float = Field(default=1e-12, ge=0)  # |g_0| up to this counts as zero
    newcomer: Literal["median", "mean"] = "median"

    @model_validator(mode="after")
    def _counts_batches(self) -> Self:
        if self.size_unit == "batches" and self.batch_size is None:
            raise ValueError(
                "size_unit = 'batches' counts a hospital's samples in mini-batches; give batch_size"
            )
        return self

    def build(self, context: BuildContext) -> Algorithm[WeightErosionState]:
        """The algorithm with these parameters."""
        return Algorithm(_init, self._update, _asks)

    def _update(self, state: WeightErosionState, cohort: Cohort) -> Step[WeightErosionState]:
        own = cohort.own.agent
        before = self._with_newcomers(state, cohort)
        if float(cohort.norms()[0]) <= self.zero_norm_below:
            return self._without_direction(state, cohort, before)

        distances = dict(zip(cohort.peers, cohort.distances_to_own().tolist(), strict=True))
        after = {
            **before,
            **{
                update.agent: self._eroded(
                    state, update, before[update.agent], distances[update.agent]
                )
                for update in cohort.updates[1:]
            },
        }
        factors = torch.tensor([1.0, *(after[peer] for peer in cohort.peers)], dtype=torch.float64)
        delta = cohort.weighted_sum(factors / factors.sum())  # eq. 6, with the new weights
        return Step(delta, {own: 1.0} | after, self._next(state, cohort, after))

    def _eroded(
        self, state: WeightErosionState, update: Update, weight: float, distance: float
    ) -> float:
        repeats = self._repeats(state, update)
        return max(
            0.0, weight - (1 + self.size_penalty * repeats) * self.distance_penalty * distance
        )

    def _repeats(self, state: WeightErosionState, update: Update) -> int:
        """k_i: how often hospital i's samples have been used, as `size_unit` counts it."""
        batch = self.batch_size or update.samples_seen  # b
        batches = ceil(update.num_samples / batch)
        match self.size_unit:
            case "seen":  # the intent: samples used before this round
                return state.samples_seen.get(update.agent, 0) // update.num_samples
            case "formula":  # eq. 5 to the letter; state.round is r - 1
                return state.round * batch // update.num_samples
            case "completed_passes":  # the authors' Titanic code
                return (state.round + 1) // batches
            case "batches":  # the authors' MNIST code: |S_i| counted in batches
                return state.round * batch // batches

    def _with_newcomers(self, state: WeightErosionState, cohort: Cohort) -> dict[AgentId, float]:
        """Weights of all peers known by now; a late joiner starts at the median or mean.

        The median and mean are over the other hospitals registered so far, eroded ones included
        and the user (whose weight is 1 by definition) excluded.
        """
        known = dict(state.weights)
        typical = median if self.newcomer == "median" else fmean
        start = typical(known.values()) if known else 1.0
        return {**dict.fromkeys(cohort.peers, start), **known}

    def _next(
        self, state: WeightErosionState, cohort: Cohort, weights: Mapping[AgentId, float]
    ) -> WeightErosionState:
        seen = {
            update.agent: state.samples_seen.get(update.agent, 0) + update.samples_seen
            for update in cohort.updates[1:]
        }
        return WeightErosionState(state.round + 1, dict(weights), {**state.samples_seen, **seen})

    def _without_direction(
        self, state: WeightErosionState, cohort: Cohort, before: Mapping[AgentId, float]
    ) -> Step[WeightErosionState]:
        """Where |g_0| vanishes no distance is defined (appendix A, example 3)."""
        own = cohort.own.agent
        note = "the user's own update has norm zero, so no distance is defined"
        nothing = torch.zeros_like(cohort.own.delta)
        if self.zero_norm == "erode":
            after = {**before, **dict.fromkeys(cohort.peers, 0.0)}
            return Step(
                cohort.own.delta, {own: 1.0} | after, self._next(state, cohort, after), note=note
            )
        outcome: Literal["skipped", "stopped"] = (
            "stopped" if self.zero_norm == "stop" else "skipped"
        )
        return Step(nothing, {own: 1.0, **before}, state, outcome=outcome, note=note)
