"""Legs 1 and 2 of a sealed round: everybody has trained, and how far each is from the user."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch
from gmpy2 import mpz

from erosion_common.aggregation import vectors
from erosion_common.aggregation.cohort import Cohort, HospitalName, Update
from erosion_common.algorithms.base import (
    WHOLE,
    Answers,
    Ask,
    Brings,
    Payload,
    RoundStart,
    SealedMeasure,
    SiteAnswer,
    TensorTerms,
)
from erosion_common.learning.local_work import Tensors
from erosion_common.sealed import legs
from erosion_common.sealed.cohort import SealedCohort, SealedSum
from erosion_common.sealed.coordinator import Attempt, Faults, Skipped
from erosion_common.sealed.distance import Asker, Question
from erosion_common.sealed.masks import norm_of
from erosion_common.sealed.paillier import CoordinatorKeys, PaillierKey, from_rows, to_rows
from erosion_common.sealed.records import PendingRound, SumRecords
from erosion_common.sealed.roster import Roster, RoundContext, is_signed, received_hash, usable
from erosion_common.sealed.shares import Dealt
from erosion_common.sealed.sum_rules import SumRules
from erosion_common.support.keys import PublicKey

T = TypeVar("T")
Leg = Generator[Ask, Answers, T]
OUTSIZED = 20.0  # times what is usual, as where updates are seen
RULES = SumRules()  # a hospital may ask for more, and is then absent where it does not get it


@dataclass(frozen=True, slots=True)
class SealedTerms:
    """The study, arm and hospitals of the rounds."""

    study: str  # digest
    arm: str
    user: HospitalName
    peers: tuple[HospitalName, ...]  # that the study names
    run: str = ""
    measure: SealedMeasure = WHOLE
    scaling: str = ""  # that every site gets, as text
    longest_noise: Callable[[float, int], float] = lambda _patients, _dim: 0.0
    # for privacy, in the norm of an update, by its numbers of patients and of values


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What everybody got with the parameters."""

    attempt: bytes
    tensors: Tensors  # the method's
    earlier: PendingRound | None  # the same round, as it was before an interruption


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """After leg 1."""

    begun: RoundStart
    own: Update
    peers: Mapping[HospitalName, Update]  # without their deltas
    attempt: Attempt
    sites: Mapping[HospitalName, PublicKey]  # node keys, of those that are enrolled
    faults: Faults
    longest_noise: Mapping[HospitalName, float]  # for privacy, in the norm of each one's update
    earlier: PendingRound | None

    @classmethod
    def of(
        cls,
        terms: SealedTerms,
        begun: RoundStart,
        sent: Sent,
        cohort: Cohort,
        sites: Mapping[HospitalName, PublicKey],
        faults: Faults,
    ) -> "Trained":
        """Return it of the answers. Raises Skipped."""
        own, *others = cohort.updates
        own_norm = vectors.norm(own.delta)  # the cohort has no other values
        values = own.delta.numpy()
        measured_norm = norm_of(terms.measure.scaled(values)) if terms.measure.places else own_norm
        if not (own_norm > 0 and measured_norm > 0):
            raise Skipped("the user's own update has norm zero, which gives a sealed sum no range")
        received = received_hash(begun.parameters, terms.scaling, sent.tensors)
        context = RoundContext(
            terms.study, terms.run, terms.arm, begun.round, sent.attempt, received
        )
        hellos = {update.agent: update.hello for update in others if update.hello is not None}
        if sent.earlier is None:
            roster = _roster(context, hellos, sites, faults)
        else:
            roster = {name: keys.hello for name, keys in sent.earlier.roster.items()}
            for name in sorted(hellos):
                if hellos[name] != roster.get(name):
                    faults.reject(name, "its keys are not those of before the interruption")
        there = roster.keys() - faults.rejected.keys()
        peers = {update.agent: update for update in others if update.agent in there}
        if len(peers) < RULES.fewest:
            raise Skipped(f"{len(peers)} hospitals answered; a sealed sum needs {RULES.fewest}")
        made = Attempt(context, roster, values, own_norm, terms.measure, measured_norm)
        noise = {
            n: terms.longest_noise(peer.samples_seen, len(values)) for n, peer in peers.items()
        }
        return cls(begun, own, peers, made, sites, faults, noise, sent.earlier)


