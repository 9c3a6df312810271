"""What a sealed round is about, its limits, and the small values of each phase's request and reply.

1 train: the attempt down; a site's fresh keys up. 2 distance: the roster and what seals the user's
update down; a sealed distance up, and for each other site an envelope with its shares. 3 masked:
the weights down; the masked update up. 4 unmask: who delivered down; one share for each up. Long
arrays travel with them. As JSON bytes are hexadecimal, and numbers exact to the last bit: weights
and scales are in the masks' keys, so a last digit that changed on the way would be noise.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from erosion_common.sealed.keys import KEY_BYTES, Part, digest
from erosion_common.sealed.shares import COMMITMENT_BYTES, ENVELOPE_BYTES, SHARE_BYTES, threshold
from erosion_common.settings.base import Settings
from erosion_common.settings.names import Name

DISTANCE, MASKED, UNMASK = "sealed_distance", "sealed_masked", "sealed_unmask"  # steps
STEPS = frozenset({DISTANCE, MASKED, UNMASK})
ATTEMPT = "attempt"  # the value of a train request that says that its round is sealed
ATTEMPT_BYTES = 16
MOST_KNOWN = 1 << 16  # hospitals that a site's rules name

# Arrays, by their names in a message
SEALED_OWN = "sealed_own"  # (num_values, |n|) uint8, Enc(u_j)
MODULUS_PROOF = "modulus_proof"  # (128, |n|) uint8
SEALED_DISTANCE = "sealed_distance"  # (|n|,) uint8
WORDS = "words"  # (dim,) uint32


def _from_hexadecimal(value: object) -> object:
    return bytes.fromhex(value) if isinstance(value, str) else value


def _from_hexadecimal_float(value: object) -> object:
    try:
        return float.fromhex(value) if isinstance(value, str) else value
    except OverflowError:  # which pydantic would not take for a wrong value
        raise ValueError("the number is too large") from None


Hexadecimal = Annotated[
    bytes,
    BeforeValidator(_from_hexadecimal),
    PlainSerializer(lambda value: value.hex(), return_type=str),
]
Key = Annotated[Hexadecimal, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Hash = Annotated[Hexadecimal, Field(min_length=32, max_length=32)]
Signature = Annotated[Hexadecimal, Field(min_length=8, max_length=144)]  # P-256 or P-384, DER
AttemptId = Annotated[Hexadecimal, Field(min_length=ATTEMPT_BYTES, max_length=ATTEMPT_BYTES)]
Share = Annotated[Hexadecimal, Field(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
Commitment = Annotated[Hexadecimal, Field(min_length=COMMITMENT_BYTES, max_length=COMMITMENT_BYTES)]
Envelope = Annotated[Hexadecimal, Field(min_length=ENVELOPE_BYTES, max_length=ENVELOPE_BYTES)]
ExactFloat = Annotated[
    float,
    BeforeValidator(_from_hexadecimal_float),
    PlainSerializer(lambda value: float(value).hex(), return_type=str),
]


@dataclass(frozen=True, slots=True)
class RoundContext:
    """Which attempt at which round."""

    study: str  # digest
    run: str
    arm: str
    round: int
    attempt: AttemptId
    received: Hash  # of what the sites train from

    @property
    def parts(self) -> tuple[Part, ...]:
        """What goes into a hash of it."""
        return (self.study, self.run, self.arm, self.round, self.attempt, self.received)

    @property
    def run_hash(self) -> bytes:
        """Of the run and its arm."""
        return digest("run", self.study, self.run, self.arm)


@dataclass(frozen=True, slots=True)
class Hello:
    """A site's public keys of one attempt, signed by its node key."""

    mask: Key
    seal: Key
    signature: Signature


Roster = Mapping[str, Hello]  # the user's own site is not in it


@dataclass(frozen=True)
class View:
    """The view that the sites of one sum got."""

    asked: bytes  # hash of phase 2: of the attempt, everybody in it, and the question
    weights: Mapping[str, float]  # the peers' factors; with the user's own they add up to 1
    scale: float

    @property
    def members(self) -> list[str]:
        """Return the hospitals with updates in the sum, by name."""
        return sorted(name for name, weight in self.weights.items() if weight > 0)

    @cached_property
    def hash(self) -> bytes:
        """All of it."""
        entries = [part for n in sorted(self.weights) for part in (n, float(self.weights[n]))]
        return digest("view", self.asked, *entries, float(self.scale))


