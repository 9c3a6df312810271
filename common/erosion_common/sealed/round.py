"""One sealed round at the coordinator, phase by phase."""

import math
import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from erosion_common.aggregation import vectors
from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.algorithms.base import (
    TRAIN,
    Answers,
    Ask,
    ExpectedReply,
    Payload,
    RoundStart,
    SiteAnswer,
    TensorSpec,
)
from erosion_common.sealed import phases
from erosion_common.sealed.cohort import SealedCohort, SealedSum
from erosion_common.sealed.coordinator import Attempt, SumCheck
from erosion_common.sealed.distance import Question
from erosion_common.sealed.masks import BUCKETS, Words
from erosion_common.sealed.phases import Receipt, Roster, RoundContext, SumRules, View
from erosion_common.sealed.power_residues import (
    CoordinatorKeys,
    from_bytes,
    from_rows,
    to_bytes,
    to_rows,
)
from erosion_common.sealed.records import Evidence, PendingRound, SumRecords
from erosion_common.sealed.roster import is_receipt, is_signed, received_hash, usable, words_hash
from erosion_common.sealed.shares import CannotUnmask
from erosion_common.support.keys import PublicKey
from erosion_common.support.text import most_said

_Phase = Generator[Ask, Answers, None]

OUTSIZED = 20.0  # times the baseline, as where updates are seen
RULES = SumRules()  # a hospital may ask for more, and is then absent where it does not get it
MOST_FAILURES = 2  # in a row; then a hospital is not asked any more


@dataclass(frozen=True, slots=True)
class SealedTerms:
    """The study, arm and hospitals of the rounds."""

    study: str  # digest
    arm: str
    user: HospitalName
    peers: tuple[HospitalName, ...]  # that the study names
    run: str = ""
    scaling: str = ""  # that every site gets, as text
    longest_noise: Callable[[float, int], float] = lambda _patients, _dim: 0.0
    # for privacy, in the norm of an update, by its numbers of patients and of values


class Skipped(Exception):  # noqa: N818 - ends the round, not the run
    """The round gives no step, and why."""

    def __init__(self, why: str, failed_by: Collection[HospitalName] = (), times: int = 1) -> None:
        """`failed_by`: the hospitals at fault; `times`: how much that counts."""
        super().__init__(why)
        self.failed_by, self.times = failed_by, times