def _roster(
    context: RoundContext,
    hellos: Roster,
    sites: Mapping[HospitalName, PublicKey],
    faults: Faults,
) -> Roster:
    for name, hello in hellos.items():
        if name in sites and not is_signed(sites[name], context, name, hello):
            faults.reject(name, "its keys are not signed by the key that it is enrolled with")
    signed = {name: hello for name, hello in hellos.items() if name not in faults.rejected}
    roster = usable(signed)
    for name in signed.keys() - roster.keys():
        faults.reject(name, "keys that are none, or another hospital's")
    return roster


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """After leg 2."""

    trained: Trained
    asker: Asker
    distances: Mapping[HospitalName, float]
    lengths: Mapping[HospitalName, legs.Lengths]  # empty where the method asks for none
    envelopes: Mapping[HospitalName, Mapping[HospitalName, bytes]]  # by sender, then receiver
    dealt: Mapping[HospitalName, Dealt]  # commitments to the shares in them
    asked: bytes  # hash of the question
    pending: PendingRound  # with the sum that was begun before an interruption

    def inbox(self, name: HospitalName) -> dict[HospitalName, bytes]:
        """Return the envelopes for one site."""
        return {s: sent[name] for s, sent in self.envelopes.items() if name in sent}

    def cohort(self, names: Sequence[HospitalName], made: SealedSum | None = None) -> SealedCohort:
        """Return the cohort for the algorithm."""
        peers = {name: self.trained.peers[name] for name in names}
        return SealedCohort(self.trained.own, peers, self.distances, made, self.known_lengths)

    @property
    def known_lengths(self) -> dict[HospitalName, float]:
        """In the method's measure, the user's own too; empty where the method asks for none."""
        if not self.trained.attempt.measure.needs_lengths:
            return {}
        others = {name: said.measured for name, said in self.lengths.items()}
        return {self.trained.own.agent: self.trained.attempt.measured_norm, **others}


def measure(trained: Trained, keys: CoordinatorKeys, records: SumRecords) -> Leg[Measured]:
    """Run leg 2. Raises Skipped."""
    attempt, public = trained.attempt, keys.key.public
    asker, num_bytes = attempt.asker(keys.key), public.modulus_bytes
    if trained.earlier is None:
        question = attempt.question(asker, keys.pool.take)
        rows = to_rows(question.sealed_own, 2 * num_bytes)
        pending = PendingRound(
            round=trained.begun.round,
            attempt=attempt.context.attempt,
            roster={n: legs.HelloKeys.of(h) for n, h in attempt.roster.items()},
            primes=(_as_bytes(keys.key.p), _as_bytes(keys.key.q)),
            sealed_own=rows.numpy().tobytes(),
        )
        records.begin(pending)  # before anybody is asked, who would answer nothing else
    else:
        pending = trained.earlier
        kept = bytearray(pending.sealed_own)
        rows = torch.frombuffer(kept, dtype=torch.uint8).reshape(-1, 2 * num_bytes)
        question = Question(public, from_rows(rows), asker.scale)
    keys.pool.prepare(len(question.sealed_own))  # for the next round, from now on
    answered = yield Ask(
        legs.DISTANCE,
        Payload(
            {
                legs.SEALED_OWN: rows,
                legs.MODULUS_PROOF: to_rows(keys.proof(attempt.context.run_hash), num_bytes),
            },
            legs.DistanceAsked(
                roster=pending.roster,
                modulus=int(public.n).to_bytes(num_bytes),
                scale=question.scale,
            ).model_dump(mode="json"),
        ),
        brings=Brings(
            tensors={legs.SEALED_DISTANCE: TensorTerms((2 * num_bytes,), torch.uint8)},
            values=legs.DistanceSaid,
        ),
        hospitals=sorted(trained.peers),
        sends_parameters=False,
    )
    said = _usable_answers(answered.replies, trained, public)
    distances = {name: asker.distance(sealed) for name, (sealed, _) in said.items()}
    for name in _far(distances, asker.farthest, trained):
        trained.faults.reject(name, f"distance {distances[name]:.4g}: out of all proportion")
        del said[name], distances[name]
    lengths = {name: values.lengths for name, (_, values) in said.items() if values.lengths}
    envelopes = {name: values.envelopes for name, (_, values) in said.items()}
    dealt = {name: values.dealt for name, (_, values) in said.items()}
    if pending.told is not None:
        if pending.distances.keys() != distances.keys():
            raise Skipped(
                "a sum of this round was begun before an interruption, with other hospitals; no"
                " update enters a second sum"
            )
        distances = pending.distances
    asked = question.hash(attempt.hash)
    return Measured(trained, asker, distances, lengths, envelopes, dealt, asked, pending)


