"""Shared by methods in which the coordinator follows the user's own model without averaging.

The others' latest models are kept as differences from the user's, and enclosed for its site.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import Algorithm, Step
from erosion_common.learning.local_work import LocalWork, Tensors

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
