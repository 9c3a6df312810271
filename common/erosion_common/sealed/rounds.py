"""An algorithm on sealed rounds: four exchanges, of which it sees distances and one sum.

1 train: every peer trains and answers with fresh keys instead of its update. 2 distance: each gives
its distance to the user's update, sealed. 3 masked: those with weight send their update, weighted,
under masks. 4 unmask: the sites take the masks off the sum. The algorithm is a pure function, so it
is asked twice: once for the weights that it wants, and once more when their sum is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.algorithms.base import (
    TRAIN,
    Algorithm,
    Ask,
    Exchanges,
    Payload,
    RoundStart,
    Step,
)
from erosion_common.sealed.cohort import LoneCohort, NoSuchSum, SealedSum, SumWanted
from erosion_common.sealed.coordinator import SumCheck
from erosion_common.sealed.power_residues import CoordinatorKeys
from erosion_common.sealed.records import SumRecords
from erosion_common.sealed.round import MOST_FAILURES, RULES, SealedRound, SealedTerms, Skipped

NOBODY = ""  # at fault where all are there and too few have weight


@dataclass(frozen=True, slots=True)
class SealedState:
    """An algorithm's state in sealed rounds."""

    inner: Any
    alone: bool  # too few hospitals had weight left, so nobody is asked any more
    failures: Mapping[HospitalName, int]  # failed rounds in a row


def seal(
    algorithm: Algorithm[Any],
    terms: SealedTerms,
    *,
    records: SumRecords | None = None,
    keys: CoordinatorKeys | None = None,
) -> Algorithm[SealedState]:
    """Return the algorithm on one run's sealed rounds. Raises TypeError for one with exchanges."""
    if algorithm.exchanges is not None:
        raise TypeError("a method that has exchanges cannot be sealed")
    rounds = _SealedRounds(algorithm, terms, records or SumRecords(), keys or CoordinatorKeys())
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
    """From the exchanges of a round to the algorithm's step."""

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
        to_all = Payload(inner.broadcast(state.inner))
        if state.alone:
            alone = yield Ask(TRAIN, to_all, to_user)
            step = inner.update(state.inner, alone.cohort)
            return replace(step, state=replace(state, inner=step.state))
        round_ = SealedRound(self.terms, self.records, self.keys, begun)
        try:
            yield from round_.train(to_all, to_user)
            yield from round_.measure()
            step = yield from self._summed(state, round_)
        except Skipped as why:
            step = self._skipped(state, why, len(begun.parameters))
        notes = [step.note] if step.note else []
        return replace(step, rejected=round_.rejected, note="; ".join([*notes, *round_.notes]))

    def _summed(self, state: SealedState, round_: SealedRound) -> Exchanges[SealedState]:
        names = sorted(round_.distances)
        try:
            step = self.algorithm.update(state.inner, round_.cohort(names))
        except SumWanted as question:
            wanted = _allowed(question)
        else:
            if step.outcome != "done":
                inner = replace(state, inner=step.state)
                return replace(step, state=inner, distances=round_.distances)
            wanted = None
        if wanted is None:
            return self._alone(state, round_, names)
        asked, capped = wanted
        values, weights, check = yield from round_.sum_up(asked)
        if not check.holds:
            return _stopped(state, round_, check)
        there = [name for name in names if name in weights or not asked[name]]
        made = SealedSum(weights, torch.from_numpy(values), capped)
        try:
            step = self.algorithm.update(state.inner, round_.cohort(there, made))
        except NoSuchSum as why:
            lost = [name for name in asked if asked[name] and name not in weights]
            raise Skipped(str(why), lost) from None
        note = ""
        if capped:
            lowered = ", ".join(sorted(capped))
            note = f"the weight of {lowered} was lowered, so that others hide it in the sum"
        gone = {name: times for name, times in state.failures.items() if times >= MOST_FAILURES}
        return replace(
            step,
            note="; ".join(filter(None, (step.note, note))),
            state=SealedState(step.state, self._too_few_left(step.state, state.failures), gone),
            distances={name: round_.distances[name] for name in there},
        )

    def _skipped(self, state: SealedState, why: Skipped, dim: int) -> Step[SealedState]:
        """Leave the parameters; hospitals that fail round after round are not asked any more."""
        more = {name: state.failures.get(name, 0) + why.times for name in why.failed_by}
        failures = {**state.failures, **more}
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
        return Step(torch.zeros(dim), {}, after, outcome="skipped", note=note, distances={})

    def _alone(
        self, state: SealedState, round_: SealedRound, names: Sequence[HospitalName]
    ) -> Step[SealedState]:
        """Return the user's own step, for good: sending its result out would show g_0."""
        lone = round_.cohort(names, kind=LoneCohort)
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
            weights={lone.own.agent: 1.0, **dict.fromkeys(names, 0.0)},
            state=SealedState(step.state, alone=True, failures=state.failures),
            note="; ".join(filter(None, (step.note, note))),
            distances=round_.distances,
        )

    def _too_few_left(self, inner: Any, failures: Mapping[HospitalName, int]) -> bool:
        asked = sum(self._is_asked(inner, failures, peer) for peer in self.terms.peers)
        return asked < RULES.fewest

    def _is_asked(
        self, inner: Any, failures: Mapping[HospitalName, int], peer: HospitalName
    ) -> bool:
        return failures.get(peer, 0) < MOST_FAILURES and self.algorithm.asks(inner, peer)


def _stopped(state: SealedState, round_: SealedRound, check: SumCheck) -> Step[SealedState]:
    note = (
        f"the sum does not fit the distances ({check.apart:.3g} from the user's update, at most"
        f" {check.at_most:.3g} is possible): a hospital's report of its update is not true of"
        " what it sent. `erosion audit` shows which hospital, with a person at each"
    )
    nothing = torch.zeros_like(round_.own.delta)
    return Step(nothing, {}, state, outcome="stopped", note=note, distances=round_.distances)


def _allowed(wanted: SumWanted) -> tuple[Mapping[HospitalName, float], frozenset[str]] | None:
    """Return the sites' weights and which are lowered; None: too few. Raises Skipped."""
    factors = wanted.factors
    total = wanted.own + sum(factors.values())
    if not (wanted.own >= 0 and min(factors.values()) >= 0 and total <= 1 + 1e-9):
        raise Skipped("the method wants weights that no sealed sum can have")
    lowered = RULES.capped(factors)
    if lowered is None:
        return None
    capped = frozenset(name for name in factors if lowered[name] < factors[name])
    if not capped:
        return factors, capped
    # What the cap took is shared out in proportion, the user's own included.
    share = total / (wanted.own + sum(lowered.values()))
    return {name: share * weight for name, weight in lowered.items()}, capped
