"""Methods in which the coordinator follows the user's own model without averaging: FedAMP, others'.

The others' latest models are kept as differences from the user's. They are enclosed for its site
(`ensemble`, `fedfomo`), or averaged for each hospital (FedAMP).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName, squared_distances
from erosion_common.algorithms.base import Algorithm, ArmBase, BuildContext, Step, relative_weights
from erosion_common.learning.local_work import LocalOutcome, LocalWork, Tensors
from erosion_common.learning.training import Training
from erosion_common.settings.names import OrAuto

_OTHERS = "others"  # (n, dim) enclosed for the user: their models minus the user's


@dataclass(frozen=True, slots=True)
class OwnModelState:
    """Where the others' latest models are, seen from the user's."""

    offsets: Mapping[HospitalName, Tensor]  # theta_i - theta_0, each (dim,)


def follow_own_model(
    shares: Callable[[OwnModelState, Cohort], Mapping[HospitalName, float]],
) -> Algorithm[Any]:
    """Return a rule that moves by the user's own update; `shares` gives the reported weights."""

    def update(state: OwnModelState, cohort: Cohort) -> Step[OwnModelState]:
        own = cohort.own.delta
        # theta_i + d_i - (theta_0 + d_0), where all started the round from the user's theta_0; who
        # was absent has the model that it had, while the user's has moved on.
        seen = {u.agent: u.delta - own for u in cohort.updates[1:]}
        absent = {a: offset - own for a, offset in state.offsets.items() if a not in seen}
        return Step(own.clone(), shares(state, cohort), OwnModelState({**absent, **seen}))

    def forget(state: OwnModelState, agent: HospitalName) -> OwnModelState:
        return OwnModelState({n: offset for n, offset in state.offsets.items() if n != agent})

    return Algorithm(
        lambda _dim: OwnModelState({}), update, broadcast_to_user=_broadcast, forget=forget
    )


def _broadcast(state: OwnModelState) -> Tensors:
    if not state.offsets:
        return {}
    return {_OTHERS: torch.stack([state.offsets[agent] for agent in sorted(state.offsets)])}


def with_others(work: LocalWork) -> Tensor:
    """Return the user's model and the enclosed ones: (m, dim), the user's first."""
    own = work.received.unsqueeze(0)
    return torch.cat([own, own + work.enclosed[_OTHERS]]) if _OTHERS in work.enclosed else own


_LOCAL = "local"  # a peer's w_i, at its site
_CLOUD = "cloud"  # (dim,) u_i minus the user's parameters, for each hospital another one


class FedAmp(ArmBase):
    """Every hospital has a model, pulled to an average in which similar hospitals' models weigh.

    Hospital i trains w_i on its loss plus proximal_weight / 2 |w - u_i|^2, where u_i = sum_j xi_ij
    w_j, xi_ij = attention / n exp(-|w_i - w_j|^2 / sigma) for the n - 1 others, and the rest of 1
    is its own. Use it where groups of hospitals are alike and nobody knows which. All hospitals'
    models are trained for one user's run, and the coordinator keeps them; the user predicts with
    w_0. Each u_i is made of others' models, and of the last known one of who is away.
    Source: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, 2021, with
    alpha_k / sigma = attention / n and lambda / alpha_k = proximal_weight; sigma = "auto" is ours.
    """

    private_updates: ClassVar[bool] = True

    algorithm: Literal["fedamp"] = "fedamp"
    proximal_weight: float = Field(  # lambda / alpha_k
        default=1.0, ge=0, description="How strongly a model is pulled to its average; 0 is local."
    )
    attention: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="What models that equal its own count in an average; 1: as much as that.",
    )
    sigma: OrAuto[Annotated[float, Field(gt=0)]] = Field(
        default="auto",
        description="Squared distance at which a model counts 1 / e of that; "
        '"auto": the mean over all pairs of hospitals.',
    )

    def build(self, context: BuildContext) -> Algorithm[Any]:
        return replace(
            follow_own_model(self._weights),
            broadcast_to_user=lambda state: self._cloud(state, None),
            broadcast_to_peer=self._cloud,
        )

    def shares(self, squared: Tensor) -> Tensor:
        """Return xi by |w_i - w_j|^2: both (n, n) float64, of hospitals in the same order."""
        n = len(squared)
        sigma = squared.sum() / max(1, n * (n - 1))  # 0 only where all are equal
        if self.sigma != "auto":
            sigma = torch.tensor(self.sigma, dtype=torch.float64)
        found = torch.exp(-squared / sigma.clamp(min=1e-300)) * (self.attention / n)
        found.fill_diagonal_(0.0)
        return found + torch.diag(1 - found.sum(dim=1))

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train the hospital's own model, pulled to its average once there is one."""
        start = work.received if work.is_user else work.kept.get(_LOCAL, work.received)
        cloud = work.received + work.enclosed.get(_CLOUD, torch.zeros_like(work.received))

        def pull(w: Tensor) -> Tensor:
            return self.proximal_weight * (w - cloud)

        result = work.update(start, pull if _CLOUD in work.enclosed else None)
        local = start + result.delta
        keep = {} if work.is_user else {_LOCAL: local}
        return LocalOutcome(local - work.received, result.samples_seen, keep=keep)

    def problem_with_training(self, training: Training) -> str | None:
        return training.problem_with_pull(self.proximal_weight)

    def _cloud(self, state: OwnModelState, agent: HospitalName | None) -> Tensors:
        """Return u of a hospital, None being the user; nothing before its first model is known."""
        names = [None, *sorted(state.offsets)]
        if len(names) == 1 or agent not in names:
            return {}
        others = torch.stack([state.offsets[name] for name in sorted(state.offsets)]).double()
        models = torch.cat([torch.zeros_like(others[:1]), others])
        shares = self.shares(torch.cdist(models, models).square())
        return {_CLOUD: (shares[names.index(agent)] @ models).float()}

    def _weights(self, _state: OwnModelState, cohort: Cohort) -> Mapping[HospitalName, float]:
        return relative_weights(cohort, self.shares(squared_distances(cohort))[0].tolist())
