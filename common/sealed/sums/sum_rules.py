"""Limits on a sum's weights, so that nobody can take it apart."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from erosion.common.sealed.digest import Part
from erosion.common.sealed.masks import shamir


@dataclass(frozen=True, slots=True)
class SumRules:
    """A site's own, from its limits; the coordinator keeps to the defaults."""

    min_summed: int = 3  # with 2, the coordinator and one of them see the other
    largest_share: float = 0.5  # of the largest weight in the peers' sum
    known: frozenset[str] | None = None  # who may be counted on to hide others; None: everybody

    @property
    def parts(self) -> tuple[Part, ...]:
        """What goes into a hash of them."""
        known = ("all",) if self.known is None else ("known", *sorted(self.known))
        return (self.min_summed, float(self.largest_share), *known)

    def among(self, names: Collection[str]) -> "SumRules":
        """The same where only those are there, so that no others need be named."""
        return self if self.known is None else replace(self, known=self.known.intersection(names))

    def problem_with(self, weights: Mapping[str, float]) -> str | None:
        """Why a sum with these weights would show too much of one hospital, or None.

        Hospitals that are not known here may be the coordinator's own: what it knows it can take
        off, so what is left of the sum must do by itself.
        """
        if (problem := self._problem_with(weights)) or self.known is None:
            return problem
        problem = self._problem_with({n: w for n, w in weights.items() if n in self.known})
        return problem and f"of those in limits.summed_with, {problem}"

    def problem_with_holders(self, names: Collection[str]) -> str | None:
        """Why no secret may be shared out among these hospitals, or None.

        Enough of them to take this one's masks off by themselves, where the others are told two
        stories, would do so without any sum.
        """
        if self.known is None:
            return None
        enough = 2 * shamir.threshold(len(names)) - len(names)
        if (strangers := len(set(names) - self.known)) < enough:
            return None
        return (
            f"{strangers} of its {len(names)} hospitals are not in limits.summed_with, and"
            f" {enough} together with the coordinator could take this site's masks off"
        )

    def _problem_with(self, weights: Mapping[str, float]) -> str | None:
        if not all(0 <= weight <= 1 for weight in weights.values()):
            return "a weight outside of 0 to 1"
        used = [weight for weight in weights.values() if weight > 0]
        if len(used) < self.min_summed:
            return f"{len(used)} hospitals in the sum; limits.min_summed = {self.min_summed}"
        total = sum(used)
        if total > 1 + 1e-9:
            return f"weights that add up to {total:g}"
        if max(used) > self.largest_share * total * (1 + 1e-9):
            return (
                f"one hospital has {max(used) / total:.3g} of the sum;"
                f" limits.largest_share = {self.largest_share:g}"
            )
        return None

    def capped(self, weights: Mapping[str, float]) -> dict[str, float] | None:
        """The same weights with the largest lowered until they may be summed, or None.

        Those above the cap get the same weight, `largest_share` of the new sum each.
        """
        order = sorted((n for n in weights if weights[n] > 0), key=lambda n: -weights[n])
        if len(order) < max(self.min_summed, math.ceil(1 / self.largest_share)):
            return None
        for num_lowered in range(len(order)):
            others = sum(weights[name] for name in order[num_lowered:])
            left = 1 - num_lowered * self.largest_share
            if left <= 0:
                break
            cap = self.largest_share * others / left
            if weights[order[num_lowered]] <= cap or math.isclose(weights[order[num_lowered]], cap):
                lowered = dict.fromkeys(order[:num_lowered], cap)
                return {**weights, **lowered}
        return None
