"""The driver over a scripted transport: for whom a study waits, and whom it takes in."""

from typing import Any

import pytest
import torch

from erosion_common.errors import RunError
from erosion_common.protocol.messages import TrainRequest, TrainResult
from erosion_common.rounds.channel import Away, Denied, Left
from erosion_common.rounds.presence import Presence, UserDeclinedError
from erosion_server.run.findings import Absent, Recount, absences, recounts
from tests.support.open_study import everybody, outcomes, study
from tests.support.scripted import Kept, Scripted, study_run, trained


def test_it_begins_at_once_when_all_are_there() -> None:
    transport, kept = everybody(study()), Kept()
    outcome = study_run(transport, kept)
    assert transport.clock == 0.0
    assert [record.outcome for record in kept.records] == ["done"] * 4
    assert kept.events[:3] == [
        ("joined", "a", ["b", "c"]), ("joined", "b", ["c"]), ("joined", "c", []),
    ]  # fmt: skip
    # every round moves by the mean of 0.1, 0.2 and 0.3
    moved = outcome.finals["fedavg"].params
    first = study_run(everybody(study(rounds=1)), Kept()).finals["fedavg"].params
    torch.testing.assert_close(moved - first, torch.full_like(first, 0.6))


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
