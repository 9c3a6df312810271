"""One hospital gone wrong in sealed rounds is named and loses its own part, or one round."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from erosion_client.records.ledgers import SumTable
from erosion_client.records.records import Records
from erosion_client.sealed.sealed_site import (
    MaskedUpdate,
    Released,
    SealedIdentity,
    SealedSite,
    Values,
)
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import Refusal, RunError
from erosion_common.protocol.messages import StepResult
from erosion_common.rounds.channel import Connection, Reply, Request
from erosion_common.rounds.study import StudyOutcome
from erosion_common.sealed.distance import Question
from erosion_common.sealed.phases import (
    MASKED,
    UNMASK,
    Hello,
    Receipt,
    Roster,
    RoundContext,
    SumRules,
    View,
)
from erosion_common.sealed.roster import sign_hello, sign_receipt
from tests.support.sealed_study import (
    ARM,
    Line,
    Trouble,
    assert_same,
    hospitals,
    plain,
    run,
    run_in,
    sealed_study,
)


def run_with(
    folder: Path,
    carol: type[SealedSite],
    *troubles: Trouble,
    also: str | None = None,
    **changes: object,
) -> StudyOutcome:
    """The study with carol, and perhaps one more, as another site than the honest one."""
    folder.mkdir()
    sites = hospitals(folder)
    for name in ("carol", also) if also else ("carol",):
        identity = sites[name]._sealed._given
        assert identity is not None
        other = carol(identity, Records(None, "x").sums, SumRules())
        sites[name]._sealed.__dict__["_new_rounds"] = lambda _, other=other: other
    return run_in(folder, Line(sealed_study(**changes), sites, troubles))[0]


class WrongShares(SealedSite):
    """Releases other shares than it holds."""

    def unmask(
        self, delivered: Mapping[str, Receipt], told: tuple[View, Mapping[str, bytes]] | None = None
    ) -> Released:
        released = super().unmask(delivered, told)
        return Released(dict.fromkeys(released.seeds, b"\1" * 33), {})


def test_who_releases_wrong_shares_spoils_nothing(tmp_path: Path) -> None:
    sealed = run_with(tmp_path / "sealed", WrongShares)
    assert_same(sealed, plain())
    assert [record.outcome for record in sealed.records[ARM]] == ["done"] * 3
    assert (
        "carol released wrong shares of bob, carol, dave, erin, frank"
        in sealed.records[ARM][0].note
    )


class OtherSeed(SealedSite):
    """Masks with another seed than it shared out."""

    def masked(
        self, weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
    ) -> MaskedUpdate:
        return replace(super().masked(weights, scale, envelopes), seed=bytes(32))


class NoEnvelopes(SealedSite):
    """Shares nothing out that anybody can read."""

    def distance(
        self, everyone: Roster, question: Question, modulus_proof: Sequence[int]
    ) -> tuple[int, dict[str, bytes]]:
        answer, envelopes = super().distance(everyone, question, modulus_proof)
        return answer, dict.fromkeys(envelopes, bytes(82))


class Unsigned(SealedSite):
    """Signs its keys for another round."""

    def hello(self, context: RoundContext, *rest: object) -> Hello:
        honest = super().hello(context, *rest)  # type: ignore[arg-type]
        other = super().hello(replace(context, attempt=bytes(16)), *rest)  # type: ignore[arg-type]
        return replace(other, signature=honest.signature)


class NoReceipt(SealedSite):
    """Signs nothing of what it sums."""

    def masked(
        self, weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
    ) -> MaskedUpdate:
        masked = super().masked(weights, scale, envelopes)
        return replace(masked, receipt=replace(masked.receipt, signature=bytes(70)))


class NoDistance(SealedSite):
    """Gives a number that no distance was sealed in."""

    def distance(
        self, everyone: Roster, question: Question, modulus_proof: Sequence[int]
    ) -> tuple[int, dict[str, bytes]]:
        _, envelopes = super().distance(everyone, question, modulus_proof)
        return 0, envelopes


class NoShares(SealedSite):
    """Shares nothing out."""

    def distance(
        self, everyone: Roster, question: Question, modulus_proof: Sequence[int]
    ) -> tuple[int, dict[str, bytes]]:
        answer, _ = super().distance(everyone, question, modulus_proof)
        return answer, {}


class WeakKey(SealedSite):
    """Has a mask key that is none, well signed."""

    def hello(self, context: RoundContext, *rest: object) -> Hello:
        honest = super().hello(context, *rest)  # type: ignore[arg-type]
        key = self._identity.node_key
        return sign_hello(key, context, self._identity.name, bytes(32), honest.seal)


class NoSuchRules(SealedSite):
    """Takes part in a sum that the rules forbid which it tells the others."""

    told = SumRules(min_summed=99)

    def masked(
        self, weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
    ) -> MaskedUpdate:
        view = View(self.asked, weights, scale)
        masked = super().masked(weights, scale, envelopes)
        key, words = self._identity.node_key, masked.receipt.words
        receipt = sign_receipt(key, view, self._identity.name, words, self.told)
        return replace(masked, receipt=receipt)


class ManyNames(NoSuchRules):
    """Names more hospitals than there are, which all others would be sent."""

    told = SumRules(known=frozenset({"alice", "bob", "carol", "dave", "erin", "frank", "mallory"}))


class FewWords(SealedSite):
    """Masks less than its update."""

    def masked(
        self, weights: Mapping[str, float], scale: float, envelopes: Mapping[str, bytes]
    ) -> MaskedUpdate:
        masked = super().masked(weights, scale, envelopes)
        return replace(masked, words=masked.words[:-1].copy())


class FarAway(SealedSite):
    """Sums, as it says, an update that is far longer than the others'."""

    times = np.float32(100)

    def hello(self, context: RoundContext, update: Values) -> Hello:
        return super().hello(context, self.times * update)


