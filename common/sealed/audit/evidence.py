"""Evidence of a round whose sum did not fit its distances, for an audit by people.

Every hospital signed what it put under its masks. When a person there opens the masks, anybody can
see what that was, and how far from the user's update it really is.
"""

from typing import Literal

from pydantic import Field

from erosion.common.algorithms.base import SealedMeasure
from erosion.common.sealed import fields
from erosion.common.sealed.legs import HelloKeys, Lengths, ReceiptSaid
from erosion.common.sealed.roster import RoundContext, View
from erosion.common.settings.base import Settings


class ContextOf(Settings):
    """A `RoundContext` as JSON."""

    study: str
    run: str
    arm: str
    round: int
    attempt: fields.Attempt
    received: fields.Hash

    @classmethod
    def of(cls, context: RoundContext) -> "ContextOf":
        """As it is kept."""
        return cls(
            study=context.study,
            run=context.run,
            arm=context.arm,
            round=context.round,
            attempt=context.attempt,
            received=context.received,
        )

    @property
    def context(self) -> RoundContext:
        """As it is used."""
        return RoundContext(self.study, self.run, self.arm, self.round, self.attempt, self.received)


class Evidence(Settings):
    """One round. The user's own update lies beside it."""

    version: Literal[3] = 3
    context: ContextOf
    roster: dict[str, HelloKeys]
    asked: fields.Hash  # of leg 2
    weights: dict[str, fields.ExactFloat]
    scale: fields.ExactFloat
    distances: dict[str, fields.ExactFloat]  # as they were claimed
    delivered: dict[str, ReceiptSaid]
    apart: float  # |M - W g_0|
    at_most: float  # what the claimed distances allow
    claims: Literal["distances", "lengths"] = "distances"  # with lengths: |M|, and what they allow
    lengths: dict[str, Lengths] = Field(default_factory=dict)  # as they were claimed
    places: list[tuple[int, int, float]] = Field(default_factory=list)  # of the measure

    @property
    def view(self) -> View:
        """What the hospitals were told."""
        return View(self.asked, self.weights, self.scale)

    @property
    def measure(self) -> SealedMeasure:
        """What the distances are of."""
        return SealedMeasure(tuple((slice(a, b), weight) for a, b, weight in self.places))
