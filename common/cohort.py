"""One round's updates, and the few questions that an algorithm may ask of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from common.vectors import distance, norm

AgentId = str  # a hospital's enrolled name, never Flower's node id


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one hospital returns for one round."""

    agent: AgentId
    round: int
    delta: Tensor  # (dim,) float32; parameters after local SGD minus before
    num_samples: int  # training samples at the hospital, |S_i|
    samples_seen: int  # samples that this round's local steps used
    attachments: Mapping[str, Tensor] = field(default_factory=dict)


class Cohort(Protocol):
    """One round's accepted updates: the user's own first, then the peers by name."""

    @property
    def own(self) -> Update:
        """The user's own update."""
        ...

    @property
    def updates(self) -> Sequence[Update]:
        """Every accepted update, own first, then by name; the deltas may be absent from memory."""
        ...

    @property
    def peers(self) -> Sequence[AgentId]:
        """The other hospitals' names, ascending; may be empty."""
        ...

    def norms(self) -> Tensor:
        """|d_i| of every update, own first: (n+1,) float64."""
        ...

    def distances_to_own(self) -> Tensor:
        """|d_i - d_0| / |d_0| of every peer: (n,) float64; infinite where |d_0| = 0 < |d_i|."""
        ...

    def gram(self) -> Tensor:
        """Inner products of all updates, own first: (n+1, n+1) float64."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of weight times update over all updates, own first: weights (n+1,) -> (dim,)."""
        ...


@dataclass(frozen=True)
class MemoryCohort:
    """A cohort whose updates are all in memory."""

    own: Update
    others: Mapping[AgentId, Update] = field(default_factory=dict)

    @cached_property
    def peers(self) -> tuple[AgentId, ...]:
        """The other hospitals' names, ascending."""
        return tuple(sorted(self.others))

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """Every accepted update, own first."""
        return (self.own, *(self.others[peer] for peer in self.peers))

    def norms(self) -> Tensor:
        """|d_i|, own first: (n+1,) float64."""
        return torch.tensor([norm(u.delta) for u in self.updates], dtype=torch.float64)

    @cached_property
    def _distances(self) -> Tensor:
        own = norm(self.own.delta)
        apart = [distance(self.others[peer].delta, self.own.delta) for peer in self.peers]
        # Two zero updates are equal: their distance is 0, not 0/0.
        relative = [0.0 if a == 0 else a / own if own else math.inf for a in apart]
        return torch.tensor(relative, dtype=torch.float64)

    def distances_to_own(self) -> Tensor:
        """|d_i - d_0| / |d_0| of every peer: (n,) float64."""
        return self._distances

    def gram(self) -> Tensor:
        """Inner products of all updates, own first: (n+1, n+1) float64."""
        deltas = [update.delta.double() for update in self.updates]
        return torch.stack([torch.stack([a @ b for b in deltas]) for a in deltas])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of weight times update, own first: (n+1,) -> (dim,) float32."""
        total = torch.zeros_like(self.own.delta)
        for weight, update in zip(weights.tolist(), self.updates, strict=True):
            if weight:
                total.add_(update.delta, alpha=weight)
        return total
