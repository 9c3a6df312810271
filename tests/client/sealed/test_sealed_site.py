"""A site's part in sealed rounds: what it answers, and what it refuses whoever asks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion_client.records.records import Records
from erosion_client.sealed.sealed_site import Measured, Released, SealedIdentity, SealedSite
from erosion_common.errors import Refusal
from erosion_common.sealed.distance import Question
from erosion_common.sealed.keys import agree, new_pair, private_half
from erosion_common.sealed.masks import apply_masks
from erosion_common.sealed.phases import Hello, SumRules, View
from erosion_common.sealed.roster import pair_mask, sign_hello, usable
from erosion_common.sealed.shares import CannotUnmask, threshold
from tests.client.sealed.sites import (
    CONTEXT,
    FACTORS,
    NAMES,
    OTHERS,
    OWN,
    Script,
    attempt,
    by_hand,
    node_keys,
    sites,
)
from tests.common.sealed.keys import residue_key, residue_proof
from tests.common.sealed.vectors import f32
from tests.support.said import raises

LENIENT = SumRules(min_summed=1, largest_share=1.0)


def test_a_round_by_hand() -> None:
    """d = 1, 1, 2, 1; p_d = .1, so alpha = .9, .9, .8, .9 and the mean is (13.2, 11.6) / 4.5."""
    script = by_hand()
    assert script.measure() == pytest.approx({"s0": 1, "s1": 1, "s2": 2, "s3": 1}, abs=1e-12)
    total = script.sum(FACTORS)
    assert total + OWN / 4.5 == pytest.approx([13.2 / 4.5, 11.6 / 4.5], abs=5e-7)
    check = script.check(total)
    assert check.apart == pytest.approx(1.42378, abs=1e-5)
    assert check.at_most == pytest.approx(4.77778 * 1.001, abs=1e-4)
    assert script.view.scale == 2.0**25


@pytest.mark.parametrize("leg", [None, "hello", "distance", "masked", "unmask"])
def test_whoever_falls_away_the_sum_is_of_the_others(leg: str | None) -> None:
    rng = np.random.default_rng(0)
    own = rng.standard_normal(40).astype(np.float32)
    updates = {n: (own + rng.standard_normal(40)).astype(np.float32) for n in NAMES[:6]}
    script = Script(sites(6), own, updates, lost={leg: ["s1"]} if leg else {})
    distances = script.measure()
    told = dict.fromkeys(distances, 0.9 / len(distances))
    total = script.sum(told)
    in_sum = [n for n in updates if leg in (None, "unmask") or n != "s1"]
    assert script.delivered == in_sum
    expected = sum(told[n] * updates[n].astype(np.float64) for n in in_sum)
    assert total == pytest.approx(expected, abs=1e-6)
    assert script.check(total).holds


@pytest.mark.parametrize(
    ("number", "lost", "weight", "delivered", "needed"),
    [
        (6, {"masked": ["s4"], "distance": ["s1"]}, 0.15, 4, 5),
        (4, {"unmask": ["s0", "s1"]}, 0.2, 2, 3),
    ],
)
def test_too_few_to_unmask(
    number: int, lost: dict[str, list[str]], weight: float, delivered: int, needed: int
) -> None:
    script = by_hand(number, lost=lost)
    told = dict.fromkeys(script.measure(), weight)
    with raises(CannotUnmask, f"{delivered} hospitals", f"{needed} are needed"):
        script.sum(told)


def test_who_answers_late_stays_hidden() -> None:
    """The masked update of a site that did not deliver in time is noise, all over the ring."""
    script = by_hand(5, lost={"masked": ["s4"]})
    told = dict.fromkeys(script.measure(), 0.2)
    masked = script.mask(told)
    late = script.sites["s4"].masked(told, script.view.scale, script.inbox("s4"))
    script.unmask(masked)
    receipts = {name: masked[name].receipt for name in masked} | {"s4": late.receipt}
    for name in script.delivered:  # the threshold is out of reach without them
        with raises(Refusal, "other hospitals"):
            script.sites[name].unmask(receipts)
    assert np.abs(late.words.view(np.int32) / script.view.scale).max() > 1


def test_a_coordinators_own_hospitals_hide_nobody_from_it_and_a_site_may_not_count_them() -> None:
    """s1, s2 and s3 are the coordinator's: what it knows of the sum it takes off, s0 is left."""
    invented = ("s1", "s2", "s3")
    script = by_hand(4)
    told = dict.fromkeys(script.measure(), 0.2)
    rest = script.sum(told) - sum(0.2 * script.updates[n].astype(float) for n in invented)
    assert rest / 0.2 == pytest.approx(script.updates["s0"], abs=1e-5)
    careful = SumRules(known=frozenset({"s0", "s4", "s5"}))
    script = by_hand(6, at=sites(6, careful))
    script.measure()
    for weights, reason in (
        ({"s0": 0.2, **dict.fromkeys(invented, 0.2)}, "1 hospitals in the sum"),
        (dict.fromkeys(script.updates, 0.15), "3 hospitals in the sum"),
    ):
        with raises(Refusal, "limits.summed_with", reason):
            script.sites["s0"]._check_view(
                script.sites["s0"]._past(Measured), View(script.asked, weights, 1.0)
            )
    known = SumRules(known=frozenset({"s0", "s3", "s4", "s5"}))
    assert known.problem_with(dict.fromkeys(script.updates, 0.15)) is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"s0": 0.3, "s1": 0.3, "s2": 0.3, "s3": 0.0}, "3 hospitals"),
        ({"s0": 0.3, "s1": 0.3, "s2": 0.1, "s3": 0.1}, "0.6 of the sum"),
        ({"s0": 0.2, "s1": 0.2, "s2": 0.2, "s3": 0.2, "ghost": 0.1}, "not in this round's roster"),
        ({"s0": 0.4, "s1": 0.4, "s2": 1e-12, "s3": 1e-12}, "2 hospitals"),
        ({"s0": 5e-324, "s1": 0.2, "s2": 0.2, "s3": 0.2}, "3 hospitals"),
        ({"s0": 0.2, "s1": 0.2, "s2": 0.2, "s3": math.nan}, "outside of 0 to 1"),
        ({"s0": 0.4, "s1": 0.4, "s2": 0.4, "s3": -0.2}, "outside of 0 to 1"),
        ({"s0": 0.4, "s1": 0.4, "s2": 0.4, "s3": math.inf}, "outside of 0 to 1"),
    ],
)
def test_a_site_refuses_sums_that_hide_nothing(told: dict[str, float], reason: str) -> None:
    """Also from one of its hospitals that helps the coordinator."""
    script = by_hand()
    script.measure()
    with raises(Refusal, reason):
        script.sites["s1"].masked(told, 1.0, script.inbox("s1"))


