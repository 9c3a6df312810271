"""Legs 3 and 4 of a sealed round: the weighted updates under masks, and the masks off their sum."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.algorithms.base import Ask, Brings, Payload, SiteAnswer, TensorTerms
from erosion_common.sealed import legs
from erosion_common.sealed.cohort import SumWanted
from erosion_common.sealed.coordinator import MOST_FAILURES, Skipped
from erosion_common.sealed.masks import Words
from erosion_common.sealed.measuring import RULES, Leg, Measured
from erosion_common.sealed.records import ContextOf, Evidence, PendingRound, SumRecords
from erosion_common.sealed.roster import Receipt, View, is_receipt, words_hash
from erosion_common.sealed.shares import CannotUnmask
from erosion_common.sealed.sum_rules import SumCheck
from erosion_common.support.text import most_said


class RunningSum:
    """Of one round."""

    def __init__(
        self,
        takes: Callable[[HospitalName, Receipt], bool],
        only: Collection[HospitalName] | None,
    ) -> None:
        """`only`: the hospitals to add; None: all with a receipt that it `takes`."""
        self._takes, self._only = takes, only
        self._total: Words | None = None  # modulo 2^32: (dim,)
        self.receipts: dict[HospitalName, Receipt] = {}  # of those who are in it
        self.seeds: dict[HospitalName, bytes] = {}  # hashes of their masks' seeds

    @property
    def total(self) -> Words:
        """Of one update or more."""
        if self._total is None:
            raise ValueError("nothing was added yet")
        return self._total

    def add(self, name: HospitalName, answer: SiteAnswer) -> SiteAnswer:
        """Add an answer to leg 3, and return it without its words. The first become the sum."""
        words = cast(Words, answer.tensors[legs.WORDS].numpy())
        if self._only is None or name in self._only:
            said = answer.values
            receipt = Receipt(words_hash(words), said.rules.rules, said.signature)
            if not self._takes(name, receipt):
                return SiteAnswer({}, answer.values)
            self.receipts[name] = receipt
            self.seeds[name] = answer.values.seed
            if self._total is None:
                self._total = words
            else:
                self._total += words
        return SiteAnswer({}, answer.values)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """The sum that the algorithm wants."""

    told: Mapping[HospitalName, float]
    capped: frozenset[HospitalName] = field(default=frozenset())


@dataclass(frozen=True, slots=True, eq=False)
class Summed:
    """After leg 4."""

    values: NDArray[np.float32]  # (dim,) the sum
    weights: Mapping[HospitalName, float]  # of those who are in it
    check: SumCheck
    evidence: Evidence  # what an audit needs, where the check does not hold


def allowed(wanted: SumWanted) -> Wanted | None:
    """Return the weights that the sites get, or None where too few hospitals have any.

    Raises Skipped.
    """
    factors = wanted.factors
    total = wanted.own + sum(factors.values())
    if not (wanted.own >= 0 and min(factors.values()) >= 0 and total <= 1 + 1e-9):
        raise Skipped("the method wants weights that no sealed sum can have")
    lowered = RULES.capped(factors)
    if lowered is None:
        return None
    # What the cap took is shared out in proportion, the user's own included.
    share = total / (wanted.own + sum(lowered.values()))
    capped = frozenset(name for name in factors if lowered[name] < factors[name])
    told = {name: share * weight for name, weight in lowered.items()} if capped else factors
    return Wanted(told, capped)


def sum_up(measured: Measured, wanted: Wanted, records: SumRecords) -> Leg[Summed]:
    """Run both legs. Raises Skipped."""
    attempt, told = measured.trained.attempt, wanted.told
    pending = _begun(measured, told, records)
    view = attempt.view(measured.asked, told, measured.distances, measured.lengths)
    running = RunningSum(_taker(measured, view), pending.delivered)
    yield _masked(measured, view, running)
    delivered = sorted(running.receipts)
    if pending.delivered is not None and delivered != sorted(pending.delivered):
        raise Skipped(
            "a sum of this round was begun before an interruption, and not all of its hospitals are"
            " there"
        )
    weights = {name: told[name] for name in delivered}
    lost = sorted(set(view.members) - set(delivered))
    if problem := RULES.problem_with(weights):
        raise Skipped(f"too few hospitals sent their masked update ({problem})", lost)
    for name, receipt in running.receipts.items():
        if problem := receipt.rules.problem_with(weights):
            raise Skipped(f"too few sent their masked update for {name} ({problem})", lost)
    records.begin(pending.model_copy(update={"delivered": tuple(delivered)}))
    answered = yield _unmask(measured, view, running.receipts)
    released = {n: (r.values.seeds, r.values.keys) for n, r in answered.replies.items()}
    try:
        shares = attempt.shares(released, measured.dealt)
        values = attempt.unmasked(view, running.total, running.seeds, shares)
    except CannotUnmask as why:
        if why.at_fault is None:
            raise Skipped(f"{why}{most_said(answered.missing.values())}") from None
        if why.contradicts:  # it is wrong, or they are
            raise Skipped(str(why), [why.at_fault, *why.contradicts]) from None
        measured.trained.faults.reject(why.at_fault, str(why))
        raise Skipped(str(why), [why.at_fault], MOST_FAILURES) from None
    for name, of in shares.wrong(set(view.members)).items():
        measured.trained.faults.note(f"{name} released wrong shares of {', '.join(sorted(of))}")
    check = attempt.check(
        values, view, delivered, measured.distances, measured.lengths, measured.asker
    )
    return Summed(values, weights, check, _evidence(measured, view, running.receipts, check))


def _begun(
    measured: Measured, told: Mapping[HospitalName, float], records: SumRecords
) -> PendingRound:
    """Return the sum, written down before anybody is asked for it."""
    known = measured.pending
    if known.told is not None and known.told != told:
        raise Skipped("another sum of this round was begun before an interruption")
    pending = known.model_copy(update={"distances": dict(measured.distances), "told": dict(told)})
    records.begin(pending)
    return pending


def _taker(measured: Measured, view: View) -> Callable[[HospitalName, Receipt], bool]:
    """Return a check of receipts: would the others accept it, as far as keys are known here?"""
    trained = measured.trained

    def takes(name: HospitalName, receipt: Receipt) -> bool:
        key = trained.sites.get(name)
        if key is not None and not is_receipt(key, view, name, receipt):
            trained.faults.reject(name, "its receipt is not signed by the key it is enrolled with")
            return False
        if problem := receipt.rules.problem_with(view.weights):
            trained.faults.reject(name, f"its own limits allow no such sum: {problem}")
            return False
        return True

    return takes


def _masked(measured: Measured, view: View, running: RunningSum) -> Ask:
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
        as_it_comes=running.add,
    )


def _unmask(measured: Measured, view: View, receipts: Mapping[HospitalName, Receipt]) -> Ask:
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


def _told(measured: Measured, view: View, name: HospitalName) -> legs.MaskedAsked:
    """Return what leg 3 discloses to a site, and leg 4 to one that was not in it."""
    return legs.MaskedAsked(
        weights=dict(view.weights), scale=view.scale, envelopes=measured.inbox(name)
    )


def _evidence(
    measured: Measured, view: View, receipts: Mapping[HospitalName, Receipt], check: SumCheck
) -> Evidence:
    attempt = measured.trained.attempt
    return Evidence(
        context=ContextOf.of(attempt.context),
        roster={n: legs.HelloKeys.of(h) for n, h in attempt.roster.items()},
        asked=measured.asked,
        weights=dict(view.weights),
        scale=view.scale,
        distances=dict(measured.distances),
        delivered={n: legs.ReceiptSaid.of(receipt) for n, receipt in receipts.items()},
        apart=check.apart,
        at_most=check.at_most,
        claims=check.claims,
        lengths=dict(measured.lengths),
        places=[(p.start, p.stop, weight) for p, weight in attempt.measure.places],
    )
