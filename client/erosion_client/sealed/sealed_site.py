"""A site in sealed rounds: idle -> hello -> distance -> masked -> unmasked, each once.

A request that breaks a rule raises Refusal, and nothing leaves. Each phase holds what the one
before it had, so that a coordinator that was killed and repeats a request gets the same answer.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from erosion_client.records.ledgers import RoundPlace, SumTable
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import Refusal
from erosion_common.sealed import distance, phases, roster
from erosion_common.sealed.audit import Disclosure
from erosion_common.sealed.keys import digest, new_pair, private_half
from erosion_common.sealed.masks import BUCKETS, Words, fits_range, hides_others
from erosion_common.sealed.phases import Hello, Receipt, Roster, RoundContext, SumRules, View
from erosion_common.sealed.pinned_keys import problem_with_owners
from erosion_common.sealed.power_residues import Whole, problem_with_key
from erosion_common.sealed.roster import masked_words, seed_hash, words_hash
from erosion_common.sealed.shares import (
    KEY,
    SECRET_BYTES,
    SEED,
    PairChannel,
    Shares,
    commitment,
    split_secret,
    threshold,
)
from erosion_common.support.keys import PrivateKey, PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class SealedIdentity:
    """The site's node key, and the pinned ones of the hospitals that it would be summed with."""

    name: str
    node_key: PrivateKey
    peer_keys: Mapping[str, PublicKey] = field(default_factory=dict)


Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Greeted:
    """After phase 1."""

    context: RoundContext
    update: Values  # (dim,)
    update_hash: bytes
    mask_key: bytes
    seal_key: bytes
    hello: Hello


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measured:
    """After phase 2."""

    greeted: Greeted
    roster: Roster
    asked: bytes  # hash of the whole question
    seed: bytes  # b_i, of the self mask
    own_shares: Shares
    channels: Mapping[str, PairChannel]  # to every other site
    dealt: Mapping[str, tuple[bytes, bytes]]  # commitments to everybody's shares
    answer: Whole  # the sealed distance that was sent
    envelopes: Mapping[str, bytes]  # that was sent with it


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Masked:
    """After phase 3."""

    measured: Measured
    told: View
    shares: Mapping[str, Shares]  # for everybody, including the site itself


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unmasked:
    """After phase 4, until the next round."""

    masked: Masked  # without shares
    delivered: tuple[str, ...]  # by name
    released: "Released"


Phase = Greeted | Measured | Masked | Unmasked | None


@dataclass(frozen=True, slots=True, eq=False)
class MaskedUpdate:
    """What leaves in phase 3."""

    words: Words  # (dim,)
    receipt: Receipt
    seed: bytes  # hash of the self mask's seed, which reveals wrong shares of it
    opening: Disclosure  # stays here, for an audit


@dataclass(frozen=True, slots=True, repr=False)
class Released:
    """What leaves in phase 4: of each member of the sum exactly one share."""

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]


P = TypeVar("P", Greeted, Measured, Masked)