REAL_SHARE = 0.1  # of the largest weight: with less a hospital hides nobody, and does not count
ALLIES = 1  # members that may take off what they know of a sum


@dataclass(frozen=True, slots=True)
class SumRules:
    """Limits on a sum's weights, so that nobody can take it apart: a site's, or the defaults.

    They are about the rest of a sum after any one of its hospitals, which works with the
    coordinator and knows its own update, has taken that off.
    """

    min_summed: Annotated[int, Field(ge=0, le=2**31)] = 3  # in that rest: of 2 each sees the other
    largest_share: ExactFloat = 0.5  # of the largest weight in the rest
    known: Annotated[frozenset[Name] | None, Field(max_length=MOST_KNOWN)] = None
    # who may be counted on to hide others; None: everybody

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
        """Return the same where only those are there, so that no others need be named."""
        return self if self.known is None else replace(self, known=self.known.intersection(names))

    def problem_with(self, weights: Mapping[str, float]) -> str | None:
        """Return why a sum with these weights would show too much of one hospital, or None.

        Hospitals that are not known here may be the coordinator's own: what it knows it can take
        off, so the rest of the sum must suffice.
        """
        if (problem := self._problem_with(weights)) or self.known is None:
            return problem
        problem = self._problem_with({n: w for n, w in weights.items() if n in self.known})
        return problem and f"of those in limits.summed_with, {problem}"

    def problem_with_holders(self, names: Collection[str]) -> str | None:
        """Return why no secret may be shared out among these hospitals, or None.

        A group of them large enough to take this one's masks off could do so without any sum if the
        others got two different views.
        """
        if self.known is None:
            return None
        enough = 2 * threshold(len(names)) - len(names)
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
        # The largest part of the rest is largest where the second largest is taken off.
        left = total - sum(ordered[1 : 1 + ALLIES])
        if largest > self.largest_share * left * (1 + 1e-9):
            return (
                f"without one other, one hospital has {largest / left:.3g} of the sum;"
                f" limits.largest_share = {self.largest_share:g}"
            )
        return None

    def capped(self, weights: Mapping[str, float]) -> dict[str, float] | None:
        """Return the weights with the largest lowered alike until they may be summed, or None."""
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
        """Return the largest weight that `num_lowered` may have with these smaller ones."""
        share, others = self.largest_share, sum(below)
        if num_lowered == 0:
            return share * (others - sum(below[1:2]))
        if num_lowered == 1:
            return share * (others - below[0]) / (1 - share)
        return share * others / (1 - share * (num_lowered - 1))


@dataclass(frozen=True, slots=True)
class Receipt:
    """A site's signature of what it put under its masks, of its view, and of its rules.

    The others take the masks off without it: so they keep its rules for it.
    """

    words: Hash  # of its masked update
    rules: SumRules
    signature: Signature


class Attempted(Settings):
    """What a sealed train request holds in addition."""

    attempt: AttemptId


class DistanceAsked(Settings):
    """Everybody gets the same."""

    roster: dict[Name, Hello]
    modulus: Hexadecimal = Field(max_length=1024)
    base: Hexadecimal = Field(max_length=1024)  # y
    scale: ExactFloat


class DistanceSaid(Settings):
    """Shares for each other site, and which they are: of the seed and of the mask key."""

    envelopes: dict[Name, Envelope]
    dealt: dict[Name, tuple[Commitment, Commitment]]  # its own, too


class MaskedAsked(Settings):
    """What a member of the sum gets; for phase 4, also those without weight."""

    weights: dict[Name, ExactFloat]
    scale: ExactFloat
    envelopes: dict[Name, Envelope]  # the others' for this site


class MaskedSaid(Settings):
    """A signature of the site's view, of what it put under its masks, and of its rules."""

    rules: SumRules
    signature: Signature
    seed: Hash  # of the seed of its self mask


class UnmaskAsked(Settings):
    """Who delivered, and for a site that was not in phase 3 the view of those in it."""

    delivered: dict[Name, Receipt]
    view: MaskedAsked | None = None


class UnmaskSaid(Settings):
    """One share for each member of the sum."""

    seeds: dict[Name, Share]  # of those who delivered
    keys: dict[Name, Share]  # of those who did not
