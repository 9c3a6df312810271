"""The driver over a scripted transport: whom a study waits for and takes in, and how it resumes."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_common.errors import RunError
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds.channel import Away, Denied, Left
from erosion_common.rounds.presence import BackOff, Presence, UserDeclinedError, too_slow
from erosion_common.rounds.records import Absence
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.run.findings import Absent, Recount, absences, recounts
from erosion_server.run.run_folder import open_run_folder
from tests.support.open_study import everybody, outcomes, played, study
from tests.support.scripted import Kept, Scripted, step_result, study_run, trained


@pytest.mark.parametrize(("start", "by_operator"), [("quorum", False), ("all", True)])
def test_with_a_quorum_it_begins_when_the_join_deadline_passes(
    start: str, by_operator: bool
) -> None:
    transport, kept = Scripted(of := study(federation={"start": start})), Kept()
    transport.join("a", "b")
    outcome = study_run(transport, kept, start_with_quorum=by_operator)
    assert transport.clock >= 30.0
    assert outcomes(kept, "b") == ["accepted"] * 4
    assert outcomes(kept, "c") == ["absent"] * 4
    assert kept.records[0].hospitals["c"].reason == "was not connected"
    assert outcome.study.digest == of.digest  # as it was approved


def test_a_hospital_that_was_there_may_come_back_where_newcomers_may_not() -> None:
    transport, kept = Scripted(study(federation={"join": "at_start"})), Kept()
    transport.join("a", "b")

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("b", 1):
            transport.leave("b")
            transport.at(transport.clock + 5.0, lambda script: script.join("b", "c"))
        return trained(name, request)

    transport.respond = respond
    study_run(transport, kept)
    assert ("waits_for", "b") in kept.events  # and not c, for whom it is too late
    assert transport.turned_away[0][0] == "c"
    assert outcomes(kept, "b")[1:] == ["accepted"] * 3
    assert outcomes(kept, "c") == ["absent"] * 4


def test_a_hospital_that_comes_back_with_another_number_of_patients_is_known() -> None:
    transport, kept = Scripted(study()), Kept()
    transport.join("a", "b", "c")

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("b", 2):
            transport.leave("b")
            transport.join("b", num_samples=30)
        return trained(name, request)

    transport.respond = respond
    study_run(transport, kept)
    assert recounts(kept.records) == (
        Recount(hospital="b", arm="fedavg", round=3, before=10, after=30),
    )


def test_a_hospital_that_declines_is_not_waited_for_and_is_named() -> None:
    transport, kept = Scripted(study(federation={"start": "all", "join": "at_start"})), Kept()
    transport.join("a", "b")
    transport.decline("c", "limits.studies allows others only")
    study_run(transport, kept)
    assert transport.clock == 0.0
    away = {"c": "declined: limits.studies allows others only"}
    assert ("begun_without", away) in kept.events
    assert absences(["a", "b", "c"], "a", {"fedavg": kept.records}) == (
        Absent(
            hospital="c",
            rounds={"fedavg": 4},
            wanted={"fedavg": 4},
            everywhere=True,
            reason="declined: limits.studies allows others only",
        ),
    )


@pytest.mark.parametrize(
    ("here", "declined", "said"),
    [
        (("a",), ("b", "c"), "At b, c: `erosion check"),
        (("a",), (), "At b, c: `erosion check"),
        (("b", "c"), ("a",), "At a: `erosion check"),
        (("b", "c"), (), "`erosion client"),
        (("a", "b"), (), "--start-with-quorum"),
    ],
)
def test_a_run_that_does_not_begin_says_what_to_do_and_how_to_go_on(
    here: tuple[str, ...], declined: tuple[str, ...], said: str
) -> None:
    transport = Scripted(study(federation={"start": "all", "quorum": 2}))
    transport.join(*here)
    for name in declined:
        transport.decline(name, "limits.studies allows others only")
    remedy = "Put that right, then resume with `erosion server --resume RUN`."
    with pytest.raises(RunError) as problem:
        study_run(transport, Kept(), remedy=remedy)
    assert said in str(problem.value)
    assert remedy in str(problem.value)
    assert declined or transport.clock >= 120.0


@pytest.mark.parametrize("late", ["a", "c"])
def test_a_site_that_is_late_at_the_start_is_waited_for_and_told_of(late: str) -> None:
    changes = {"start": "all", "longest_wait_seconds": None}
    transport, kept = Scripted(study(federation=changes)), Kept()
    transport.join(*(name for name in "abc" if name != late))
    transport.at(86_400.0, lambda script: script.join(late))
    study_run(transport, kept)
    assert [record.outcome for record in kept.records] == ["done"] * 4
    assert outcomes(kept, late) == ["accepted"] * 4
    told = [event for event in kept.events if event[0] in ("waits_for", "round")][:3]
    assert told == [("waits_for", late), ("waits_for",), ("round", "fedavg", 1)]


def test_a_user_that_declines_ends_the_wait_at_once() -> None:
    transport = Scripted(study())
    transport.join("b")
    transport.decline("a", "limits.min_patients = 1000")
    with pytest.raises(UserDeclinedError, match=r"cannot take part: limits.min_patients = 1000"):
        study_run(transport, Kept())
    assert transport.clock == 0.0


@pytest.mark.parametrize(
    ("name", "described", "reason"),
    [
        ("stranger", {}, "the study has no hospital 'stranger'"),
        ("b", {}, "already connected as 'b'"),
        ("c", {"num_samples": 0}, "it reports 0 training samples"),
        ("c", {"sums": {"count": [1], "total": [1], "squares": [1]}}, "does not fit the study's"),
    ],
)
def test_who_does_not_fit_is_turned_away_with_the_reason(
    name: str, described: dict[str, Any], reason: str
) -> None:
    transport, kept = Scripted(study()), Kept()
    transport.join("a", "b")
    transport.join(name, **described)
    study_run(transport, kept)
    ((turned_away, said),) = transport.turned_away
    assert turned_away == name
    assert reason in said
    assert ("declined", name, said) in kept.events


def test_sums_that_no_patients_can_have_are_turned_away() -> None:
    sums = {"count": [10, 0], "total": [1.0, 0.0], "squares": [1.0, 0.0]}
    transport = Scripted(study(scaling="federated"))
    transport.join("a", "b", sums=sums)
    transport.join("c", sums={**sums, "total": [100.0, 0.0]})
    study_run(transport, Kept())
    assert "a sum too large for its sum of squares" in transport.turned_away[0][1]


def test_a_late_joiner_takes_part_from_the_next_round_on() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("a", 2):
            transport.join("c")  # in the middle of round 2
        return trained(name, request)

    transport, kept = Scripted(study(), respond), Kept()
    transport.join("a", "b")
    study_run(transport, kept)
    assert outcomes(kept, "c") == ["absent", "absent", "accepted", "accepted"]


KEY_TROUBLE = pytest.mark.parametrize(
    "why", ["its key expired on 2026-11-23", "its key was replaced"]
)


@KEY_TROUBLE
def test_a_hospital_whose_key_is_renewed_while_the_study_waits_is_waited_for(why: str) -> None:
    changes = {"start": "all", "join": "at_start", "longest_wait_seconds": None}
    transport, kept = Scripted(study(federation=changes)), Kept()
    transport.join("a", "b")

    def expire(script: Scripted) -> None:
        script.report(Away("b", why))
        script.leave("b")
        script.report(Denied("b", "b", f"{why}; ask the coordinator"))  # it tries again

    transport.at(10.0, expire)
    transport.at(20.0, lambda script: script.join("c"))
    transport.at(90.0, lambda script: script.join("b"))
    study_run(transport, kept)
    assert [event for event in kept.events if event[0] == "begun_without"] == []
    assert [event for event in kept.events if event[1:2] == ("b",)] == [
        ("joined", "b", ["c"]), ("declined", "b", why), ("waits_for", "b"), ("joined", "b", []),
    ]  # fmt: skip
    assert outcomes(kept, "b") == ["accepted"] * 4


@KEY_TROUBLE
def test_a_user_whose_key_is_renewed_in_the_middle_of_a_run_is_waited_for(why: str) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (name, request.round) == ("c", 1):
            transport.report(Away("a", why))
            transport.leave("a")
            transport.at(transport.clock + 60.0, lambda script: script.join("a"))
        return trained(name, request)

    transport, kept = everybody(study()), Kept()
    transport.respond = respond
    study_run(transport, kept)
    assert ("waits_for", "a") in kept.events
    assert outcomes(kept, "a") == ["accepted"] * 4


def test_a_hospital_that_never_describes_its_patients_is_left_out_by_name() -> None:
    """It is connected: others that are waited for may still come."""
    transport, kept = Scripted(study(federation={"start": "all"})), Kept()
    transport.join("a", "b")
    transport.at(60.0, lambda script: script.report(Away("c", SLOW, 7)))
    study_run(transport, kept)
    ((_, absent),) = [event for event in kept.events if event[0] == "begun_without"]
    assert absent == {"c": SLOW}
    assert outcomes(kept, "b") == ["accepted"] * 4


SLOW = "it did not describe its patients within 60 s; look whether its data source hangs"
REVOKED = "its key was revoked on 2026-11-23; ask the coordinator"


def test_what_is_newer_about_a_hospital_that_is_waited_for_is_told_once_and_kept() -> None:
    transport, kept = Scripted(study(federation={"start": "all"})), Kept()
    transport.join("a", "b")
    transport.report(Away("c", SLOW))
    transport.report(Denied("of another study", "of another study", REVOKED))
    for seconds in (10.0, 20.0):
        transport.at(seconds, lambda script: script.report(Denied("c", "c", REVOKED)))
    with pytest.raises(RunError, match=rf"^c \({REVOKED}\) did not connect"):
        study_run(transport, kept)
    assert [event[2] for event in kept.events if event[:2] == ("declined", "c")] == [SLOW, REVOKED]


@pytest.mark.parametrize("newer", [None, REVOKED])
def test_what_is_wrong_with_a_connection_is_no_reason_once_that_is_gone(newer: str | None) -> None:
    transport, kept = Scripted(study()), Kept()
    members = Presence(transport.study, transport, kept.notify)
    transport.report(Away("b", SLOW, 7))
    transport.report(Away("c", "its key expired on 2026-11-23"))
    members.refresh()
    assert members.why_away("b") == SLOW
    if newer is not None:
        transport.report(Denied("b", "b", newer))
    for connection in (8, 7):
        transport.report(Left(connection))
    members.refresh()
    assert members.why_away("b") == (newer or "was not connected")
    assert members.why_away("c") == "its key expired on 2026-11-23"
    assert [event for event in kept.events if event[0] == "left"] == [("left", "b")] * (not newer)


def test_a_stranger_with_a_hospitals_name_does_not_make_it_look_declined() -> None:
    transport, kept = everybody(study()), Kept()
    transport.report(Denied("b", "b", "its key is in use"))
    transport.report(Denied("a site at 10.0.0.9", None, "its key is not enrolled"))
    study_run(transport, kept)
    assert ("declined", "another connection as b", "its key is in use") in kept.events
    assert ("declined", "a site at 10.0.0.9", "its key is not enrolled") in kept.events
    assert outcomes(kept, "b") == ["accepted"] * 4


def test_a_sites_version_is_told_at_joining_and_in_the_journal() -> None:
    transport, kept = Scripted(study()), Kept()
    transport.join("a", "b")
    transport.join("c", software="0.0.1" + "x" * 10_000)
    study_run(transport, kept)
    (version,) = {record.hospitals["c"].software for record in kept.records}
    assert version is not None
    assert version.startswith("0.0.1xx")
    assert len(version) <= 40
    assert kept.versions["a"] == "test"
    assert kept.versions["c"] == version


# -- The driver over a scripted transport: a run that was interrupted goes on where it was ---------


class KilledError(Exception):
    """The coordinator is gone."""


@pytest.mark.parametrize("killed_in", [1, 2, 4])
def test_a_run_that_was_interrupted_goes_on_where_it_was(killed_in: int) -> None:
    of = study(arms={"weight_erosion": {}, "fedavg": {}}, scaling="none")
    uninterrupted = study_run(everybody(of), Kept())

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if (request.arm, request.round, name) == ("fedavg", killed_in, "b"):
            raise KilledError
        return trained(name, request)

    kept = Kept()
    with pytest.raises(KilledError):
        study_run(everybody(of, respond=respond), kept)
    resumed = study_run(everybody(of), kept)
    for arm, final in uninterrupted.finals.items():
        assert torch.equal(resumed.finals[arm].params, final.params)
        assert resumed.finals[arm].weights == final.weights
    rounds = [(record.arm, record.round) for record in kept.records]
    assert rounds == [(arm, number) for arm in of.arms for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("killed", [False, True])
def test_skipped_rounds_at_the_end_of_an_arm_end_a_run_alike_if_it_was_interrupted(
    killed: bool,
) -> None:
    """Nothing is left to be given up; before, one that went on had figures and the other none."""
    of, kept = study(federation={"max_skipped_rounds": 2}), Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "a" and request.round > 2 else trained(name, request)

    whole = everybody(of, respond=respond)
    if killed:

        def dies(name: str, request: TrainRequest) -> TrainResult | None:
            if request.round == 4:
                raise KilledError
            return respond(name, request)

        with pytest.raises(KilledError):
            study_run(everybody(of, respond=dies), kept)
    found = study_run(whole, kept)
    assert [r.outcome for r in kept.records] == ["done", "done", "skipped", "skipped"]
    assert found.finals["fedavg"].round == 4


def test_an_arm_whose_rounds_were_all_skipped_has_no_figures_however_often_it_goes_on() -> None:
    of, kept = study(federation={"max_skipped_rounds": 4}), Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "a" else trained(name, request)

    for _ in range(2):
        with pytest.raises(RunError, match="Every round of fedavg was skipped"):
            study_run(everybody(of, respond=respond), kept)
    assert len(kept.records) == 4


@pytest.mark.parametrize("killed_in", [3, 8])
def test_a_selection_that_goes_on_asks_for_no_round_with_other_parameters(
    tmp_path: Path, killed_in: int
) -> None:
    """Sites answer a round of a run once; c was away from one that is over."""
    of = study(selection={"folds": 2}, scaling="federated")
    asked: dict[tuple[object, ...], tuple[object, ...]] = {}

    def respond(name: str, request: TrainRequest) -> TrainResult | Absence:
        place = name, request.study.digest, request.arm, request.round
        is_new = place not in asked
        assert request.parameters is not None
        content = tuple(request.parameters.tolist()), request.scaling
        assert asked.setdefault(place, content) == content
        if name == "a" and is_new and len({key[1:] for key in asked}) == killed_in:
            raise KilledError
        is_away = name == "c" and request.round == 2 and len(asked) < 8
        return Absence("was away") if is_away else trained(name, request)

    folder, sums = open_run_folder(tmp_path, of), {"count": [10, 0], "squares": [1.0, 0.0]}
    for total in (1.0, 2.0):
        transport = Scripted(of, respond)
        transport.join("a", "b", "c", sums={**sums, "total": [total, 0.0]})
        expected = pytest.raises(KilledError) if total == 1.0 else nullcontext()
        with FolderStore(folder) as keeper, expected:
            study_run(transport, Kept(), store=keeper)
    assert [(r.round, r.hospitals["c"].outcome) for r in FolderStore(folder).rounds_in_folds()] == [
        (number, "absent" if (trial, number) == (1, 2) else "accepted")
        for trial in (1, 2)
        for number in (1, 2, 3, 4, 5)
    ]


def test_a_run_that_goes_on_keeps_its_hospitals_and_takes_no_newcomer() -> None:
    of = study(federation={"join": "at_start"}, arms={"fedavg": {}, "weight_erosion": {}})
    kept = Kept()

    def respond(name: str, request: TrainRequest) -> TrainResult:
        if request.arm == "weight_erosion":
            raise KilledError
        return trained(name, request)

    first = Scripted(of, respond)
    first.join("a", "b")
    with pytest.raises(KilledError):
        study_run(first, kept)
    second = everybody(of)  # c, too
    study_run(second, kept)
    assert second.clock == 0.0  # a and b are all that it waits for
    assert outcomes(kept, "b") == ["accepted"] * 8
    assert outcomes(kept, "c") == ["absent"] * 8
    assert kept.records[-1].hospitals["c"].reason == "was not there when the study began"
    assert second.turned_away[0][0] == "c"


# -- Hospitals that live and do not answer: rounds wait for them less and less often -------------


def test_who_never_answers_is_asked_in_ever_fewer_rounds() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "b" else trained(name, request)

    transport, kept = played(study(rounds=20), respond=respond)
    asked = [number for name, number, _ in transport.log if name == "b"]
    assert asked == [1, 2, 3, 5, 8, 13]
    assert transport.clock == len(asked) * 10.0
    assert outcomes(kept, "b") == ["absent"] * 20
    assert outcomes(kept, "c") == ["accepted"] * 20
    assert kept.records[4].hospitals["b"].reason == "did not answer within 10 s"
    assert kept.records[5].hospitals["b"].reason == (
        "was late 4 times in a row, and is asked again in round 8"
    )


def test_an_answer_in_time_makes_up_for_all_that_came_late() -> None:
    late_in = {1, 2, 3, 5, 9, 10}

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == "b" and request.round in late_in else trained(name, request)

    transport, kept = played(study(rounds=11), respond=respond)
    absent = [r.round for r in kept.records if r.hospitals["b"].outcome == "absent"]
    assert absent == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert transport.clock == len(late_in) * 10.0


@pytest.mark.parametrize(("late", "quorum"), [("b", 2), ("b", 3), ("a", 2)])
def test_the_user_and_whom_a_quorum_needs_are_asked_in_every_round(late: str, quorum: int) -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        return None if name == late and request.round < 5 else trained(name, request)

    federation = {"quorum": quorum, "max_skipped_rounds": 5}
    transport, kept = played(study(rounds=6, federation=federation), respond=respond)
    spared = (late, quorum) == ("b", 2)
    asked = [number for name, number, _ in transport.log if name == late]
    assert asked == ([1, 2, 3, 5, 6] if spared else [1, 2, 3, 4, 5, 6])
    skipped = [record.round for record in kept.records if record.outcome == "skipped"]
    assert skipped == ([] if spared else [1, 2, 3, 4])


def test_after_a_skipped_round_everybody_is_asked() -> None:
    """`c` fails while `b` pauses: who was late may be what the next round needs."""

    def respond(name: str, request: TrainRequest) -> TrainResult | None:
        late = (name == "b" and request.round in (1, 2, 3, 5)) or (name, request.round) == ("c", 6)
        return None if late else trained(name, request)

    _, kept = played(study(rounds=7), respond=respond)
    assert [r.round for r in kept.records if r.outcome == "skipped"] == [6]
    assert outcomes(kept, "b") == ["absent"] * 6 + ["accepted"]


def test_who_answers_the_first_exchange_and_not_the_second_is_late_too() -> None:
    def respond(name: str, request: TrainRequest) -> TrainResult | StepResult | None:
        if request.step == "gradient":
            assert request.parameters is not None
            found = step_result(name, request, gradient=torch.ones_like(request.parameters))
            values = {"num_samples": 10}
            return replace(found, header=found.header.model_copy(update={"values": values}))
        return None if name == "b" else trained(name, request)

    transport, _ = played(study(rounds=8, arms={"fedlin": {}}), respond=respond)
    asked = [number for name, number, step in transport.log if (name, step) == ("b", "train")]
    assert asked == [1, 2, 3, 5, 8]


def test_who_always_answers_just_before_the_deadline_is_left_out_for_longer_and_longer() -> None:
    back_off, asked = BackOff(), []
    for number in range(1, 101):
        seconds = {"a": 1.0, "c": 2.0}
        if "b" not in back_off.paused(number):
            asked.append(number)
            seconds["b"] = 119.0
        slow = too_slow(seconds, 120.0)
        back_off.round_ended(number, set(), seconds.keys(), slow)
    assert len(asked) == 9
    assert {name: why.left_out for name, why in back_off.paused(101).items()} == {"b": "slow"}


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ({"a": 1.0, "b": 59.0, "c": 1.0}, set()),  # less than half of the deadline
        ({"a": 100.0, "b": 110.0, "c": 90.0}, set()),  # all are slow
        ({"a": 1.0, "b": 60.0, "c": 1.0}, {"b"}),
        ({"a": 1.0, "b": 60.0, "c": 70.0}, set()),  # of three, two are
        ({"a": 1.0, "b": 80.0, "c": 70.0, "d": 2.0, "e": 1.0}, {"b", "c"}),
        ({"b": 110.0}, set()),
    ],
)
def test_slow_is_who_takes_most_of_the_deadline_and_much_longer_than_the_others(
    seconds: dict[str, float], slow: set[str]
) -> None:
    assert too_slow(seconds, 120.0) == slow
