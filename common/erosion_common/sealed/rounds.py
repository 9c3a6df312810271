"""An algorithm on sealed rounds: four exchanges, of which it sees distances and one sum.

1 train: every peer trains and answers with fresh keys instead of its update. 2 distance: each gives
its distance to the user's update, sealed. 3 masked: those with weight send their update, weighted,
under masks. 4 unmask: the sites take the masks off the sum. The algorithm is a pure function, so it
is asked twice: once for the weights that it wants, and once more when their sum is there.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from gmpy2 import mpz

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import (
    TRAIN,
    Algorithm,
    Ask,
    Brings,
    Exchanges,
    Payload,
    RoundStart,
    Step,
)
from erosion_common.sealed import legs
from erosion_common.sealed.cohort import LoneCohort, NoSuchSum, SealedSum, SumWanted
from erosion_common.sealed.coordinator import (
    MOST_FAILURES,
    NOBODY,
    Failures,
    Faults,
    Skipped,
    after_skipping,
    after_success,
)
from erosion_common.sealed.masks import BUCKETS
from erosion_common.sealed.measuring import RULES, Measured, SealedTerms, Sent, Trained, measure
from erosion_common.sealed.paillier import CoordinatorKeys
from erosion_common.sealed.records import RecordsInMemory, SumRecords
from erosion_common.sealed.roster import ATTEMPT_BYTES
from erosion_common.sealed.summing import Summed, Wanted, allowed, sum_up


@dataclass(frozen=True, slots=True)
class SealedState:
    """An algorithm's state in sealed rounds."""

    inner: Any
    alone: bool  # too few hospitals had weight left, so nobody is asked any more
    failures: Failures  # rounds


def seal(
    algorithm: Algorithm[Any],
    terms: SealedTerms,
    *,
    records: SumRecords | None = None,
    keys: CoordinatorKeys | None = None,
) -> Algorithm[SealedState]:
    """Return the same algorithm on sealed rounds; `records` and `keys` are of one run.

    Raises TypeError for one that has exchanges, which would be left out.
    """
    if algorithm.exchanges is not None:
        raise TypeError("a method that has exchanges cannot be sealed")
    rounds = _SealedRounds(
        algorithm,
        terms,
        RecordsInMemory() if records is None else records,
        CoordinatorKeys() if keys is None else keys,
    )
    return Algorithm(
        init=lambda dim: SealedState(algorithm.init(dim), alone=False, failures={}),
        update=_no_update,
        asks=rounds.asks,
        broadcast=lambda state: algorithm.broadcast(state.inner),
        broadcast_to_user=lambda state: algorithm.broadcast_to_user(state.inner),
        exchanges=rounds.exchanges,
    )


def _no_update(_state: SealedState, _cohort: Cohort) -> Step[SealedState]:
    raise TypeError("a sealed round has several exchanges")