def test_fewer_delivered_than_allowed_are_not_unmasked() -> None:
    script = by_hand(lost={"masked": ["s2"]})
    script.measure()
    with raises(Refusal, "3 hospitals"):
        script.sum(FACTORS)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (SumRules(min_summed=6), "6 hospitals in the sum"),
        (SumRules(largest_share=0.18), "one hospital has 0.2 of the sum"),
        (
            SumRules(min_summed=4, known=frozenset({"s0", "s1", "s2", "s3", "s6"})),
            "limits.summed_with, 4 hospitals",
        ),
    ],
)
def test_a_sites_stricter_rules_are_kept_where_the_masks_come_off_without_it(
    rules: SumRules, reason: str
) -> None:
    """Of seven, five are enough to unmask a sum without s6, which s0 does not help with."""
    at = sites(7)
    at["s0"]._rules = rules
    script = by_hand(7, at=at, lost={"masked": ["s6"], "unmask": ["s0"]})
    told = dict.fromkeys(script.measure(), 0.125)
    masked = script.mask(told)
    with raises(Refusal, "s0", reason):
        script.unmask(masked)


def test_a_receipt_whose_rules_were_changed_on_the_way_is_none() -> None:
    script = by_hand(4)
    masked = script.mask(dict.fromkeys(script.measure(), 0.2))
    lax = replace(masked["s0"].receipt, rules=LENIENT)
    masked["s0"] = replace(masked["s0"], receipt=lax)
    with raises(Refusal, "s0", "something"):
        script.unmask(masked)