class FartherAway(FarAway):
    """So far that its distance says less than there is."""

    times = np.float32(3000)


class Refuses(SealedSite):
    """Stops in leg 2."""

    def distance(
        self, everyone: Roster, question: Question, modulus_proof: Sequence[int]
    ) -> tuple[int, dict[str, bytes]]:
        raise Refusal("Not today.")


@pytest.mark.parametrize(
    ("carol", "reason"),
    [
        (Unsigned, "not signed by the key that it is enrolled with"),
        (WeakKey, "keys that are none"),
        (NoDistance, "a sealed distance that is none"),
        (NoShares, "shares its secrets out to others"),
        (Refuses, "Not today"),
        (NoReceipt, "its receipt is not signed"),
        (NoSuchRules, "its own limits allow no such sum: 5 hospitals"),
        (ManyNames, "its own limits name others"),
        (FarAway, "out of all proportion"),
        (FartherAway, "out of all proportion"),
        (FewWords, "'words' of shape (21,), expected (22,)"),
    ],
)
def test_garbage_in_any_leg_of_any_round_costs_its_sender_its_part(
    tmp_path: Path, carol: type[SealedSite], reason: str
) -> None:
    sealed = run_with(tmp_path / "sealed", carol)
    absent = [Trouble(number, TRAIN, lost=["carol"]) for number in range(1, 4)]
    assert_same(sealed, plain(*absent))
    for record in sealed.records[ARM]:
        assert record.outcome == "done"
        assert reason in record.hospitals["carol"].reason


@dataclass
class Mumbling(Line):
    """Carol's answers to leg 4 make no sense."""

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        for reply in super().ask(requests, seconds):
            content = reply.content
            if isinstance(content, StepResult) and (
                (content.header.hospital, content.header.step) == ("carol", UNMASK)
            ):
                header = content.header.model_copy(update={"values": {"seeds": 3}})
                content = replace(content, header=header)
            yield replace(reply, content=content)


def test_garbage_after_an_update_was_summed_is_told_of_and_the_update_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "sealed").mkdir()
    study = sealed_study()
    sealed, _ = run_in(tmp_path / "sealed", Mumbling(study, hospitals(tmp_path / "sealed")))
    assert_same(sealed, plain())
    for record in sealed.records[ARM]:
        assert record.hospitals["carol"].outcome == "accepted"
        assert "the last answer of carol was rejected: wrong values: seeds" in record.note


@pytest.mark.parametrize(
    ("carol", "reason"),
    [
        (OtherSeed, "the shares of carol's secret do not fit together"),
        (NoEnvelopes, "1 shares of carol's secret came, 4 are needed"),
    ],
)
def test_who_spoils_a_sum_is_named_and_not_asked_any_more(
    tmp_path: Path, carol: type[SealedSite], reason: str
) -> None:
    """Nothing is summed, and nothing stops as if somebody had lied about a distance."""
    sealed = run_with(tmp_path / "sealed", carol)
    first, *later = sealed.records[ARM]
    assert first.outcome == "skipped"
    assert reason in first.hospitals["carol"].reason
    assert "carol is not asked any more" in first.note
    assert [record.outcome for record in later] == ["done"] * 2
    assert not any("carol" in record.hospitals for record in later)


class Careful(SealedSite):
    """Is in sums of five or more only."""

    def __init__(self, identity: SealedIdentity, ledger: SumTable, _rules: SumRules) -> None:
        super().__init__(identity, ledger, SumRules(min_summed=4))


def test_a_sum_that_one_of_its_hospitals_would_not_be_in_is_not_made(tmp_path: Path) -> None:
    late = Trouble(2, MASKED, late=["bob"])
    sealed = run_with(tmp_path / "sealed", Careful, late)
    assert [r.outcome for r in sealed.records[ARM]] == ["done", "skipped", "done"]
    note = sealed.records[ARM][1].note
    assert "too few sent their masked update for carol (4 hospitals in the sum" in note
    assert "limits.min_summed = 4" in note


