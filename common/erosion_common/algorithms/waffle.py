"""WAFFLE: weighted averaging of SCAFFOLD's updates (Beaussart et al. 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName, squared_distances
from erosion_common.algorithms.base import (
    Algorithm,
    BuildContext,
    Step,
    relative_weights,
    too_few_in_study,
)
from erosion_common.algorithms.scaffold import CONTROL, MEAN_CONTROL, ControlVariates
from erosion_common.learning.local_work import Tensors

_ROUNDS = 3  # over which weights are averaged


@dataclass(frozen=True, slots=True)
class WaffleState:
    """What weights and the mean control variate are made of."""

    user: HospitalName  # "" before the first round
    round: int  # rounds aggregated so far
    controls: Mapping[HospitalName, Tensor]  # c_i, each (dim,)
    distances: tuple[Mapping[HospitalName, float], ...]  # d_i of the peers, of the last rounds


class Waffle(ControlVariates):
    """SCAFFOLD with a weight for each hospital, which falls with its distance from the user.

    With d_i the squared distance of a hospital's update from the user's, d_m and d_M the least and
    the largest, and d_0 = d_m (1 - (1 - d_m / d_M) (1 - s)) in place of the user's own, 0, a weight
    is max(0, s - (d_i - d_0) / (d_M - d_0)), divided by the sum of all and averaged over three
    rounds. s falls from near 1 to near 0 over the study's rounds: 1 / (1 + exp(selectivity (2 r / R
    - 1))). So training is common at first, and the user's own in the end. Updates and control
    variates have the same weights. Use it like `weight_erosion` where hospitals train long. It
    needs three hospitals, and optimizer = "sgd" without momentum.
    Source: Beaussart, Grimberg, Hartley, Jaggi, WAFFLE: Weighted Averaging for Personalized
    Federated Learning, 2021; its equations were held against a summary that gives all of them. It
    adds up weighted changes of the control variates, so that one still counts after its hospital's
    weight has fallen; here the mean is of all by the weights of the day. Who is away counts with
    the last distance; distance = "gradients" is ours.
    """

    algorithm: Literal["waffle"] = "waffle"
    selectivity: float = Field(  # Delta Omega
        default=3.2, gt=0, le=100, description="How steeply common training ends, half-way."
    )
    distance: Literal["updates", "gradients"] = Field(
        default="updates",
        description='Of what: "updates" as they are sent, or "gradients", the means in a round, '
        "which control variates do not make alike.",
    )

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        def update(state: WaffleState, cohort: Cohort) -> Step[WaffleState]:
            known = state.distances[-1] if state.distances else {}
            seen = {**known, **self._distances(cohort)}
            after = WaffleState(
                cohort.own.agent,
                state.round + 1,
                {**state.controls, **{u.agent: u.attachments[CONTROL] for u in cohort.updates}},
                (*state.distances, seen)[-_ROUNDS:],
            )
            found = self._weights(after, context.rounds)
            shares = torch.tensor([found[u.agent] for u in cohort.updates], dtype=torch.float64)
            delta = cohort.weighted_sum(shares / shares.sum())
            return Step(delta, relative_weights(cohort, shares.tolist()), after)

        def broadcast(state: WaffleState) -> Tensors:
            if not state.controls:
                return {}
            found = self._weights(state, context.rounds)
            weighed = [found[name] * state.controls[name] for name in sorted(state.controls)]
            return {MEAN_CONTROL: torch.stack(weighed).sum(dim=0)}

        def forget(state: WaffleState, agent: HospitalName) -> WaffleState:
            return replace(
                state,
                controls={n: c for n, c in state.controls.items() if n != agent},
                distances=tuple(
                    {n: d for n, d in each.items() if n != agent} for each in state.distances
                ),
            )

        return Algorithm(
            lambda _dim: WaffleState("", 0, {}, ()), update, broadcast=broadcast, forget=forget
        )

    def problem_with(self, num_hospitals: int) -> str | None:
        """Refuse a single peer: the least distance would also be the largest."""
        return too_few_in_study("waffle", num_hospitals, 3, "take scaffold or weight_erosion")

    def _distances(self, cohort: Cohort) -> dict[HospitalName, float]:
        if self.distance == "updates":
            found = squared_distances(cohort)[0, 1:].tolist()
        else:
            own = cohort.own.attachments[CONTROL]
            apart = [u.attachments[CONTROL] - own for u in cohort.updates[1:]]
            found = [float(d.double().square().sum()) for d in apart]
        return dict(zip(cohort.peers, found, strict=True))

    def _weights(self, state: WaffleState, rounds: int) -> dict[HospitalName, float]:
        """Return each known hospital's alpha, the mean over the last rounds; their sum is 1."""
        total = dict.fromkeys([state.user, *state.distances[-1]], 0.0)
        first = state.round - len(state.distances) + 1
        for number, distances in enumerate(state.distances, start=first):
            s = 1 / (1 + exp(self.selectivity * (2 * number / rounds - 1)))
            found = weights_of(distances, s)
            unit = (s + sum(found.values())) * len(state.distances)
            total[state.user] += s / unit
            for name, weight in found.items():
                total[name] += weight / unit
        return total


def weights_of(distances: Mapping[HospitalName, float], s: float) -> dict[HospitalName, float]:
    """Return the peers' weights before they are divided by the sum; the user's is `s`."""
    least, largest = min(distances.values(), default=0.0), max(distances.values(), default=0.0)
    own = least * (1 - (1 - least / largest) * (1 - s)) if largest else 0.0
    spread = largest - own
    return {
        name: max(0.0, s - (d - own) / spread) if spread else s for name, d in distances.items()
    }
