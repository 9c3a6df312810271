"""The small values of each leg's request and reply; long arrays travel with them.

1 train: the attempt down; a site's fresh keys up. 2 distance: the roster and what seals the user's
update down; a sealed distance up, and for each other site an envelope with its shares. 3 masked:
the weights down; the masked update up. 4 unmask: who delivered down; one share for each up.
"""

from pydantic import Field

from erosion_common.sealed import fields
from erosion_common.sealed.roster import Hello, Receipt, Roster
from erosion_common.sealed.sum_rules import SumRules
from erosion_common.settings.base import Settings
from erosion_common.settings.names import Name

DISTANCE, MASKED, UNMASK = "sealed_distance", "sealed_masked", "sealed_unmask"  # steps
STEPS = frozenset({DISTANCE, MASKED, UNMASK})

MOST_KNOWN = 1 << 16  # hospitals that a site's rules name

ATTEMPT = "attempt"  # the value of a train request that says that its round is sealed

# Arrays, by their names in a message
SEALED_OWN = "sealed_own"  # (num_values, 2 |n|) uint8, Enc(u_j)
MODULUS_PROOF = "modulus_proof"  # (11, |n|) uint8
SEALED_DISTANCE = "sealed_distance"  # (2 |n|,) uint8
WORDS = "words"  # (dim,) uint32


class Attempt(Settings):
    """What a sealed train request holds in addition."""

    attempt: fields.Attempt


class HelloKeys(Settings):
    """A site's public keys of one attempt."""

    mask: fields.Key
    seal: fields.Key
    signature: fields.Signature

    @classmethod
    def of(cls, hello: Hello) -> "HelloKeys":
        """Return the form that travels."""
        return cls(mask=hello.mask, seal=hello.seal, signature=hello.signature)

    @property
    def hello(self) -> Hello:
        """The form for use."""
        return Hello(self.mask, self.seal, self.signature)


class DistanceAsked(Settings):
    """Everybody gets the same."""

    roster: dict[Name, HelloKeys]
    modulus: fields.Hexadecimal = Field(max_length=1024)
    scale: fields.ExactFloat

    @property
    def hellos(self) -> Roster:
        """The roster as it is used."""
        return {name: keys.hello for name, keys in self.roster.items()}


class Lengths(Settings):
    """How long a site's update is, where its method has to know."""

    whole: fields.Length  # |g_i|
    measured: fields.Length  # the same in the method's measure: with its layers' weights


class DistanceSaid(Settings):
    """Shares for each other site, and which they are: of the seed and of the mask key."""

    envelopes: dict[Name, fields.Envelope]
    dealt: dict[Name, tuple[fields.Commitment, fields.Commitment]]  # its own, too
    lengths: Lengths | None = None


class MaskedAsked(Settings):
    """What a member of the sum gets; for leg 4, also those without weight."""

    weights: dict[Name, fields.ExactFloat]
    scale: fields.ExactFloat
    envelopes: dict[Name, fields.Envelope]  # the others' for this site


class Rules(Settings):
    """A site's own for every sum that it is in."""

    min_summed: int = Field(ge=0, le=2**31)
    largest_share: fields.ExactFloat
    known: frozenset[Name] | None = Field(max_length=MOST_KNOWN)

    @classmethod
    def of(cls, rules: SumRules) -> "Rules":
        """Return the form that travels."""
        return cls(
            min_summed=rules.min_summed, largest_share=rules.largest_share, known=rules.known
        )

    @property
    def rules(self) -> SumRules:
        """The form for use."""
        return SumRules(self.min_summed, self.largest_share, self.known)


class MaskedSaid(Settings):
    """A signature of the site's view, of what it put under its masks, and of its rules."""

    rules: Rules
    signature: fields.Signature
    seed: fields.Hash  # of the seed of its self mask


class ReceiptSaid(Settings):
    """One hospital's receipt on its way to the others."""

    words: fields.Hash
    rules: Rules
    signature: fields.Signature

    @classmethod
    def of(cls, receipt: Receipt) -> "ReceiptSaid":
        """Return the form that travels."""
        rules = Rules.of(receipt.rules)
        return cls(words=receipt.words, rules=rules, signature=receipt.signature)

    @property
    def receipt(self) -> Receipt:
        """The form for use."""
        return Receipt(self.words, self.rules.rules, self.signature)


class UnmaskAsked(Settings):
    """Who delivered, and for a site that was not in leg 3 the view of those in it."""

    delivered: dict[Name, ReceiptSaid]
    told: MaskedAsked | None = None


class UnmaskSaid(Settings):
    """One share for each member of the sum."""

    seeds: dict[Name, fields.Share]  # of those who delivered
    keys: dict[Name, fields.Share]  # of those who did not