OTHERWISE: dict[str, tuple[str, Any]] = {  # in which leg, and what s0 is told
    "weights": ("masked", lambda told: {**told, "s2": 0.21}),
    "roster": ("distance", lambda told: ({n: h for n, h in told[0].items() if n != "s4"}, told[1])),
    "question": ("distance", lambda told: (told[0], replace(told[1], scale=told[1].scale / 2))),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_who_is_told_something_else_cannot_be_unmasked(what: str) -> None:
    """The others see by the receipt that s0 received something else."""
    when, change = OTHERWISE[what]
    script = by_hand(
        5, tamper=lambda leg, name, told: change(told) if (leg, name) == (when, "s0") else told
    )
    script.measure()
    if what == "roster":
        del script.envelopes["s4"]["s0"]
    masked = script.mask(dict.fromkeys(NAMES[:4], 0.2))
    with raises(Refusal, "received something"):
        script.unmask(masked)


def test_what_a_site_is_told_is_in_its_masks() -> None:
    """So the sum of sites that were told different things is noise."""
    (own, mine), (_, theirs) = new_pair(), new_pair()
    everyone = {"m": Hello(mine, bytes(32), b""), "z": Hello(theirs, bytes(32), b"")}
    masks = []
    for weight in (0.2, 0.2, 0.21):
        words = np.zeros(8, np.uint32)
        view = View(b"asked", {"m": 0.2, "z": weight}, 1.0)
        apply_masks(words, [pair_mask(view, everyone, ("m", "z"), private_half(own), +1)])
        masks.append(words)
    assert np.array_equal(masks[0], masks[1])
    assert np.count_nonzero(masks[0] - masks[2]) > 5


@pytest.mark.parametrize("other", [{"round": 2}, {"run": "run 2"}])
def test_a_leg_of_another_round_is_not_one_of_this(other: dict[str, Any]) -> None:
    """Receipts, envelopes and keys of the first, put into the second."""
    at, told = sites(4), dict.fromkeys(NAMES[:4], 0.2)

    def in_another() -> Script:
        script = by_hand(4, at=at, context=replace(CONTEXT, **other))
        script.updates = {name: 2 * update for name, update in script.updates.items()}
        return script

    first, second = by_hand(4, at=at), in_another()
    first.measure()
    old = {name: sent.receipt for name, sent in first.mask(told).items()}
    second.tamper = lambda leg, _, asked: (
        (first.attempt.roster, asked[1]) if leg == "distance" else asked
    )
    with raises(Refusal, "other keys"):
        second.measure()
    second = in_another()
    second.measure()
    second.envelopes = first.envelopes
    second.mask(told)
    for name in NAMES[:4]:
        with raises(Refusal, "something else,"):
            second.sites[name].unmask(old)


def test_helpers_cannot_be_told_of_another_sum_to_release_a_members_key() -> None:
    """A sum of s0 to s3 is told to the rest as one of more, in which s1 was lost."""
    script = by_hand(6)
    script.measure()
    told = {**FACTORS, "s4": 0.0, "s5": 0.0}
    masked = script.mask(told)
    everybody = ["s0", "s1", "s2", "s3", "s4"]
    forged = View(script.view.asked, dict.fromkeys(everybody, 0.2), 2.0**25)
    names = ["s0", "s2", "s3", "s4"]
    receipts = dict.fromkeys(names, masked["s0"].receipt)
    with raises(Refusal, "s0", "something"):
        script.sites["s5"].unmask(receipts, (forged, script.inbox("s5")))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_allies_of_the_coordinator_see_in_the_smallest_sum_that_it_can_choose(
    number: int,
) -> None:
    """It decides who is in a round. One sees the sum of three others, two of two, three the last.

    Four hospitals are enough unless a site asks for more.
    """
    at, names = sites(16), ["s0", "s7", "s9", "s14"]
    updates = {n: f32([place, -place, place * place]) for place, n in enumerate(names, start=1)}
    script = Script(at, f32([1, 2, 3]), updates)
    total = script.sum(dict.fromkeys(script.measure(), 0.2))
    allies = names[-number:]
    rest = (total - sum(0.2 * updates[ally].astype(float) for ally in allies)) / 0.2
    hidden = [updates[n] for n in names if n not in allies]
    assert rest == pytest.approx(np.sum(hidden, axis=0), abs=1e-4)
    assert len(hidden) == 4 - number
    at["s0"]._rules = SumRules(min_summed=5)
    script = by_hand(5, at=at, context=attempt(3, round=3))
    with raises(Refusal, "5 hospitals", "sum"):
        script.mask(dict.fromkeys(script.measure(), 0.2))


@pytest.mark.parametrize(("number", "invented"), [(10, 7), (7, 4), (7, 3), (8, 4)])
def test_a_coordinators_own_hospitals_get_no_shares_that_take_a_mask_off(
    number: int, invented: int
) -> None:
    """s0 knows the others, and of ten in a round seven would hold enough shares of its secrets.

    Fewer do where the others are told two stories: s0's own share is of the one secret.
    """
    enough = 2 * threshold(number) - number
    assert invented >= enough
    for strangers in (invented, enough - 1):
        at = sites(number)
        at["s0"]._rules = SumRules(known=frozenset(NAMES[: number - strangers]))
        script = by_hand(number, at=at)
        if strangers == invented:
            with raises(Refusal, f"{invented}", f"{number} hospitals"):
                script.measure()
        else:
            script.sum(dict.fromkeys(script.measure(), 0.9 / number))


def test_the_same_questions_again_get_the_same_answers_and_others_none() -> None:
    """As a coordinator asks that was killed and resumes its round."""
    at = sites(5)
    told = dict.fromkeys(NAMES[:4], 0.2) | {"s4": 0.0}
    script = by_hand(5, at=at)
    distances = dict(script.measure())
    total = script.sum(told)
    hellos = script.attempt.roster
    for name, update in script.updates.items():
        assert at[name].hello(CONTEXT, update) == hellos[name]
    answers = {}
    for name in script.updates:
        answers[name], envelopes = at[name].distance(hellos, script.question, script.proof)
        assert envelopes == script.envelopes[name]
    assert {name: script.asker.distance(answer) for name, answer in answers.items()} == distances
    assert np.array_equal(script.sum(told), total)
    with raises(Refusal, "round already"):
        at["s0"].distance(hellos, replace(script.question, scale=1.0), script.proof)
    with raises(Refusal, "another sum"):
        script.mask(dict.fromkeys(NAMES[:5], 0.2))


def test_a_key_without_a_proof_for_this_run_gets_no_distance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a modulus of other factors an answer would hold more than a distance."""
    of_another_run = residue_proof(b"another run")
    monkeypatch.setattr("tests.client.sealed.sites.residue_proof", lambda _run: of_another_run)
    with raises(Refusal, "proof"):
        by_hand(4, at=sites(4)).measure()


def test_one_distance_is_given_of_an_update_and_in_a_round() -> None:
    at = sites(4)
    by_hand(4, at=at).measure()
    for again in (
        by_hand(4, at=at, context=attempt(1)),
        by_hand(4, at=at, context=attempt(2, run="run 2")),
        by_hand(4, at=at, context=attempt(2, arm="other")),
        by_hand(4, at=at, context=attempt(3, study="other", round=7)),
    ):
        with raises(Refusal, "given already"):
            again.measure()
    hair = by_hand(4, at=at, context=attempt(4))
    hair.updates = {name: update * np.float32(1 + 1e-6) for name, update in hair.updates.items()}
    with raises(Refusal, "given already"):
        hair.measure()


def test_no_masked_update_is_made_in_the_memory_of_an_earlier_one() -> None:
    """That one may still be on its way, and would show what is not under its masks yet."""
    script = by_hand()
    script.measure()
    first, second = script.mask(FACTORS), script.mask(FACTORS)
    assert all(not np.shares_memory(first[name].words, second[name].words) for name in FACTORS)
    assert all(np.array_equal(first[name].words, second[name].words) for name in FACTORS)


def test_an_update_is_in_one_sum_of_the_same_hospitals() -> None:
    script = by_hand(6, lost={"masked": ["s5"]})
    told = dict.fromkeys(script.measure(), 0.15)
    masked = script.mask(told)
    for other in ({**told, "s0": 0.16}, {**told, "s5": 0.0}):
        with raises(Refusal, "another sum"):
            script.sites["s0"].masked(other, script.view.scale, script.inbox("s0"))
    script.unmask(masked)
    receipts = {name: sent.receipt for name, sent in masked.items() if name != "s4"}
    for name in NAMES[:4]:
        with raises(Refusal, "other hospitals"):
            script.sites[name].unmask(receipts)


def test_a_distance_that_was_given_outlives_the_program(tmp_path: Path) -> None:
    keys = node_keys(NAMES[:4])
    public = {name: key.public_key() for name, key in keys.items()}

    def started() -> dict[str, SealedSite]:
        return {
            name: SealedSite(
                SealedIdentity(name, key, public), Records(tmp_path / name, name).sums, SumRules()
            )
            for name, key in keys.items()
        }

    script = by_hand(at=started())
    script.measure()
    script.sum(FACTORS)
    restarted = started()
    assert restarted["s0"].phase is None
    for context in (CONTEXT, attempt(1)):
        with raises(Refusal, "given already"):
            by_hand(at=restarted, context=context).measure()
    assert (tmp_path / "s0" / "records.sqlite").stat().st_mode & 0o077 == 0


def test_legs_come_in_their_order() -> None:
    script = by_hand()
    site = script.sites["s0"]
    for _ in range(2):
        for act in (lambda: site.masked(FACTORS, 1.0, {}), lambda: site.unmask({})):
            with raises(Refusal, "not due"):
                act()
        site.hello(CONTEXT, script.updates["s0"])


def forged(roster: dict[str, Hello]) -> dict[str, Hello]:
    return {**roster, "s1": replace(roster["s1"], mask=new_pair()[1])}


def of_another_attempt(roster: dict[str, Hello]) -> dict[str, Hello]:
    stranger = node_keys(["s1"])["s1"]
    hello = roster["s1"]
    return {**roster, "s1": sign_hello(stranger, attempt(9), "s1", hello.mask, hello.seal)}


def with_a_stranger(roster: dict[str, Hello]) -> dict[str, Hello]:
    return {**roster, "ghost": roster["s1"]}


def mine_as_another(roster: dict[str, Hello]) -> dict[str, Hello]:
    return {**roster, "s1": roster["s0"]}


def without_me(roster: dict[str, Hello]) -> dict[str, Hello]:
    return {name: hello for name, hello in roster.items() if name != "s0"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (forged, "keys of s1 in the roster are not signed by the key"),
        (of_another_attempt, "keys of s1 in the roster are not signed by the key"),
        (mine_as_another, "keys of s1 in the roster are not signed by the key"),
        (with_a_stranger, "key of ghost is not known here"),
        (without_me, "other keys for this site"),
    ],
)
def test_a_roster_that_is_not_what_it_says_is_refused(change: Any, reason: str) -> None:
    script = by_hand(
        tamper=lambda leg, name, message: (
            (change(message[0]), message[1]) if (leg, name) == ("distance", "s0") else message
        )
    )
    with raises(Refusal, reason):
        script.measure()


@pytest.mark.parametrize(("of", "to"), [("s1", "s2"), ("s0", "s1")])
def test_one_node_key_under_two_names_is_refused(of: str, to: str) -> None:
    """Who holds it, or the site's own, would be two of the three hospitals of a sum."""
    at = sites(4)
    keys = {name: site._identity.node_key for name, site in at.items()}
    keys[to] = keys[of]
    public = {name: key.public_key() for name, key in keys.items()}
    for name, site in at.items():
        site.identify(SealedIdentity(name, keys[name], public))
    with raises(Refusal, of, to):
        by_hand(at=at).measure()


P = 2**255 - 19


def plus_order_2(key: bytes) -> bytes:
    """The point plus (0, 0), which has order 2: u becomes 1 / u."""
    return pow(int.from_bytes(key, "little"), -1, P).to_bytes(32, "little")


def top_bit(key: bytes) -> bytes:
    return key[:-1] + bytes([key[-1] ^ 0x80])


FORMS = {"copied": lambda key: key, "top bit": top_bit, "order 2": plus_order_2}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", ["s0", "s2"])
@pytest.mark.parametrize("kind", ["mask", "seal"])
def test_a_key_that_gives_another_hospitals_secrets_is_refused(
    form: str, of: str, kind: str
) -> None:
    """s1 signs the victim's own key, or another's, in a form that gives the same secrets."""
    at = sites(4)
    script = by_hand(at=at)
    key = at["s1"]._identity.node_key

    def stolen(leg: str, _name: str, message: Any) -> Any:
        if leg != "distance":
            return message
        everyone, question = message
        taken = replace(everyone["s1"], **{kind: FORMS[form](everyone[of].mask)})
        theirs = sign_hello(key, script.context, "s1", taken.mask, taken.seal)
        return {**everyone, "s1": theirs}, question

    script.tamper = stolen
    with raises(Refusal, "as another's"):
        script.measure()


LOW_ORDER = [0, 1, 325606250916557431795983626356110631294008115727848805560023387167927233504]


@pytest.mark.parametrize("number", [*LOW_ORDER, P - 1, P, P + 1, 9 + P, 2**255 + 9, 2**256 - 1])
def test_a_key_of_small_order_or_in_another_form_is_none(number: int) -> None:
    own, _ = new_pair()
    with pytest.raises(ValueError):  # noqa: PT011
        agree(private_half(own), number.to_bytes(32, "little"))


@pytest.mark.parametrize("form", FORMS)
def test_masks_of_two_pairs_never_cancel_whatever_their_keys(form: str) -> None:
    """Even where nobody checks the roster: names and keys are in the key of a mask."""
    (own, mine), (_, theirs) = new_pair(), new_pair()
    keys = {"a": theirs, "m": mine, "z": FORMS[form](theirs)}
    everyone = {n: Hello(key, bytes(32), b"") for n, key in keys.items()}
    view = View(b"asked", dict.fromkeys(keys, 0.3), 1.0)
    words = np.zeros(8, np.uint32)
    half = private_half(own)
    try:
        apply_masks(words, [pair_mask(view, everyone, ("m", n), half, +1) for n in ("a", "z")])
    except ValueError:
        return  # the key is none
    assert np.count_nonzero(words) > 5


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_diverged_does_not_leave(value: float) -> None:
    script = by_hand()
    script.updates = {**script.updates, "s1": f32([1, value])}
    with raises(Refusal, "not finite"):
        script.measure()


def test_an_envelope_that_cannot_be_read_does_not_keep_its_receiver_out() -> None:
    """s1 shares nothing with s0, which would cost s0 its place; the others' shares do."""
    script = by_hand(4)
    script.measure()
    script.envelopes["s1"]["s0"] = script.envelopes["s2"]["s0"]
    told = dict.fromkeys(script.distances, 0.2)
    total = script.sum(told)
    expected = sum(0.2 * update.astype(float) for update in script.updates.values())
    assert total == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("number", "liars"), [(4, 1), (10, 3)])