@dataclass(frozen=True, slots=True, eq=False)
class _SealedRounds:
    algorithm: Algorithm[Any]
    terms: SealedTerms
    records: SumRecords
    keys: CoordinatorKeys

    def asks(self, state: SealedState, agent: HospitalName) -> bool:
        return not state.alone and self._is_asked(state.inner, state.failures, agent)

    def exchanges(self, state: SealedState, begun: RoundStart) -> Exchanges[SealedState]:
        inner = self.algorithm
        for_user = inner.broadcast_to_user(state.inner)
        to_user = {begun.user: Payload(for_user)} if for_user else {}
        if state.alone:
            alone = yield Ask(TRAIN, Payload(inner.broadcast(state.inner)), to_user)
            step = inner.update(state.inner, alone.cohort)
            return replace(step, state=replace(state, inner=step.state))
        earlier = self.records.pending()
        if earlier is not None and earlier.round == begun.round:
            self.keys.take_up(*(mpz(int.from_bytes(prime)) for prime in earlier.primes))
            attempt = earlier.attempt
        else:
            earlier, attempt = None, secrets.token_bytes(ATTEMPT_BYTES)
        self.keys.pool.prepare(min(len(begun.parameters), BUCKETS))
        said = legs.Attempt(attempt=attempt).model_dump(mode="json")
        sent = Sent(attempt, inner.broadcast(state.inner), earlier)
        answered = yield Ask(
            TRAIN,
            Payload(sent.tensors, said),
            to_user,
            brings=Brings(update=True, sealed=True),
        )
        faults = Faults()
        try:
            trained = Trained.of(
                self.terms, begun, sent, answered.cohort, self.keys.sites(), faults
            )
            step = yield from self._with_peers(state, trained)
        except Skipped as why:
            step = self._skipped(state, why, torch.zeros_like(answered.cohort.own.delta))
        notes = [step.note] if step.note else []
        return replace(step, rejected=faults.rejected, note="; ".join([*notes, *faults.notes]))

    def _skipped(
        self, state: SealedState, why: Skipped, nothing: torch.Tensor
    ) -> Step[SealedState]:
        """Leave the parameters; hospitals that fail round after round are not asked any more."""
        failures = after_skipping(state.failures, why)
        note, alone = str(why), False
        gone = sorted(n for n in why.failed_by if failures[n] >= MOST_FAILURES)
        if gone == [NOBODY]:
            alone = True
        elif gone:
            note += f"; {', '.join(gone)} is not asked any more"
            alone = self._too_few_left(state.inner, failures)
        if alone:
            note += f"; with fewer than {RULES.fewest} others the user trains alone from here on"
        after = SealedState(state.inner, alone, failures)
        return Step(nothing, {}, after, outcome="skipped", note=note, distances={})

    def _with_peers(self, state: SealedState, trained: Trained) -> Exchanges[SealedState]:
        measured = yield from measure(trained, self.keys, self.records)
        names = sorted(measured.distances)
        try:
            step = self.algorithm.update(state.inner, measured.cohort(names))
        except SumWanted as question:
            wanted = allowed(question)
        else:
            if step.outcome != "done":
                sealed = replace(state, inner=step.state)
                return replace(step, state=sealed, distances=measured.distances)
            wanted = None
        if wanted is None:
            return self._alone(state, measured, names)
        summed = yield from sum_up(measured, wanted, self.records)
        if not summed.check.holds:
            return self._stopped(state, measured, summed)
        return self._moved(state, measured, wanted, summed)

    def _moved(
        self, state: SealedState, measured: Measured, wanted: Wanted, summed: Summed
    ) -> Step[SealedState]:
        told, weights = wanted.told, summed.weights
        there = [name for name in sorted(measured.distances) if name in weights or not told[name]]
        made = SealedSum(weights, torch.from_numpy(summed.values), wanted.capped)
        try:
            step = self.algorithm.update(state.inner, measured.cohort(there, made))
        except NoSuchSum as why:
            lost = [name for name in told if told[name] and name not in weights]
            raise Skipped(str(why), lost) from None
        notes = [step.note] if step.note else []
        if wanted.capped:
            lowered = ", ".join(sorted(wanted.capped))
            notes.append(f"the weight of {lowered} was lowered, so that others hide it in the sum")
        return replace(
            step,
            note="; ".join(notes),
            state=SealedState(
                step.state,
                self._too_few_left(step.state, state.failures),
                after_success(state.failures),
            ),
            distances={name: measured.distances[name] for name in there},
        )

    def _alone(
        self, state: SealedState, measured: Measured, names: Sequence[HospitalName]
    ) -> Step[SealedState]:
        """Return the user's own step, for good: sending its result out would show g_0."""
        own = measured.trained.own
        peers = {name: measured.trained.peers[name] for name in names}
        lone = LoneCohort(own, peers, measured.distances, None, measured.known_lengths)
        step = self.algorithm.update(state.inner, lone)
        if not self._too_few_left(step.state, state.failures):
            missing = [n for n in self.terms.peers if n not in names and self.asks(state, n)]
            raise Skipped(
                f"fewer than {RULES.fewest} of the hospitals that are there have a tenth of the"
                " largest weight, which a sealed sum needs",
                [] if missing else [NOBODY],
            )
        note = (
            f"fewer than {RULES.fewest} hospitals have weight left, which a sealed sum needs:"
            " from here on the user trains alone"
        )
        return replace(
            step,
            weights={own.agent: 1.0, **dict.fromkeys(names, 0.0)},
            state=SealedState(step.state, alone=True, failures=state.failures),
            note="; ".join(filter(None, (step.note, note))),
            distances=measured.distances,
        )

    def _too_few_left(self, inner: Any, failures: Failures) -> bool:
        asked = sum(self._is_asked(inner, failures, peer) for peer in self.terms.peers)
        return asked < RULES.fewest

    def _is_asked(self, inner: Any, failures: Failures, peer: HospitalName) -> bool:
        return failures.get(peer, 0) < MOST_FAILURES and self.algorithm.asks(inner, peer)

    def _stopped(self, state: SealedState, measured: Measured, summed: Summed) -> Step[SealedState]:
        own, check = measured.trained.own, summed.check
        self.records.suspect(summed.evidence, own.delta)
        found = "from the user's update" if check.claims == "distances" else "long"
        note = (
            f"the sum does not fit the {check.claims} ({check.apart:.3g} {found}, at most"
            f" {check.at_most:.3g} is possible): a hospital's report of its update is not true of"
            " what it sent. `erosion audit` shows which hospital, with a person at each"
        )
        nothing = torch.zeros_like(own.delta)
        return Step(nothing, {}, state, outcome="stopped", note=note, distances=measured.distances)
