"""Evidence erosion: distance counts only as far as noise does not explain it. A rule of our own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from erosion_common.aggregation.cohort import Cohort, HospitalName, Update
from erosion_common.algorithms.base import (
    OUTPUT_BIAS,
    Algorithm,
    BuildContext,
    Step,
    relative_weights,
)
from erosion_common.algorithms.equal_steps import as_of_equal_steps, problem_with_sealed_epochs
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.algorithms.weight_erosion import noise_in
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize
from erosion_common.learning.training import Training

_NOISE = "noise"  # (1,) s_i


@dataclass(frozen=True, slots=True)
class EvidenceErosionState:
    """Moving averages for every hospital that has been in a cohort, the user included."""

    round: int  # rounds aggregated so far
    squared_distances: Mapping[HospitalName, float]  # D_i
    noises: Mapping[HospitalName, float]  # s_i


class EvidenceErosion(AggregatingArm):
    """Hospitals count by how many patients they have and how little evidence of bias there is.

    Much of the distance between two hospitals' updates is noise: few patients, few steps. So every
    hospital trains in each round on two random halves of its patients; its update is the mean of
    the two, and their difference measures its noise s_i. (With fewer patients than two of its
    smallest cells it halves them four times and sends the means, which are of all of them.) What a
    distance D_i to the user's update exceeds (1 + delta) (s_i + s_0) by is squared bias b_i^2, and
    the hospital's weight relative to the user's is (n_i / n_0) / (1 + kappa b_i^2 / s_i), times
    exp(-rho r / R) in round r of R. The output bias stays at each hospital. Where training is in
    epochs, updates are scaled to the user's number of steps first. Use it where you have few
    patients (30 to 60) and do not know who is like you. A hospital that overstates its noise would
    excuse any distance, so no more of it is believed than `largest_noise` times what the user's own
    would be at as few patients.
    Source: this project.
    """

    sums_only: ClassVar[bool] = True
    private_updates: ClassVar[bool] = True
    compares_steps: ClassVar[bool] = True
    leaves_user_out: ClassVar[bool] = True

    algorithm: Literal["evidence_erosion"] = "evidence_erosion"
    own_parameters: tuple[str, ...] = Field(
        default=(OUTPUT_BIAS,), description="What stays at the hospital."
    )
    bias_penalty: float = Field(  # kappa
        default=2.0, ge=0, description="How strongly evidence of bias lowers a hospital's weight."
    )
    noise_margin: float = Field(  # delta
        default=1.0,
        ge=0,
        description="How far beyond the noise a distance must be to count as bias; 0 for networks.",
    )
    decay: float = Field(  # rho
        default=0.0,
        ge=0,
        description="How fast all peers' weights fall over the rounds; 2.4 leaves the last "
        "rounds to the user.",
    )
    largest_noise: float = Field(
        default=3.0, gt=0, description="Of a peer, relative to the user's own."
    )
    smoothing: float = Field(
        default=0.7, ge=0, lt=1, description="Of the moving averages of D_i and s_i."
    )

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train on each half; return the mean of both and their difference as noise."""
        found = [[half.update(work.received) for half in pair] for pair in work.halvings()]
        every, pairs = [result for pair in found for result in pair], len(found)
        steps = sum(result.steps for result in every)
        means, noises = [], []
        for pair in found:
            # A step more in one half is no noise: all are as of equally many.
            one, other = (half.delta * (steps / (2 * pairs * half.steps)) for half in pair)
            apart = one - other
            if work.own is not None:
                apart = apart.masked_fill(work.own, 0.0)
            noises.append(apart.double().square().sum() / 4)  # |a - b|^2 / 4
            means.append((one + other) / 2)
        return LocalOutcome(
            torch.stack(means).mean(dim=0),
            round(sum(result.samples_seen for result in every) / pairs),
            {_NOISE: torch.stack(noises).mean().reshape(1).float()},
            steps=round(steps / pairs),
        )

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        return (whole.half(),)

    def equal_steps(self, context: BuildContext) -> Callable[[int], int]:
        return lambda num_samples: 2 * context.steps(ceil(num_samples / 2))

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        noise, steps = noise_in(context, self.own_parameters), self.equal_steps(context)

        def update(state: EvidenceErosionState, cohort: Cohort) -> Step[EvidenceErosionState]:
            # The noise for privacy is in each half as in an update of half as many patients.
            added = [2 * n for n in noise.of(cohort)] if noise else [0.0] * len(cohort.peers)
            cohort, scaled_by = as_of_equal_steps(cohort, steps)
            after = self._observed(state, cohort, scaled_by)
            faded = exp(-self.decay * after.round / context.rounds)
            others = zip(cohort.updates[1:], added, strict=True)
            shares = [1.0, *(faded * self._share(after, cohort.own, u, a) for u, a in others)]
            factors = torch.tensor(shares, dtype=torch.float64)
            delta = self.average(cohort, factors)
            return Step(delta, relative_weights(cohort, shares), after)

        return Algorithm(lambda _dim: EvidenceErosionState(0, {}, {}), update)

    def problem_with_sealed_training(self, training: Training) -> str | None:
        """Refuse unequal steps: sealed distances compare updates unscaled."""
        return problem_with_sealed_epochs(training)

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        return {_NOISE: 1}

    def _share(self, state: EvidenceErosionState, own: Update, peer: Update, added: float) -> float:
        """Return alpha_i = (n_i / n_0) / (1 + kappa b_i^2 / s_i); `added`: privacy noise in s_i."""
        own_noise = state.noises[own.agent]
        fewer = max(1.0, own.num_samples / peer.num_samples)
        believed = self.largest_noise * (own_noise * fewer + added)
        noise = min(state.noises[peer.agent], believed)
        excess = state.squared_distances[peer.agent] - (1 + self.noise_margin) * (noise + own_noise)
        error = noise + self.bias_penalty * max(0.0, excess)
        return peer.num_samples / own.num_samples * (noise / error if error > 0 else 1.0)

    def _observed(
        self, state: EvidenceErosionState, cohort: Cohort, scaled_by: Sequence[float]
    ) -> EvidenceErosionState:
        """Return the moving averages after this round; an absent hospital's stay."""
        norms = cohort.norms()
        # Relative distances to an update of norm zero are infinite; these are not.
        apart = cohort.distances_to_own() * norms[0] if norms[0] > 0 else norms[1:]
        squares = apart.square().tolist()
        noises = {
            u.agent: max(0.0, float(u.attachments[_NOISE])) * factor**2
            for u, factor in zip(cohort.updates, scaled_by, strict=True)
        }
        return replace(
            state,
            round=state.round + 1,
            squared_distances=self._averaged(
                state.squared_distances, dict(zip(cohort.peers, squares, strict=True))
            ),
            noises=self._averaged(state.noises, noises),
        )

    def _averaged(
        self, old: Mapping[HospitalName, float], new: Mapping[HospitalName, float]
    ) -> dict[HospitalName, float]:
        past = self.smoothing
        averaged = {a: past * old[a] + (1 - past) * new[a] if a in old else new[a] for a in new}
        return {**old, **averaged}