class Slanders(SealedSite):
    """Releases another share of bob's secret than it holds, as if bob had dealt it a wrong one."""

    def unmask(
        self, delivered: Mapping[str, Receipt], told: tuple[View, Mapping[str, bytes]] | None = None
    ) -> Released:
        released = super().unmask(delivered, told)
        return replace(released, seeds={**released.seeds, "bob": b"\1" * 33})


def test_one_hospitals_word_does_not_put_another_out(tmp_path: Path) -> None:
    """With one away, the shares of the four that are left are all needed."""
    away = Trouble(2, UNMASK, lost=["erin"])
    sealed = run_with(tmp_path / "sealed", Slanders, away, rounds=4)
    assert [r.outcome for r in sealed.records[ARM]] == ["done", "skipped", "done", "done"]
    assert sealed.records[ARM][1].note == (
        "3 shares of bob's secret came, 4 are needed; carol gave none that is the one that bob says"
        " it dealt"
    )
    assert sealed.records[ARM][3].hospitals["bob"].outcome == "accepted"
    assert "carol released wrong shares of bob" in sealed.records[ARM][3].note


def test_whose_word_is_against_one_others_twice_in_a_row_is_not_asked_any_more(
    tmp_path: Path,
) -> None:
    away = [Trouble(number, UNMASK, lost=["erin"]) for number in (1, 2)]
    sealed = run_with(tmp_path / "sealed", Slanders, *away)
    assert "bob, carol is not asked any more" in sealed.records[ARM][1].note


def test_the_word_of_two_of_five_does_not_put_another_out_at_once(tmp_path: Path) -> None:
    """It may be theirs that is wrong: twice in a row, and none of the three is asked any more."""
    sealed = run_with(tmp_path / "sealed", Slanders, also="dave")
    first, second, alone = sealed.records[ARM]
    assert first.note == (
        "3 shares of bob's secret came, 4 are needed; carol, dave gave none that is the one that"
        " bob says it dealt"
    )
    assert first.hospitals["bob"].outcome != "rejected"
    assert "bob" in second.hospitals
    assert "bob, carol, dave is not asked any more" in second.note
    assert alone.outcome == "done"


def test_who_stops_in_leg_3_of_every_round_does_not_stall_the_study(tmp_path: Path) -> None:
    """With a penalty that depends on who is there, each such round is lost; two are."""
    arms = {ARM: {"distance_penalty": "auto", "erosion_share": 10}, "local": {}}
    lost = [Trouble(number, MASKED, lost=["carol"]) for number in range(1, 4)]
    sealed = run(tmp_path / "sealed", *lost, arms=arms)
    assert [r.outcome for r in sealed.records[ARM]] == ["skipped", "skipped", "done"]
    assert "carol is not asked any more" in sealed.records[ARM][1].note


def test_with_too_few_left_the_user_goes_on_alone(tmp_path: Path) -> None:
    """Of four others that had weight, one spoils the sum."""
    hospitals_ = ["alice", "bob", "carol", "dave", "erin"]
    sealed = run_with(tmp_path / "sealed", OtherSeed, hospitals=hospitals_)
    assert [record.outcome for record in sealed.records[ARM]] == ["skipped", "done", "done"]
    assert "the user trains alone from here on" in sealed.records[ARM][0].note


def test_where_nobody_is_enrolled_the_others_say_whose_keys_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.sealed_study.enrolled", lambda _known: {})
    reason = "3 rounds in a row were skipped.*The keys of carol in the roster are not signed"
    with pytest.raises(RunError, match=reason):
        run_with(tmp_path / "sealed", Unsigned, rounds=4)


def test_a_hospital_that_comes_late_is_in_the_next_rosters(tmp_path: Path) -> None:
    away = [Trouble(number, TRAIN, lost=["erin"]) for number in (1, 2)]
    sealed = run(tmp_path / "sealed", *away)
    assert_same(sealed, plain(*away))
    assert sealed.records[ARM][2].hospitals["erin"].outcome == "accepted"


def test_without_the_users_own_update_the_round_is_skipped(tmp_path: Path) -> None:
    away = Trouble(2, TRAIN, lost=["alice"])
    sealed = run(tmp_path / "sealed", away)
    assert_same(sealed, plain(away))
    assert sealed.records[ARM][1].outcome == "skipped"


def test_a_loss_that_changes_the_ratios_of_all_weights_skips_the_round(tmp_path: Path) -> None:
    """A penalty that depends on who is there asks for a second sum, which there is not."""
    arms = {ARM: {"distance_penalty": "auto", "erosion_share": 10}, "local": {}}
    sealed = run(tmp_path / "sealed", Trouble(2, MASKED, lost=["carol"]), arms=arms)
    record = sealed.records[ARM][1]
    assert record.outcome == "skipped"
    assert "a second sum of the same updates, with other weights" in record.note
    assert [r.outcome for r in sealed.records[ARM]] == ["done", "skipped", "done"]