def test_liars_up_to_the_losses(monkeypatch: pytest.MonkeyPatch, number: int, liars: int) -> None:
    script = by_hand(number)
    masked = script.mask(dict.fromkeys(script.measure(), 0.9 / number))
    for liar in NAMES[:liars]:

        def spoilt(*args: Any, unmask: Any = script.sites[liar].unmask) -> Released:
            return Released(dict.fromkeys(unmask(*args).seeds, b"\1" * 33), {})

        monkeypatch.setattr(script.sites[liar], "unmask", spoilt)
    expected = sum(0.9 / number * update.astype(float) for update in script.updates.values())
    assert script.unmask(masked) == pytest.approx(expected, abs=1e-6)
    assert script.shares.wrong(set(masked)).keys() == set(NAMES[:liars])


def test_a_seed_that_was_not_shared_out_is_noticed_before_it_is_taken_for_a_lie() -> None:
    """With a wrong mask the sum would be noise, and look like one that fits no distances."""
    script = by_hand(4)
    told = dict.fromkeys(script.measure(), 0.2)
    masked = script.mask(told)
    masked["s2"] = replace(masked["s2"], seed=bytes(32))
    with raises(CannotUnmask, "s2's secret"):
        script.unmask(masked)


def test_an_update_is_tried_in_one_range_only() -> None:
    """Range after range would tell how large its largest value is, in a new attempt too."""
    at = sites(4)
    script = by_hand(at=at)
    script.measure()
    with raises(Refusal, "sum's range"):  # and is not wrapped round
        at["s0"].masked(FACTORS, 2.0**28, script.inbox("s0"))
    with raises(Refusal, "not due"):
        at["s0"].masked(FACTORS, 2.0**25, script.inbox("s0"))
    with raises(Refusal, "given already"):
        by_hand(at=at, context=attempt(1)).measure()


