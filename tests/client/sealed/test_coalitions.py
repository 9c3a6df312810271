"""What a coordinator and hospitals that help it work out of a round, whatever it tells the rest.

Real sites answer. What the coalition then holds is written down as linear equations in what it does
not know (updates, self masks and masks of pairs), and solved.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import null_space

from erosion_client.sealed.sealed_site import Measured
from erosion_common.errors import Refusal
from erosion_common.sealed.phases import Receipt, SumRules, View
from erosion_common.sealed.roster import places, sign_receipt
from erosion_common.sealed.shares import combine_shares, threshold
from tests.client.sealed.sites import NAMES, Script, by_hand

RULES = SumRules()
SEED, KEY = 0, 1


@dataclass
class Coalition:
    """A coordinator, and hospitals that give it all that they hold."""

    script: Script
    allies: Collection[str]
    told: View
    phases: dict[str, Measured]  # of everybody, before leg 3
    honest: list[str] = field(default_factory=list)  # who sent masked updates
    receipts: dict[str, Receipt] = field(default_factory=dict)
    shares: dict[tuple[int, str], dict[str, bytes]] = field(default_factory=dict)  # by holder

    @classmethod
    def of(cls, script: Script, allies: Collection[str], weights: Mapping[str, float]) -> Self:
        """After legs 1 to 3."""
        script.measure()
        phases = {name: site._past(Measured) for name, site in script.sites.items()}
        told = script.attempt.view(script.asked, weights, script.distances)
        coalition = cls(script, allies, told, phases)
        for name in script.sites:
            if name in allies:
                coalition.hear(name)
            elif name in told.members:
                with suppress(Refusal):
                    masked = script.sites[name].masked(weights, told.scale, script.inbox(name))
                    coalition.honest.append(name)
                    coalition.receipts[name] = masked.receipt
        return coalition

    def hear(self, ally: str) -> None:
        """Its shares of both secrets of everybody, and a receipt of whatever it is told."""
        site = self.script.sites[ally]
        held = site._opened(self.phases[ally], self.script.inbox(ally))
        self.take(ally, SEED, {of: pair.seed for of, pair in held.items()})
        self.take(ally, KEY, {of: pair.key for of, pair in held.items()})
        if ally in self.told.members:
            key = site._identity.node_key
            self.receipts[ally] = sign_receipt(key, self.told, ally, b"", SumRules(0, 1.0))

    def ask(self, name: str, lost: Collection[str]) -> None:
        """Tell an honest site that these did not deliver; it may refuse."""
        delivered = {n: receipt for n, receipt in self.receipts.items() if n not in lost}
        told = None if name in self.told.members else (self.told, self.script.inbox(name))
        with suppress(Refusal):
            released = self.script.sites[name].unmask(delivered, told)
            self.take(name, SEED, released.seeds)
            self.take(name, KEY, released.keys)

    def take(self, holder: str, which: int, shares: Mapping[str, bytes]) -> None:
        for of, share in shares.items():
            self.shares.setdefault((which, of), {})[holder] = share

    def knows(self, which: int, of: str) -> bool:
        """Whether its shares give the secret."""
        place = places(self.script.attempt.roster)
        held = {place[holder]: s for holder, s in self.shares.get((which, of), {}).items()}
        secret = self.phases[of].seed if which == SEED else self.phases[of].greeted.mask_key
        found = b""
        with suppress(ValueError):
            found = combine_shares(held)
        assert (found == secret) == (len(held) >= threshold(len(self.script.attempt.roster)))
        return found == secret

    def sums(self) -> NDArray[np.float64]:
        """What it can work out of the others' updates alone: a row for each sum of them."""
        honest = self.honest
        members = sorted(set(self.told.members) - set(self.allies))
        pairs = list(combinations(members, 2))
        at = {what: place for place, what in enumerate([*members, *pairs])}
        rows = []
        for name in honest:  # its words: update, self mask, and a mask for each pair
            row = np.zeros(len(honest) + len(at))
            row[honest.index(name)] = 1
            row[len(honest) + at[name]] = 1
            for pair in pairs:
                if name in pair:
                    row[len(honest) + at[pair]] = 1 if name == pair[0] else -1
            rows.append(row)
        known = [at[name] for name in members if self.knows(SEED, name)]
        known += [at[p] for p in pairs if self.knows(KEY, p[0]) or self.knows(KEY, p[1])]
        equations = np.array(rows)
        hidden = np.delete(equations[:, len(honest) :], known, axis=1)
        return np.asarray(null_space(hidden.T).T @ equations[:, : len(honest)])


def helpers(number: int, most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(NAMES[:number]), max_size=most, unique=True)


@st.composite
def attacks(draw: st.DrawFn) -> tuple[int, list[str], list[list[str]], list[int], list[float]]:
    """Hospitals, helpers, two stories of who was lost, who hears which, and weights."""
    number = draw(st.integers(4, 8))
    enough = 2 * threshold(number) - number
    allies = draw(helpers(number, enough - 1))
    stories = [draw(helpers(number, 2)), draw(helpers(number, 2))]
    heard = draw(st.lists(st.integers(0, 1), min_size=number, max_size=number))
    drawn = st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.15, 0.05, 1e-12, 0.0])
    weights = draw(st.lists(drawn, min_size=number, max_size=number))
    return number, allies, stories, heard, weights


@settings(max_examples=30, deadline=None)
@given(attacks())
def test_no_coalition_below_the_stated_number_works_out_more_than_one_sum_by_the_rules(
    attack: tuple[int, list[str], list[list[str]], list[int], list[float]],
) -> None:
    number, allies, stories, heard, drawn = attack
    total = max(1.0, sum(drawn))
    weights = {n: w / total * 0.9 for n, w in zip(NAMES[:number], drawn, strict=True)}
    if not any(weights.values()):
        return
    coalition = Coalition.of(by_hand(number), allies, weights)
    for name, story in zip(NAMES[:number], heard, strict=True):
        if name not in allies:
            coalition.ask(name, stories[story])
    if not coalition.honest:
        return
    found = coalition.sums()
    assert len(found) <= 1
    for row in found:
        row /= np.abs(row).max()
        inside = np.abs(row) > 1e-9
        assert np.abs(row[inside]) == pytest.approx(1)  # a sum as they are weighted
        left = [weights[n] for n, is_in in zip(coalition.honest, inside, strict=True) if is_in]
        helping = [weights[ally] for ally in allies]
        real = 0.1 * max([*left, *helping])
        assert sum(w >= real for w in left) >= RULES.min_summed + 1 - sum(w > 0 for w in helping)
        if len(helping) <= 1:
            assert max(left) <= RULES.largest_share * sum(left) * (1 + 1e-6)


@pytest.mark.parametrize("number", [4, 5, 7])
def test_at_the_stated_number_two_stories_open_an_update(number: int) -> None:
    """So the number is not larger than it could be."""
    enough = 2 * threshold(number) - number
    weights = dict.fromkeys(NAMES[:number], 0.9 / number)
    coalition = Coalition.of(by_hand(number), NAMES[number - enough : number], weights)
    needed = threshold(len(coalition.script.attempt.roster))
    for place, name in enumerate(NAMES[: number - enough]):
        coalition.ask(name, [] if place < needed - enough else ["s0"])
    is_open = coalition.knows(SEED, "s0") and coalition.knows(KEY, "s0")
    assert is_open == (number != 4)  # of whom three would be left, and nobody helps with that
