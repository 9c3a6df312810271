"""Limits on a sum's weights, so that nobody can take it apart."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from erosion.common.sealed.digest import Part
from erosion.common.sealed.masks import shamir

REAL_SHARE = 0.1  # of the largest weight: with less a hospital hides nobody, and does not count
ALLIES = 1  # members that may take off what they know of a sum


@dataclass(frozen=True, slots=True)
class SumRules:
    """A site's own, from its limits; the coordinator keeps to the defaults.

    They are about what is left of a sum when any one of its hospitals, which works with the
    coordinator and knows its own update, has taken that off.
    """

    min_summed: int = 3  # that are left: of 2 each sees the other
    largest_share: float = 0.5  # of the largest weight in what is left
    known: frozenset[str] | None = None  # who may be counted on to hide others; None: everybody

    @property
    def parts(self) -> tuple[Part, ...]:
        """What goes into a hash of them."""
        known = ("all",) if self.known is None else ("known", *sorted(self.known))
        return (self.min_summed, float(self.largest_share), *known)

    @property
    def fewest(self) -> int:
        """Hospitals in a sum."""
        return self.min_summed + ALLIES

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
        total = sum(weights.values())
        if total > 1 + 1e-9:
            return f"weights that add up to {total:g}"
        ordered = sorted(weights.values(), reverse=True)
        largest = ordered[0] if ordered else 0.0
        num_real = sum(weight >= REAL_SHARE * largest > 0 for weight in ordered)
        if num_real < self.fewest:
            return (
                f"{num_real} hospitals in the sum with a tenth of the largest weight or more;"
                f" without any one of them limits.min_summed = {self.min_summed} must be left"
            )
        # The largest part of what is left is largest where the second largest is taken off.
        left = total - sum(ordered[1 : 1 + ALLIES])
        if largest > self.largest_share * left * (1 + 1e-9):
            return (
                f"without one other, one hospital has {largest / left:.3g} of the sum;"
                f" limits.largest_share = {self.largest_share:g}"
            )
        return None

    def capped(self, weights: Mapping[str, float]) -> dict[str, float] | None:
        """The same weights with the largest lowered until they may be summed, or None.

        Those that are lowered get the same weight: as much as the rules allow.
        """
        order = sorted((n for n in weights if weights[n] > 0), key=lambda n: -weights[n])
        for num_lowered in range(len(order)):
            below = [weights[name] for name in order[num_lowered:]]
            cap = self._cap(num_lowered, below)
            if cap >= below[0] * (1 - 1e-12):
                lowered = {n: min(weights[n], cap) for n in order[:num_lowered]}
                capped = {**weights, **lowered}
                return None if self.problem_with(capped) else capped
        return None

    def _cap(self, num_lowered: int, below: Sequence[float]) -> float:
        """The largest weight that so many may have together with these smaller ones."""
        share, others = self.largest_share, sum(below)
        if num_lowered == 0:
            return share * (others - sum(below[1:2]))
        if num_lowered == 1:
            return share * (others - below[0]) / (1 - share)
        return share * others / (1 - share * (num_lowered - 1))