def test_a_range_in_which_the_others_round_to_zero_is_refused() -> None:
    """All but what two of them put in would be lost, and one may be the coordinator's ally."""
    rng = np.random.default_rng(5)
    updates = {n: rng.standard_normal(40).astype(np.float32) for n in NAMES[:16]}
    told = {**dict.fromkeys(updates, 0.03), "s0": 0.2, "s1": 0.2}
    assert SumRules().problem_with(told) is None
    script = Script(sites(16), updates["s1"], updates)
    script.measure()
    lost = max(float(np.abs(updates[n]).max()) for n in NAMES[2:16])
    scale = 0.49 / (told["s2"] * lost)
    words = {n: np.rint(updates[n] * np.float64(told[n] * scale)) for n in told}
    assert not any(words[n].any() for n in NAMES[2:16])
    assert len(set(words["s0"].tolist())) > 3
    for name in updates:
        with raises(Refusal, "lost in"):
            script.sites[name].masked(told, scale, script.inbox(name))


@pytest.mark.parametrize("weight", [1e-12, 5e-324])
def test_a_hospital_with_next_to_no_weight_is_in_no_sum(weight: float) -> None:
    """It would hide nobody; the others, of whom enough have weight, are summed without it."""
    script = by_hand(5)
    script.measure()
    told = {**FACTORS, "s4": weight}
    assert SumRules().problem_with(told) is None
    script.view = script.attempt.view(script.asked, told, script.distances)
    with raises(Refusal, "lost in"):
        script.sites["s4"].masked(told, script.view.scale, script.inbox("s4"))
    script.lost = {"masked": ["s4"], "unmask": ["s4"]}
    script.sites["s4"]._phase = None
    expected = sum(FACTORS[n] * script.updates[n].astype(float) for n in FACTORS)
    assert script.sum(told) == pytest.approx(expected, abs=1e-6)


