"""An algorithm on sealed rounds: four exchanges, of which it sees distances and one sum.

1 train: every peer trains and answers with fresh keys instead of its update. 2 distance: each gives
its distance to the user's update, sealed. 3 masked: those whose update counts send it, weighted,
under masks. 4 unmask: the sites take the masks off the sum. The algorithm is a pure function, so it
is asked twice: once for the weights that it wants, and once more when their sum is there.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from erosion.common.aggregation import vectors
from erosion.common.aggregation.cohort import Cohort, HospitalName, Update
from erosion.common.algorithms.base import (
    TRAIN,
    Algorithm,
    Answers,
    Ask,
    Brings,
    Exchanges,
    Payload,
    RoundStart,
    Step,
    TensorTerms,
)
from erosion.common.sealed import legs
from erosion.common.sealed.cohort import LoneCohort, NoSuchSum, SealedCohort, SealedSum, SumWanted
from erosion.common.sealed.coordinator import Attempt, CannotUnmask, add_up
from erosion.common.sealed.coordinator_keys import CoordinatorKeys
from erosion.common.sealed.distance import Asker
from erosion.common.sealed.evidence import ContextOf, Evidence
from erosion.common.sealed.numbers import from_rows, to_rows
from erosion.common.sealed.roster import (
    ATTEMPT_BYTES,
    Receipt,
    RoundContext,
    View,
    received_hash,
    words_hash,
)
from erosion.common.sealed.sketch import BUCKETS
from erosion.common.sealed.sum_records import PendingSum, RecordsInMemory, SumRecords
from erosion.common.sealed.sum_rules import SumRules

T = TypeVar("T")
Leg = Generator[Ask, Answers, T]
RULES = SumRules()  # a hospital may ask for more, and is then absent where it does not get it


@dataclass(frozen=True, slots=True)
class SealedState:
    """An algorithm's state in sealed rounds."""

    inner: Any
    alone: bool  # too few hospitals had weight left, so nobody is asked any more


@dataclass(frozen=True, slots=True)
class SealedTerms:
    """Whose rounds they are."""

    study: str  # digest
    arm: str
    user: HospitalName
    peers: tuple[HospitalName, ...]  # that the study names
    run: str = ""


class _Skipped(Exception):  # noqa: N818 - ends the round, not the run
    """The round gives no step, and why."""


def seal(
    algorithm: Algorithm[Any],
    terms: SealedTerms,
    *,
    records: SumRecords | None = None,
    keys: CoordinatorKeys | None = None,
) -> Algorithm[SealedState]:
    """The same algorithm on sealed rounds; `records` and `keys` are of one run."""
    rounds = _SealedRounds(
        algorithm,
        terms,
        RecordsInMemory() if records is None else records,
        CoordinatorKeys() if keys is None else keys,
    )
    return Algorithm(
        init=lambda dim: SealedState(algorithm.init(dim), alone=False),
        update=_no_update,
        asks=rounds.asks,
        broadcast=lambda state: algorithm.broadcast(state.inner),
        broadcast_to_user=lambda state: algorithm.broadcast_to_user(state.inner),
        exchanges=rounds.exchanges,
    )


def _no_update(_state: SealedState, _cohort: Cohort) -> Step[SealedState]:
    raise TypeError("a sealed round has several exchanges")


@dataclass(frozen=True, slots=True, eq=False)
class _Trained:
    """After leg 1."""

    begun: RoundStart
    own: Update
    peers: Mapping[HospitalName, Update]  # without their deltas
    attempt: Attempt


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """After leg 2."""

    trained: _Trained
    asker: Asker
    distances: Mapping[HospitalName, float]
    envelopes: Mapping[HospitalName, Mapping[HospitalName, bytes]]  # by sender, then receiver
    earlier: PendingSum | None  # the sum of this round that was begun before an interruption

    def inbox(self, name: HospitalName) -> dict[HospitalName, bytes]:
        """The envelopes for one site."""
        return {s: sent[name] for s, sent in self.envelopes.items() if name in sent}

    def cohort(self, names: Sequence[HospitalName], made: SealedSum | None = None) -> SealedCohort:
        """What the algorithm is asked about."""
        peers = {name: self.trained.peers[name] for name in names}
        return SealedCohort(self.trained.own, peers, self.distances, made)


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """The sum that the algorithm wants."""

    told: Mapping[HospitalName, float]
    capped: frozenset[HospitalName] = field(default=frozenset())