def _as_bytes(number: mpz) -> bytes:
    return int(number).to_bytes((number.bit_length() + 7) // 8)


def _usable_answers(
    replies: Mapping[HospitalName, SiteAnswer], trained: Trained, key: PaillierKey
) -> dict[HospitalName, tuple[mpz, legs.DistanceSaid]]:
    """Return the sealed distances with the values sent along; other answers are rejected."""
    attempt, faults = trained.attempt, trained.faults
    everyone, usable_answers = attempt.roster.keys(), {}
    for name, reply in replies.items():
        (sealed,) = from_rows(reply.tensors[legs.SEALED_DISTANCE].reshape(1, -1))
        said: legs.DistanceSaid = reply.values
        if said.envelopes.keys() != everyone - {name} or said.dealt.keys() != everyone:
            faults.reject(name, "it shares its secrets out to others than those of the round")
        elif attempt.measure.needs_lengths and said.lengths is None:
            faults.reject(name, "no lengths of its update, which the method needs")
        elif not 0 < sealed < key.n**2:
            faults.reject(name, "a sealed distance that is none")
        else:
            usable_answers[name] = sealed, said
    lengths = {name: said.lengths for name, (_, said) in usable_answers.items() if said.lengths}
    for name in _outsized(lengths, trained):
        faults.reject(name, "the length that it gave is out of all proportion")
        del usable_answers[name]
    return usable_answers


def _far(
    distances: Mapping[HospitalName, float], farthest: float, trained: Trained
) -> list[HospitalName]:
    """Return those with updates far longer than the others', or too far away to say how far.

    At the distance d an update is from d - 1 to d + 1 times as long as the user's. That much of it
    as noise for privacy can be is not its hospital's doing.
    """
    attempt, left_out = trained.attempt, []
    in_measure = attempt.measure.largest_scale / attempt.measured_norm
    for name, apart in distances.items():
        usual = median([1.0, *(other + 1 for n, other in distances.items() if n != name)])
        noise = in_measure * trained.longest_noise[name]
        if apart - 1 - noise > OUTSIZED * usual or apart >= farthest:
            left_out.append(name)
    return left_out


def _outsized(lengths: Mapping[HospitalName, legs.Lengths], trained: Trained) -> list[HospitalName]:
    """Return those with updates so long that the others' would be lost in the sum's range."""
    attempt = trained.attempt
    own = {"": legs.Lengths(whole=attempt.own_norm, measured=attempt.measured_norm)}
    left_out = []
    for name, said in lengths.items():
        others = [other for n, other in {**own, **lengths}.items() if n != name]
        usual = median(other.whole for other in others), median(other.measured for other in others)
        noise = trained.longest_noise[name]
        in_measure = attempt.measure.largest_scale * noise
        if said.whole - noise > OUTSIZED * usual[0] or (
            said.measured - in_measure > OUTSIZED * usual[1]
        ):
            left_out.append(name)
    return left_out
