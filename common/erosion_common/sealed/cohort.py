"""A cohort of updates that nobody sees: it knows their distances, and one sum of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from erosion_common.aggregation import vectors
from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.aggregation.vectors import Block

RATIO_TOLERANCE = 1e-9  # between weights that a rule asks for again


class SumWanted(Exception):  # noqa: N818 - a question, not an error
    """A rule asked for a sum that was not made yet."""

    def __init__(self, own: float, factors: Mapping[HospitalName, float]) -> None:
        """The user's own factor, and the peers'."""
        super().__init__("a sum is wanted")
        self.own, self.factors = own, factors


class NoSuchSum(Exception):  # noqa: N818 - ends the round, not the run
    """A rule asked for a second sum of the same updates, with other weights."""


@dataclass(frozen=True, slots=True, eq=False)
class SealedSum:
    """The one sum of a round."""

    weights: Mapping[HospitalName, float]  # that those in it applied
    total: Tensor  # (dim,) float32, the sum of weight times update over them
    capped: frozenset[HospitalName] = frozenset()  # with a lowered weight


@dataclass(frozen=True)
class SealedCohort:
    """Answers what distances and one sum can answer; see `Cohort`.

    The sum may be asked for again with proportional weights. A rule that asks before it was made
    meets SumWanted, and is asked again once it was.
    """

    own: Update
    others: Mapping[HospitalName, Update]  # without their deltas
    distances: Mapping[HospitalName, float]
    sum: SealedSum | None = field(default=None)

    @cached_property
    def peers(self) -> tuple[HospitalName, ...]:
        """The other hospitals' names, ascending."""
        return tuple(sorted(self.others))

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """Own first; the others' deltas are empty."""
        return (self.own, *(self.others[peer] for peer in self.peers))

    def own_norm(self) -> float:
        """Return |d_0|."""
        return vectors.norm(self.own.delta)

    def norms(self) -> Tensor:
        """Return |d_0|, and NaN for every other: (n+1,) float64."""
        return torch.tensor([self.own_norm(), *[math.nan] * len(self.peers)], dtype=torch.float64)

    def distances_to_own(self) -> Tensor:
        """Return the distances of the hospitals' sealed answers: (n,) float64."""
        return torch.tensor([self.distances[peer] for peer in self.peers], dtype=torch.float64)

    def gram(self) -> Tensor:
        """Raise NoSuchSum: sealed updates are not seen."""
        raise TypeError("a sealed round gives no inner products of single updates")

    def blocks(self) -> Iterator[Block]:
        """Raise NoSuchSum: sealed updates are not seen."""
        raise TypeError("a sealed round gives no single updates")

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of weight times update, own first: (n+1,) -> (dim,) float32."""
        factors: list[float] = weights.tolist()
        own, rest = factors[0], factors[1:]
        asked = dict(zip(self.peers, rest, strict=True))
        if not any(rest):
            return self.own.delta * own
        if self.sum is None:
            raise SumWanted(own, asked)
        made = self.sum
        times = _common_ratio(asked, made)
        share = 1.0
        if made.capped:  # what the cap took is shared out in proportion, the user's own included
            share = (own + sum(rest)) / (own + times * sum(made.weights.values()))
        moved = torch.mul(made.total, share * times)
        return moved.add_(self.own.delta, alpha=share * own)


class LoneCohort(SealedCohort):
    """The same with all weight on the user's own update: others' differ from it by nothing."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the user's own update times the sum of the weights: (n+1,) -> (dim,) float32."""
        return self.own.delta * float(weights.sum())


def _common_ratio(asked: Mapping[HospitalName, float], made: SealedSum) -> float:
    """Return how many times the sum is asked for. Raises NoSuchSum where no number fits."""
    used = made.weights
    ratios = {name: factor / used[name] for name, factor in asked.items() if used.get(name)}
    exact = [ratio for name, ratio in ratios.items() if name not in made.capped] or [0.0]
    others = any(factor for name, factor in asked.items() if name not in ratios)
    times, spread = exact[0], max(exact) - min(exact)
    lowered = all(ratios[name] >= times for name in made.capped & ratios.keys())
    if others or not lowered or spread > RATIO_TOLERANCE * abs(times):
        raise NoSuchSum("the method wants a second sum of the same updates, with other weights")
    return times