@dataclass(frozen=True, slots=True, eq=False)
class _SealedRounds:
    algorithm: Algorithm[Any]
    terms: SealedTerms
    records: SumRecords
    keys: CoordinatorKeys

    def asks(self, state: SealedState, agent: HospitalName) -> bool:
        return not state.alone and self.algorithm.asks(state.inner, agent)

    def exchanges(self, state: SealedState, begun: RoundStart) -> Exchanges[SealedState]:
        inner = self.algorithm
        for_user = inner.broadcast_to_user(state.inner)
        to_user = {begun.user: Payload(for_user)} if for_user else {}
        if state.alone:
            alone = yield Ask(TRAIN, Payload(inner.broadcast(state.inner)), to_user)
            step = inner.update(state.inner, alone.cohort)
            return replace(step, state=SealedState(step.state, alone=True))
        self.keys.pool.prepare(min(len(begun.parameters), BUCKETS))
        attempt = secrets.token_bytes(ATTEMPT_BYTES)
        trained = yield Ask(
            TRAIN,
            Payload(
                inner.broadcast(state.inner), legs.Attempt(attempt=attempt).model_dump(mode="json")
            ),
            to_user,
            brings=Brings(update=True, sealed=True),
        )
        own = trained.cohort.own
        try:
            return (yield from self._with_peers(state, begun, attempt, trained.cohort))
        except _Skipped as why:
            nothing = torch.zeros_like(own.delta)
            return Step(nothing, {}, state, outcome="skipped", note=str(why), distances={})

    def _with_peers(
        self, state: SealedState, begun: RoundStart, attempt: bytes, cohort: Cohort
    ) -> Exchanges[SealedState]:
        trained = self._trained(begun, attempt, cohort)
        measured = yield from self._measure(trained)
        names = sorted(measured.distances)
        try:
            step = self.algorithm.update(state.inner, measured.cohort(names))
        except SumWanted as wanted:
            sum_ = self._allowed(wanted)
        else:
            if step.outcome != "done":
                return replace(
                    step, state=SealedState(step.state, alone=False), distances=measured.distances
                )
            sum_ = None
        if sum_ is None:
            return self._alone(state, measured, names)
        return (yield from self._summed(state, measured, sum_))

    def _trained(self, begun: RoundStart, attempt: bytes, cohort: Cohort) -> _Trained:
        own, *others = cohort.updates
        own_norm = vectors.norm(own.delta)  # the cohort has no other values
        if not own_norm > 0:
            raise _Skipped("the user's own update has norm zero, which gives a sealed sum no range")
        peers = {update.agent: update for update in others}
        if len(peers) < RULES.min_summed:
            raise _Skipped(
                f"{len(peers)} hospitals answered; a sealed sum needs {RULES.min_summed}"
            )
        terms = self.terms
        context = RoundContext(
            terms.study, terms.run, terms.arm, begun.round, attempt, received_hash(begun.parameters)
        )
        roster = {name: update.hello for name, update in peers.items() if update.hello is not None}
        return _Trained(begun, own, peers, Attempt(context, roster, own.delta.numpy(), own_norm))

    def _measure(self, trained: _Trained) -> Leg[_Measured]:
        keys, attempt = self.keys, trained.attempt
        public = keys.key.public
        asker = attempt.asker(keys.key)
        question = attempt.question(asker, keys.pool.take)
        keys.pool.prepare(len(question.sealed_own))  # for the next round, from now on
        num_bytes = public.modulus_bytes
        answered = yield Ask(
            legs.DISTANCE,
            Payload(
                {
                    legs.SEALED_OWN: to_rows(question.sealed_own, 2 * num_bytes),
                    legs.MODULUS_PROOF: to_rows(keys.proof, num_bytes),
                },
                legs.DistanceAsked(
                    roster={n: legs.HelloKeys.of(h) for n, h in attempt.roster.items()},
                    modulus=int(public.n).to_bytes(num_bytes),
                    scale=question.scale,
                ).model_dump(mode="json"),
            ),
            brings=Brings(
                tensors={legs.SEALED_DISTANCE: TensorTerms((2 * num_bytes,), torch.uint8)},
                values=legs.DistanceSaid,
            ),
            hospitals=sorted(attempt.roster),
            sends_parameters=False,
        )
        distances = {}
        for name, reply in answered.replies.items():
            (sealed,) = from_rows(reply.tensors[legs.SEALED_DISTANCE].reshape(1, -1))
            if 0 < sealed < public.n**2:
                distances[name] = asker.distance(sealed)
        envelopes = {name: answered.replies[name].values.envelopes for name in distances}
        earlier = self.records.pending()
        if earlier is None or earlier.round != trained.begun.round:
            return _Measured(trained, asker, distances, envelopes, None)
        if earlier.roster != tuple(sorted(attempt.roster)) or earlier.distances.keys() != (
            distances.keys()
        ):
            raise _Skipped(
                "a sum of this round was begun before an interruption, with other hospitals; no"
                " update enters a second sum"
            )
        return _Measured(trained, asker, earlier.distances, envelopes, earlier)

    @staticmethod
    def _allowed(wanted: SumWanted) -> _Wanted | None:
        """The weights that the sites are told, or None where too few hospitals have any."""
        factors = wanted.factors
        total = wanted.own + sum(factors.values())
        if not (wanted.own >= 0 and min(factors.values()) >= 0 and total <= 1 + 1e-9):
            raise _Skipped("the method wants weights that no sealed sum can have")
        lowered = RULES.capped(factors)
        if lowered is None:
            return None
        # What the cap took is shared out in proportion, the user's own included.
        share = total / (wanted.own + sum(lowered.values()))
        capped = frozenset(name for name in factors if lowered[name] < factors[name])
        told = {name: share * weight for name, weight in lowered.items()} if capped else factors
        return _Wanted(told, capped)

    def _summed(
        self, state: SealedState, measured: _Measured, wanted: _Wanted
    ) -> Exchanges[SealedState]:
        trained, attempt, told = measured.trained, measured.trained.attempt, wanted.told
        earlier = measured.earlier
        if earlier is not None and earlier.told != told:
            raise _Skipped("another sum of this round was begun before an interruption")
        pending = PendingSum(
            round=trained.begun.round,
            roster=tuple(sorted(attempt.roster)),
            distances=dict(measured.distances),
            told=dict(told),
            delivered=None if earlier is None else earlier.delivered,
        )
        self.records.begin(pending)
        view = attempt.view(told, measured.distances)
        masked = yield self._masked(measured, view)
        delivered = sorted(masked.replies)
        if pending.delivered is not None:
            if not set(pending.delivered) <= set(delivered):
                raise _Skipped(
                    "a sum of this round was begun before an interruption, and not all of its"
                    " hospitals are there"
                )
            delivered = list(pending.delivered)
        weights = {name: told[name] for name in delivered}
        if problem := RULES.problem_with(weights):
            raise _Skipped(f"too few hospitals sent their masked update ({problem})")
        self.records.begin(pending.model_copy(update={"delivered": tuple(delivered)}))
        words = {n: masked.replies[n].tensors[legs.WORDS].numpy() for n in delivered}
        receipts = {
            name: Receipt(words_hash(words[name]), masked.replies[name].values.signature)
            for name in delivered
        }
        total = add_up(words)
        del masked, words  # as large as all updates
        released = yield self._unmask(measured, view, receipts)
        shares = {n: (r.values.seeds, r.values.keys) for n, r in released.replies.items()}
        try:
            values = attempt.unmasked(view, total, delivered, shares)
        except CannotUnmask as why:
            raise _Skipped(str(why)) from None
        check = attempt.check(values, view, delivered, measured.distances, measured.asker)
        if not check.holds:
            return self._stopped(state, measured, view, receipts, check.apart, check.at_most)
        there = [n for n in sorted(measured.distances) if n in weights or not told[n]]
        made = SealedSum(weights, torch.from_numpy(values), wanted.capped)
        try:
            step = self.algorithm.update(state.inner, measured.cohort(there, made))
        except NoSuchSum as why:
            raise _Skipped(str(why)) from None
        if wanted.capped:
            lowered = ", ".join(sorted(wanted.capped))
            note = f"the weight of {lowered} was lowered to half of the others' sum"
            step = replace(step, note=f"{step.note}; {note}" if step.note else note)
        return replace(
            step,
            state=SealedState(step.state, alone=self._too_few_left(step.state)),
            distances={name: measured.distances[name] for name in there},
        )

    def _masked(self, measured: _Measured, view: View) -> Ask:
        to_each = {
            name: Payload(values=_told(measured, view, name).model_dump(mode="json"))
            for name in view.members
        }
        dim = len(measured.trained.own.delta)
        return Ask(
            legs.MASKED,
            to_each=to_each,
            brings=Brings(
                tensors={legs.WORDS: TensorTerms((dim,), torch.uint32)}, values=legs.MaskedSaid
            ),
            hospitals=view.members,
            sends_parameters=False,
        )

    @staticmethod
    def _unmask(measured: _Measured, view: View, receipts: Mapping[HospitalName, Receipt]) -> Ask:
        delivered = {name: legs.ReceiptSaid.of(receipt) for name, receipt in receipts.items()}
        members = set(view.members)
        helpers = [n for n in sorted(measured.envelopes) if n in receipts or n not in members]
        to_each = {
            name: Payload(
                values=legs.UnmaskAsked(
                    delivered=delivered,
                    told=None if name in members else _told(measured, view, name),
                ).model_dump(mode="json")
            )
            for name in helpers
        }
        return Ask(
            legs.UNMASK,
            to_each=to_each,
            brings=Brings(values=legs.UnmaskSaid),
            hospitals=helpers,
            sends_parameters=False,
            any_number=True,
        )

    def _alone(
        self, state: SealedState, measured: _Measured, names: Sequence[HospitalName]
    ) -> Step[SealedState]:
        """The user's own step, for good: one whose result were sent out would show g_0."""
        own = measured.trained.own
        peers = {name: measured.trained.peers[name] for name in names}
        lone = LoneCohort(own, peers, measured.distances)
        step = self.algorithm.update(state.inner, lone)
        if not self._too_few_left(step.state):
            raise _Skipped(
                f"fewer than {RULES.min_summed} of the hospitals that are there have weight, which"
                " a sealed sum needs"
            )
        return Step(
            own.delta,
            {own.agent: 1.0, **dict.fromkeys(names, 0.0)},
            SealedState(step.state, alone=True),
            note=(
                f"fewer than {RULES.min_summed} hospitals have weight left, which a sealed sum"
                " needs: from here on the user trains alone"
            ),
            distances=measured.distances,
        )

    def _too_few_left(self, inner: Any) -> bool:
        asked = sum(self.algorithm.asks(inner, peer) for peer in self.terms.peers)
        return asked < RULES.min_summed

    def _stopped(
        self,
        state: SealedState,
        measured: _Measured,
        view: View,
        receipts: Mapping[HospitalName, Receipt],
        apart: float,
        at_most: float,
    ) -> Step[SealedState]:
        attempt, own = measured.trained.attempt, measured.trained.own
        evidence = Evidence(
            context=ContextOf.of(attempt.context),
            roster={n: legs.HelloKeys.of(h) for n, h in attempt.roster.items()},
            weights=dict(view.weights),
            scale=view.scale,
            distances=dict(measured.distances),
            delivered={n: legs.ReceiptSaid.of(receipt) for n, receipt in receipts.items()},
            apart=apart,
            at_most=at_most,
        )
        self.records.suspect(evidence, own.delta)
        note = (
            f"the sum does not fit the distances ({apart:.3g} from the user's update, at most"
            f" {at_most:.3g} is possible): a hospital's distance or update is not what it said."
            " `erosion audit` shows whose, with a person at each hospital"
        )
        nothing = torch.zeros_like(own.delta)
        return Step(nothing, {}, state, outcome="stopped", note=note, distances=measured.distances)


def _told(measured: _Measured, view: View, name: HospitalName) -> legs.MaskedAsked:
    """What leg 3 tells a site, and leg 4 one that was not in it."""
    return legs.MaskedAsked(
        weights=dict(view.weights), scale=view.scale, envelopes=measured.inbox(name)
    )