def test_a_round_of_a_run_begins_from_one_set_of_parameters() -> None:
    """Whoever asks: another coordinator that knows the run's name gets no second start."""
    at = sites(4)
    by_hand(at=at).measure()
    elsewhere = by_hand(at=at, context=attempt(1, received=b"\2" * 32))
    with raises(Refusal, "other parameters"):
        elsewhere.measure()


@pytest.mark.parametrize("bad", ["weak", "copied"])
def test_a_hospital_whose_keys_are_no_keys_of_its_own_is_left_out(bad: str) -> None:
    """With them in the roster none of the others would go on."""
    script = by_hand(4)
    script.measure()
    roster = dict(script.attempt.roster)
    stolen = roster["s1"].seal if bad == "copied" else bytes(32)
    roster["s3"] = replace(roster["s3"], seal=stolen)
    left = {"s0", "s2"} if bad == "copied" else {"s0", "s1", "s2"}  # whose key it was is unknown
    assert set(usable(roster)) == left


def test_a_lie_about_the_distance_shows() -> None:
    """s2 claims to be a tenth away and is a thousand times the user's update away."""
    own, far = f32([3, 4]), f32([3000, -4000])
    script = Script(sites(4), own, dict(zip(NAMES, [*OTHERS[:2], far, OTHERS[3]], strict=False)))
    script.measure()
    script.distances["s2"] = 0.1
    scale_for_truth = {**script.distances, "s2": 1001.0}
    script.view = script.attempt.view(script.asked, FACTORS, scale_for_truth)
    masked = {
        n: script.sites[n].masked(FACTORS, script.view.scale, script.inbox(n)) for n in FACTORS
    }
    assert not script.check(script.unmask(masked)).holds


