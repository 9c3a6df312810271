"""Sites of sealed rounds, and a coordinator that asks them leg by leg, honestly or not."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erosion_client.records.records import Records
from erosion_client.sealed.sealed_site import MaskedUpdate, SealedIdentity, SealedSite
from erosion_common.sealed.coordinator import Attempt, SumCheck
from erosion_common.sealed.masks import norm_of
from erosion_common.sealed.phases import RoundContext, SumRules
from erosion_common.sealed.shares import Dealt
from erosion_common.support.keys import PrivateKey, new_private_key
from tests.common.sealed.keys import residue_key, residue_proof
from tests.common.sealed.vectors import f32

Values = NDArray[np.float32]
CONTEXT = RoundContext("study", "run", "we", 1, bytes(16), b"\1" * 32)
OWN = f32([3, 4])
OTHERS = [f32([8, 4]), f32([3, 9]), f32([-3, -4]), f32([3, -1])]  # at 1, 1, 2 and 1
FACTORS = {"s0": 0.2, "s1": 0.2, "s2": 0.8 / 4.5, "s3": 0.2}
NAMES = [f"s{place}" for place in range(16)]


def node_keys(names: Sequence[str]) -> dict[str, PrivateKey]:
    """A key for each."""
    return {name: new_private_key() for name in names}


def sites(number: int, rules: SumRules | None = None) -> dict[str, SealedSite]:
    """Sites that know each other."""
    keys = node_keys(NAMES[:number])
    public = {name: key.public_key() for name, key in keys.items()}
    return {
        name: SealedSite(
            SealedIdentity(name, key, public), Records(None, "x").sums, rules or SumRules()
        )
        for name, key in keys.items()
    }


@dataclass
class Script:
    """A round's coordinator. `lost[leg]` do not answer in that leg; `tamper` changes requests."""

    sites: Mapping[str, SealedSite]
    own: Values
    updates: Mapping[str, Values]
    context: RoundContext = CONTEXT
    lost: Mapping[str, Collection[str]] = field(default_factory=dict)
    tamper: Callable[[str, str, Any], Any] = lambda _leg, _name, message: message
    distances: dict[str, float] = field(default_factory=dict)
    delivered: list[str] = field(default_factory=list)

    def there(self, leg: str, names: Sequence[str]) -> list[str]:
        """Those who answer."""
        return [name for name in names if name not in self.lost.get(leg, ())]

    def measure(self) -> dict[str, float]:
        """Legs 1 and 2."""
        names = self.there("hello", list(self.updates))
        roster = {n: self.sites[n].hello(self.context, self.updates[n]) for n in names}
        self.attempt = Attempt(self.context, roster, self.own, norm_of(self.own))
        key = residue_key()
        self.asker = self.attempt.asker(key)
        self.question = self.asker.question()
        self.proof = residue_proof(self.context.run_hash)
        self.asked = self.question.hash(self.attempt.hash)
        self.envelopes: dict[str, dict[str, bytes]] = {}
        self.dealt: dict[str, Dealt] = {}
        for name in self.there("distance", names):
            everyone, asked = self.tamper("distance", name, (roster, self.question))
            answer, self.envelopes[name] = self.sites[name].distance(everyone, asked, self.proof)
            self.distances[name] = self.asker.distance(answer)
            self.dealt[name] = self.sites[name].dealt
        return self.distances

    def inbox(self, name: str) -> dict[str, bytes]:
        """The envelopes for one site."""
        return {n: sent[name] for n, sent in self.envelopes.items() if name in sent}

    def mask(self, told: Mapping[str, float]) -> dict[str, MaskedUpdate]:
        """Leg 3."""
        self.view = self.attempt.view(self.asked, told, self.distances)
        masked = {}
        for name in self.there("masked", self.view.members):
            weights = self.tamper("masked", name, self.view.weights)
            masked[name] = self.sites[name].masked(weights, self.view.scale, self.inbox(name))
        return masked

    def unmask(self, masked: Mapping[str, MaskedUpdate]) -> NDArray[np.float32]:
        """Leg 4."""
        self.delivered = sorted(masked)
        receipts = {name: masked[name].receipt for name in self.delivered}
        helpers = [n for n in self.envelopes if n in masked or n not in self.view.members]
        released = {}
        for name in self.there("unmask", helpers):
            told = None if name in masked else (self.view, self.inbox(name))
            delivered, told = self.tamper("unmask", name, (receipts, told))
            given = self.sites[name].unmask(delivered, told)
            released[name] = (given.seeds, given.keys)
        total = np.zeros(len(self.own), np.uint32)
        for sent in masked.values():
            total += sent.words
        seeds = {name: masked[name].seed for name in self.delivered}
        self.shares = self.attempt.shares(released, self.dealt)
        return self.attempt.unmasked(self.view, total, seeds, self.shares)

    def sum(self, told: Mapping[str, float]) -> NDArray[np.float32]:
        """Legs 3 and 4."""
        return self.unmask(self.mask(told))

    def check(self, total: NDArray[np.float32]) -> SumCheck:
        """Whether the sum fits the distances."""
        return self.attempt.check(total, self.view, self.delivered, self.distances, self.asker)


def by_hand(number: int = 4, **options: Any) -> Script:
    """The values of the hand-sized round, at as many sites."""
    updates = dict(zip(NAMES, [*OTHERS, *[f32([1, 1])] * 12], strict=False))
    chosen = {name: updates[name] for name in NAMES[:number]}
    return Script(options.pop("at", None) or sites(number), OWN, chosen, **options)


def attempt(number: int, **changes: Any) -> RoundContext:
    """Another attempt."""
    return replace(CONTEXT, attempt=bytes([number]) * 16, **changes)