class SealedRound:
    """One round: `train`, `measure`, `sum_up`, once each; resumed, from what `records` kept."""

    own: Update  # from phase 1 on, as are the next three
    peers: Mapping[HospitalName, Update]  # without their deltas
    attempt: Attempt
    distances: Mapping[HospitalName, float]  # from phase 2 on, as are all below

    def __init__(
        self, terms: SealedTerms, records: SumRecords, keys: CoordinatorKeys, begun: RoundStart
    ) -> None:
        self._terms, self._records, self._keys, self._begun = terms, records, keys, begun
        self._sites: Mapping[HospitalName, PublicKey] = {}  # node keys, of those that are enrolled
        self.rejected: dict[HospitalName, str] = {}  # the first reason counts
        self.notes: list[str] = []
        earlier = records.pending()
        self._earlier = earlier if earlier is not None and earlier.round == begun.round else None
        if self._earlier is not None:
            keys.resume(*map(from_bytes, self._earlier.primes))

    def train(self, to_all: Payload, to_user: Mapping[HospitalName, Payload]) -> _Phase:
        """Run phase 1: everybody trains. Raises Skipped."""
        terms, begun, earlier = self._terms, self._begun, self._earlier
        attempt = secrets.token_bytes(phases.ATTEMPT_BYTES) if earlier is None else earlier.attempt
        said = phases.Attempted(attempt=attempt).model_dump(mode="json")
        start = terms.study, terms.run, terms.arm, begun.round, attempt
        with ThreadPoolExecutor(1) as meanwhile:
            hashed = meanwhile.submit(
                received_hash, begun.parameters, terms.scaling, to_all.tensors
            )
            num_values = min(BUCKETS, len(begun.parameters))
            made = meanwhile.submit(
                self._keys.make_ahead, num_values, RoundContext(*start, b"").run_hash
            )
            answered = yield Ask(
                TRAIN,
                Payload(to_all.tensors, said),
                to_user,
                expects=ExpectedReply(update=True, sealed=True),
            )
            context = RoundContext(*start, hashed.result())
            made.result()
        self._sites = self._keys.sites()
        self.own, *others = answered.cohort.updates
        own_norm = vectors.norm(self.own.delta)  # the cohort has no other values
        values = self.own.delta.numpy()
        if not own_norm > 0:
            raise Skipped("the user's own update has norm zero, which gives a sealed sum no range")
        hellos = {update.agent: update.hello for update in others if update.hello is not None}
        roster = self._roster(context, hellos)
        there = roster.keys() - self.rejected.keys()
        self.peers = {update.agent: update for update in others if update.agent in there}
        if len(self.peers) < RULES.fewest:
            raise Skipped(
                f"{len(self.peers)} hospitals answered; a sealed sum needs {RULES.fewest}"
            )
        self.attempt = Attempt(context, roster, values, own_norm)
        self._noise = {
            n: terms.longest_noise(peer.samples_seen, len(values)) for n, peer in self.peers.items()
        }

    def _roster(self, context: RoundContext, hellos: Roster) -> Roster:
        """Return the site's keys, or those from before an interruption; others are rejected."""
        if self._earlier is not None:
            for name in sorted(hellos):
                if hellos[name] != self._earlier.roster.get(name):
                    self._reject(name, "its keys are not those of before the interruption")
            return self._earlier.roster
        for name, hello in hellos.items():
            if name in self._sites and not is_signed(self._sites[name], context, name, hello):
                self._reject(name, "its keys are not signed by the key that it is enrolled with")
        signed = {name: hello for name, hello in hellos.items() if name not in self.rejected}
        roster = usable(signed)
        for name in signed.keys() - roster.keys():
            self._reject(name, "keys that are none, or another hospital's")
        return roster

    def measure(self) -> _Phase:
        """Run phase 2: how far each is from the user. Raises Skipped."""
        attempt, key = self.attempt, self._keys.key
        self._asker, num_bytes = attempt.asker(key), key.public.modulus_bytes
        if self._earlier is None:
            question = self._asker.question()
            rows = to_rows(question.sealed_own, num_bytes)
            self._pending = PendingRound(
                round=self._begun.round,
                attempt=attempt.context.attempt,
                roster=dict(attempt.roster),
                primes=(to_bytes(key.p), to_bytes(key.q)),
                sealed_own=rows.numpy().tobytes(),
            )
            self._records.begin(self._pending)  # before anybody is asked, who would answer
            # nothing else
        else:
            self._pending = self._earlier
            kept = bytearray(self._earlier.sealed_own)
            rows = torch.frombuffer(kept, dtype=torch.uint8).reshape(-1, num_bytes)
            question = Question(key.public, from_rows(rows), self._asker.scale)
        self._asked = question.hash(attempt.hash)
        proof = to_rows(self._keys.proof(attempt.context.run_hash), num_bytes)
        asked = phases.DistanceAsked(
            roster=self._pending.roster,
            modulus=to_bytes(key.public.n, num_bytes),
            base=to_bytes(key.public.y, num_bytes),
            scale=question.scale,
        )
        self._opened: dict[HospitalName, float] = {}

        def open_(name: HospitalName, reply: SiteAnswer) -> SiteAnswer:
            (sealed,) = from_rows(reply.tensors[phases.SEALED_DISTANCE].reshape(1, -1))
            if math.gcd(int(sealed), int(key.public.n)) == 1:
                self._opened[name] = self._asker.distance(sealed)
            return SiteAnswer({}, reply.values)

        answered = yield Ask(
            phases.DISTANCE,
            Payload(
                {phases.SEALED_OWN: rows, phases.MODULUS_PROOF: proof},
                asked.model_dump(mode="json"),
            ),
            expects=ExpectedReply(
                tensors={phases.SEALED_DISTANCE: TensorSpec((num_bytes,), torch.uint8)},
                values=phases.DistanceSaid,
            ),
            hospitals=sorted(self.peers),
            sends_parameters=False,
            as_it_comes=open_,
        )
        said = self._usable_answers(answered.replies)
        distances = {name: self._opened[name] for name in said}
        for name in self._far(distances):
            self._reject(name, f"distance {distances[name]:.4g}: out of all proportion")
            del said[name], distances[name]
        self._envelopes = {name: values.envelopes for name, values in said.items()}
        self._dealt = {name: values.dealt for name, values in said.items()}
        self.distances = distances
        if self._pending.weights is not None:
            if self._pending.distances.keys() != distances.keys():
                raise Skipped(
                    "a sum of this round was begun before an interruption, with other hospitals; no"
                    " update enters a second sum"
                )
            self.distances = self._pending.distances

    def _usable_answers(
        self, replies: Mapping[HospitalName, SiteAnswer]
    ) -> dict[HospitalName, phases.DistanceSaid]:
        """Return the values sent along with sealed distances; other answers are rejected."""
        everyone, found = self.attempt.roster.keys(), {}
        for name, reply in replies.items():
            said: phases.DistanceSaid = reply.values
            if said.envelopes.keys() != everyone - {name} or said.dealt.keys() != everyone:
                self._reject(name, "it shares its secrets out to others than those of the round")
            elif name not in self._opened:
                self._reject(name, "a sealed distance that is none")
            else:
                found[name] = said
        return found

    def _far(self, distances: Mapping[HospitalName, float]) -> list[HospitalName]:
        """Return those with updates far longer than the others', or too far away to say how far.

        At the distance d an update is from d - 1 to d + 1 times as long as the user's. That much of
        it as noise for privacy can be is not its hospital's doing.
        """
        left_out = []
        for name, apart in distances.items():
            baseline = median([1.0, *(other + 1 for n, other in distances.items() if n != name)])
            noise = self._noise[name] / self.attempt.own_norm
            if apart - 1 - noise > OUTSIZED * baseline or apart >= self._asker.farthest:
                left_out.append(name)
        return left_out

    def cohort(
        self,
        names: Sequence[HospitalName],
        made: SealedSum | None = None,
        kind: type[SealedCohort] = SealedCohort,
    ) -> SealedCohort:
        """Return what the algorithm sees of these hospitals."""
        return kind(self.own, {n: self.peers[n] for n in names}, self.distances, made)

    def sum_up(
        self, weights: Mapping[HospitalName, float]
    ) -> Generator[Ask, Answers, tuple[NDArray[np.float32], dict[HospitalName, float], SumCheck]]:
        """Run phases 3 and 4: return sum (dim,), weights, and whether it fits. Raises Skipped."""
        pending = self._pending
        if pending.weights is not None and pending.weights != weights:
            raise Skipped("another sum of this round was begun before an interruption")
        pending = pending.model_copy(
            update={"distances": dict(self.distances), "weights": dict(weights)}
        )
        self._records.begin(pending)  # before anybody is asked for it
        attempt = self.attempt
        view = attempt.view(self._asked, weights, self.distances)
        self._total: Words | None = None
        self._receipts: dict[HospitalName, Receipt] = {}  # of those who are in the sum
        self._seeds: dict[HospitalName, bytes] = {}  # hashes of their masks' seeds
        yield self._masked(view, pending.delivered)
        delivered = sorted(self._receipts)
        if pending.delivered is not None and delivered != sorted(pending.delivered):
            raise Skipped(
                "a sum of this round was begun before an interruption, and not all of its hospitals"
                " are there"
            )
        used = {name: weights[name] for name in delivered}
        lost = sorted(set(view.members) - set(delivered))
        if problem := RULES.problem_with(used):
            raise Skipped(f"too few hospitals sent their masked update ({problem})", lost)
        for name, receipt in self._receipts.items():
            if problem := receipt.rules.problem_with(used):
                raise Skipped(f"too few sent their masked update for {name} ({problem})", lost)
        self._records.begin(pending.model_copy(update={"delivered": tuple(delivered)}))
        answered = yield self._unmask(view)
        values = self._unmasked(view, answered)
        check = attempt.check(values, view, delivered, self.distances, self._asker)
        if not check.holds:
            self._records.suspect(self._evidence(view, check), self.own.delta)
        return values, used, check

    def _masked(self, view: View, only: Collection[HospitalName] | None) -> Ask:
        """Return phase 3. `only`: whose answers are added; None: all with a receipt that fits."""

        def add(name: HospitalName, answer: SiteAnswer) -> SiteAnswer:
            """Add the answer, and return it without its words. The first become the sum."""
            said: phases.MaskedSaid = answer.values
            words = cast(Words, answer.tensors[phases.WORDS].numpy())
            receipt = Receipt(words_hash(words), said.rules, said.signature)
            if (only is None or name in only) and self._fits(view, name, receipt):
                self._receipts[name], self._seeds[name] = receipt, said.seed
                if self._total is None:
                    self._total = words
                else:
                    self._total += words
            return SiteAnswer({}, said)

        terms = TensorSpec((len(self.own.delta),), torch.uint32)
        return Ask(
            phases.MASKED,
            to_each={
                name: Payload(values=self._disclosed(view, name).model_dump(mode="json"))
                for name in view.members
            },
            expects=ExpectedReply(tensors={phases.WORDS: terms}, values=phases.MaskedSaid),
            hospitals=view.members,
            sends_parameters=False,
            as_it_comes=add,
        )

    def _fits(self, view: View, name: HospitalName, receipt: Receipt) -> bool:
        """Return whether the others would accept the receipt, as far as keys are known here."""
        key = self._sites.get(name)
        if key is not None and not is_receipt(key, view, name, receipt):
            self._reject(name, "its receipt is not signed by the key it is enrolled with")
        elif receipt.rules != receipt.rules.among(self.attempt.roster):
            # Every site is sent them, and no message has room for such lists of several.
            self._reject(name, "its own limits name others than the hospitals of the round")
        elif problem := receipt.rules.problem_with(view.weights):
            self._reject(name, f"its own limits allow no such sum: {problem}")
        else:
            return True
        return False

    def _unmask(self, view: View) -> Ask:
        members = set(view.members)
        helpers = [n for n in sorted(self._envelopes) if n in self._receipts or n not in members]
        shown = {name: self._disclosed(view, name) for name in helpers if name not in members}
        return Ask(
            phases.UNMASK,
            Payload(values=phases.UnmaskAsked(delivered=self._receipts).model_dump(mode="json")),
            to_each={
                name: Payload(values={"view": told.model_dump(mode="json")})
                for name, told in shown.items()
            },
            expects=ExpectedReply(values=phases.UnmaskSaid),
            hospitals=helpers,
            sends_parameters=False,
            any_number=True,
        )

    def _disclosed(self, view: View, name: HospitalName) -> phases.MaskedAsked:
        """Return what phase 3 discloses to a site, and phase 4 to one that was not in it."""
        inbox = {s: sent[name] for s, sent in self._envelopes.items() if name in sent}
        return phases.MaskedAsked(weights=dict(view.weights), scale=view.scale, envelopes=inbox)

    def _unmasked(self, view: View, answered: Answers) -> NDArray[np.float32]:
        released = {n: (r.values.seeds, r.values.keys) for n, r in answered.replies.items()}
        assert self._total is not None  # of four or more
        try:
            shares = self.attempt.shares(released, self._dealt)
            values = self.attempt.unmasked(view, self._total, self._seeds, shares)
        except CannotUnmask as why:
            if why.at_fault is None:
                raise Skipped(f"{why}{most_said(answered.missing.values())}") from None
            if why.contradicts:  # it is wrong, or they are
                raise Skipped(str(why), [why.at_fault, *why.contradicts]) from None
            self._reject(why.at_fault, str(why))
            raise Skipped(str(why), [why.at_fault], MOST_FAILURES) from None
        for name, of in shares.wrong(set(view.members)).items():
            self.notes.append(f"{name} released wrong shares of {', '.join(sorted(of))}")
        return values

    def _evidence(self, view: View, check: SumCheck) -> Evidence:
        """Return what an audit needs, where the check does not hold."""
        return Evidence(
            context=self.attempt.context,
            roster=dict(self.attempt.roster),
            asked=self._asked,
            weights=dict(view.weights),
            scale=view.scale,
            distances=dict(self.distances),
            delivered=self._receipts,
            apart=check.apart,
            at_most=check.at_most,
        )

    def _reject(self, name: HospitalName, why: str) -> None:
        self.rejected.setdefault(name, why)