@pytest.mark.parametrize(("dim", "tolerance"), [(62, 1e-7), (356_234, 4e-6)])
def test_the_sum_is_as_true_as_float32(dim: int, tolerance: float) -> None:
    rng = np.random.default_rng(2)
    own = (rng.standard_normal(dim) * 0.01).astype(np.float32)
    updates = {n: (own + rng.standard_normal(dim) * 0.01).astype(np.float32) for n in NAMES[:4]}
    script = Script(sites(4), own, updates)
    distances = script.measure()
    for name, update in updates.items():
        apart = np.linalg.norm(update.astype(float) - own) / np.linalg.norm(own.astype(float))
        within = 2e-6 if dim <= 256 else 5 / np.sqrt(512)
        assert distances[name] == pytest.approx(apart, rel=within)
    told = {name: (1 - place / 40) / 20 for place, name in enumerate(distances)}
    true = sum(told[n] * updates[n].astype(np.float64) for n in told)
    total = script.sum(told)
    assert np.linalg.norm(total - true) < tolerance * np.linalg.norm(true)
    assert script.check(total).holds


def test_a_crafted_question_reads_two_of_eight_values_and_there_is_no_second_one() -> None:
    """A weakness that the threat model names: an answer is 63 bits of a function that is chosen.

    Here 2 |v|^2, and two values of 15 bits above it. The update is 2^14 whole numbers long, the
    fewest digits that a site gives a distance of.
    """
    at, key = sites(4), residue_key()
    updates = dict.fromkeys(NAMES[:4], f32([0.3, -0.1, 0.25, 0.02, -0.4, 0.15, 0.05, -0.2]))
    scale = 2.0**14 / float(np.linalg.norm(updates["s0"])) * 1.01
    context = attempt(1)
    proof = residue_proof(context.run_hash)
    roster = {n: at[n].hello(context, update) for n, update in updates.items()}

    def asked(factors: dict[int, int]) -> int:
        sealed = [key.seal(-factors.get(place, 0)) for place in range(8)]
        answer, _ = at["s0"].distance(roster, Question(key.public, sealed, scale), proof)
        return key.open(answer)

    packed, read = asked({0: 2**28, 1: 2**44}) >> 30, []
    for _ in range(2):
        digit = (packed + 2**15) % 2**16 - 2**15
        read.append(digit / scale)
        packed = (packed - digit) // 2**16
    assert np.abs(np.array(read) - updates["s0"][:2]).max() < 1e-4
    with raises(Refusal, "distance", "already"):
        asked({2: 2**28, 3: 2**44})
    roster = {n: at[n].hello(attempt(2), update) for n, update in updates.items()}
    with raises(Refusal, "distance", "already"):
        asked({2: 2**28, 3: 2**44})