class SealedSite:
    """One site. Keys and phase are in memory: after a restart it is absent until the next train."""

    def __init__(self, identity: SealedIdentity, sums: SumTable, rules: SumRules) -> None:
        """`sums` outlive the program."""
        self._identity, self._sums, self._rules = identity, sums, rules
        self._phase: Phase = None

    @property
    def phase(self) -> Phase:
        """Its phase in the round; None: no round."""
        return self._phase

    @property
    def context(self) -> RoundContext:
        """The current attempt. Raises Refusal."""
        return self._past(Greeted).context

    @property
    def asked(self) -> bytes:
        """Hash of the request in phase 2. Raises Refusal."""
        return self._past(Measured).asked

    def identify(self, identity: SealedIdentity) -> None:
        """Use these keys from the next phase 1 on."""
        self._identity = identity

    def hello(self, context: RoundContext, update: Values) -> Hello:
        """Phase 1: fresh keys for the update that was just trained; an earlier attempt is over."""
        if not np.isfinite(update.sum()):
            raise Refusal("The update of this site has a value that is not finite.")
        update_hash = digest("update", update.data.cast("B"))
        if self._phase is not None:
            known = self._past(Greeted)
            if (known.context, known.update_hash) == (context, update_hash):
                self._note(context, TRAIN)
                return known.hello
        # From slightly different parameters it would be nearly the same update, in another sum.
        with self._sums.transaction():
            self._sums.answer(_place(context), TRAIN)
            self._sums.commit(
                digest("round", *_place(context)),
                digest("from", context.received),
                f"Round {context.round} of this run began from other parameters here: start a new"
                " run.",
            )
        name = self._identity.name
        (mask_key, mask), (seal_key, seal) = new_pair(), new_pair()
        hello = roster.sign_hello(self._identity.node_key, context, name, mask, seal)
        self._phase = Greeted(context, update, update_hash, mask_key, seal_key, hello)
        return hello

    def distance(
        self, everyone: Roster, question: distance.Question, modulus_proof: Sequence[Whole]
    ) -> tuple[Whole, dict[str, bytes]]:
        """Phase 2: the sealed distance, and for each other site an envelope with its shares."""
        greeted = self._past(Greeted)
        self._check_roster(greeted, everyone)
        problem = problem_with_key(
            question.key, modulus_proof, greeted.context.run_hash
        ) or distance.problem_with_question(question, min(len(greeted.update), BUCKETS))
        if problem:
            raise Refusal(f"The question for a distance cannot be answered: {problem}.")
        hash_ = roster.roster_hash(greeted.context, everyone)
        asked = question.hash(hash_)
        if not isinstance(self._phase, Greeted):
            known = self._past(Measured)
            if asked != known.asked:
                raise Refusal("This site has given its distance of this round already.")
            self._note(greeted.context, phases.DISTANCE)
            return known.answer, dict(known.envelopes)
        with self._sums.transaction():
            self._sums.answer(_place(greeted.context), phases.DISTANCE)
            for what in _known_as(greeted):
                # Its own fresh keys are in the roster, so no other question has this hash.
                self._sums.commit(
                    digest("distance", what), asked, "This update's distance was given already."
                )
        self._phase = None  # once: a question that fails from here on is not repeated
        name = self._identity.name
        values = distance.own_values(question, greeted.update, roster.sketch_seed(hash_))
        if not distance.is_fine(values):
            raise Refusal("The update of this site is nearly nothing compared with the user's.")
        answer = distance.answer(question, values)
        seed, places = secrets.token_bytes(SECRET_BYTES), roster.places(everyone)
        needed = threshold(len(places))
        of_seed = split_secret(seed, needed, list(places.values()))
        of_key = split_secret(greeted.mask_key, needed, list(places.values()))
        shares = {n: Shares(*pair) for n, *pair in zip(places, of_seed, of_key, strict=True)}
        seal_key = private_half(greeted.seal_key)
        channels = {
            other: PairChannel.between((name, other), seal_key, everyone[other].seal, hash_)
            for other in places
            if other != name
        }
        envelopes = {
            other: channel.seal(shares[other], sender=name, receiver=other)
            for other, channel in channels.items()
        }
        dealt = {
            n: (
                commitment(hash_, name, n, SEED, held.seed),
                commitment(hash_, name, n, KEY, held.key),
            )
            for n, held in shares.items()
        }
        self._phase = Measured(
            greeted, everyone, asked, seed, shares[name], channels, dealt, answer, envelopes
        )
        return answer, envelopes

    @property
    def dealt(self) -> Mapping[str, tuple[bytes, bytes]]:
        """The shares in the envelopes, and its own, as commitments."""
        return self._past(Measured).dealt

    def masked(
        self, weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
    ) -> MaskedUpdate:
        """Phase 3: the update times its weight under masks that only the whole sum removes."""
        measured = self._past(Measured)
        told = View(measured.asked, weights, scale)
        if isinstance(self._phase, Measured):
            self._phase = None  # once
            self._mask(measured, told, envelopes)
        elif self._past(Masked).told.hash != told.hash:
            raise Refusal("The update of this site was in another sum already.")
        greeted, name, key = measured.greeted, self._identity.name, self._identity.node_key
        try:
            words = masked_words(
                told, measured.roster, name, greeted.update, (measured.seed, greeted.mask_key)
            )
        except ValueError:
            raise Refusal("A mask key in the roster is no key.") from None
        rules = self._rules.among(measured.roster)
        receipt = roster.sign_receipt(key, told, name, words_hash(words), rules)
        opening = Disclosure(name, told.hash.hex(), greeted.update, measured.seed, greeted.mask_key)
        return MaskedUpdate(words, receipt, seed_hash(told, name, measured.seed), opening)

    def _mask(self, measured: Measured, told: View, envelopes: Mapping[str, bytes]) -> None:
        update, name = measured.greeted.update, self._identity.name
        if name not in told.members:
            raise Refusal("This site has no weight in the sum that it is asked for.")
        self._check_view(measured, told)
        shares = self._opened(measured, envelopes)
        if not fits_range(update, told.scale):
            raise Refusal("The update of this site is outside of the sum's range.")
        if not hides_others(update, told.scale, told.weights[name]):
            raise Refusal("The sum's range is so wide that this site's update is lost in it.")
        self._phase = Masked(measured, told, shares)

    def unmask(
        self, delivered: Mapping[str, Receipt], told: tuple[View, Mapping[str, bytes]] | None = None
    ) -> Released:
        """Phase 4: shares that remove the masks from the sum of those who delivered."""
        names = sorted(delivered)
        if isinstance(self._phase, Unmasked):
            return self._released_again(self._phase, names, told)
        if isinstance(self._phase, Measured):
            phase = self._as_helper(self._phase, told)
        else:
            phase = self._past(Masked)
        view = phase.told
        if strangers := set(names) - set(view.members):
            raise Refusal(f"{', '.join(sorted(strangers))} cannot have delivered: no weight.")
        if self._identity.name in set(view.members) - set(names):
            raise Refusal("This site did deliver.")
        for other in names:
            key = self._key_of(other)
            if not roster.is_receipt(key, view, other, delivered[other]):
                raise Refusal(f"{other} received something else, or did not deliver.")
        weights = {other: view.weights[other] for other in names}
        if problem := self._rules.problem_with(weights):
            raise Refusal(f"The sum of those who delivered would show too much: {problem}.")
        for other in names:  # enough of the rest could do without it
            if problem := delivered[other].rules.problem_with(weights):
                raise Refusal(f"{other} would be in no sum of those who delivered: {problem}.")
        released = Released(
            {other: phase.shares[other].seed for other in names if other in phase.shares},
            {
                other: phase.shares[other].key
                for other in view.members
                if other not in delivered and other in phase.shares
            },
        )
        self._phase = Unmasked(replace(phase, shares={}), tuple(names), released)
        return released

    def _released_again(
        self, phase: Unmasked, names: Sequence[str], told: tuple[View, Mapping[str, bytes]] | None
    ) -> Released:
        view = phase.masked.told
        if tuple(names) != phase.delivered or (told is not None and told[0].hash != view.hash):
            raise Refusal("The update of this site was in another sum already, of other hospitals.")
        return phase.released

    def _as_helper(
        self, measured: Measured, told: tuple[View, Mapping[str, bytes]] | None
    ) -> Masked:
        if told is None:
            raise Refusal("The request names no sum that this site should help to unmask.")
        view, envelopes = told
        if view.asked != measured.asked:
            raise Refusal("The sum is of another attempt.")
        if self._identity.name in view.members:
            raise Refusal("This site has weight in the sum and was not asked for its part.")
        self._check_view(measured, view)
        return Masked(measured, view, self._opened(measured, envelopes))

    def _check_roster(self, greeted: Greeted, everyone: Roster) -> None:
        own = everyone.get(self._identity.name)
        if own is None or (own.mask, own.seal) != (greeted.hello.mask, greeted.hello.seal):
            raise Refusal("The roster holds other keys for this site than its own.")
        node_keys = {name: self._key_of(name) for name in everyone}
        if problem := problem_with_owners(node_keys):
            raise Refusal(problem)
        for name, hello in everyone.items():
            is_own = name == self._identity.name and hello == greeted.hello
            if not is_own and not roster.is_signed(node_keys[name], greeted.context, name, hello):
                raise Refusal(
                    f"The keys of {name} in the roster are not signed by the key of {name} that is"
                    " pinned here",
                    remedy=f"If {name} has a new key, ask {name} itself for its fingerprint,"
                    f" then `erosion enroll pin FILE SITE.toml --replace {name}`.",
                )
        if bad := sorted(everyone.keys() - roster.usable(everyone).keys()):
            raise Refusal(
                f"The keys of {', '.join(bad)} in the roster are no keys, or as good as another's."
            )
        if problem := self._rules.problem_with_holders(everyone):
            raise Refusal(
                f"The round would show too much: {problem}",
                remedy="Name more there that people here know.",
            )

    def _check_view(self, measured: Measured, view: View) -> None:
        if unknown := set(view.weights) - set(measured.roster):
            raise Refusal(f"{', '.join(sorted(unknown))} are not in this round's roster.")
        if problem := self._rules.problem_with(view.weights):
            raise Refusal(f"The sum would show too much: {problem}.")

    def _opened(self, measured: Measured, envelopes: Mapping[str, bytes]) -> dict[str, Shares]:
        name = self._identity.name
        shares = {name: measured.own_shares}
        for other, envelope in envelopes.items():
            if (channel := measured.channels.get(other)) is None:
                raise Refusal(f"An envelope of {other}, who is not another site of this round.")
            # An unreadable one is its sender's fault, and must not exclude this site.
            with suppress(ValueError):
                shares[other] = channel.open(envelope, sender=other, receiver=name)
        return shares

    def _key_of(self, name: str) -> PublicKey:
        if name == self._identity.name:
            return self._identity.node_key.public_key()
        key = self._identity.peer_keys.get(name)
        if key is None:
            raise Refusal(
                f"The key of {name} is not known here",
                remedy="Pin it with `erosion enroll pin FILE SITE.toml`, after comparing its"
                f" fingerprint with {name}.",
            )
        return key

    def _past(self, due: type[P]) -> P:
        """Return the state after that phase. Raises Refusal before it."""
        at: object = self._phase
        while at is not None and not isinstance(at, due):
            match at:
                case Unmasked():
                    at = at.masked
                case Masked():
                    at = at.measured
                case Measured():
                    at = at.greeted
                case _:
                    at = None
        if at is None:
            raise Refusal("A phase of a sealed round that is not due at this site now.")
        return at

    def _note(self, context: RoundContext, step: str) -> None:
        """Note the answer before it is sent, for the first time or again."""
        with self._sums.transaction():
            self._sums.answer(_place(context), step)


def _place(context: RoundContext) -> RoundPlace:
    return RoundPlace(context.study, context.run, context.round)


def _known_as(greeted: Greeted) -> tuple[bytes, bytes]:
    """Return what identifies its update: its values, and its round.

    Trained again in the same round it may differ slightly: on a graphics card, after the data were
    corrected, or where a method keeps state here between rounds.
    """
    return greeted.update_hash, digest("round", *_place(greeted.context))
