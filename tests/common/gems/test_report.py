"""The words of a round of GEMS."""

import re

import torch

from erosion_common.algorithms.gems.meeting import Meeting
from erosion_common.algorithms.gems.rounds import (
    OwnCheck,
    SentBall,
    apart_in_words,
    checks_in_words,
    in_words,
    refusing,
    sent_ball,
)


def ball(hospital: str, radius: float = 1.0, accuracy: float = 0.9) -> SentBall:
    return SentBall(hospital, radius, accuracy, 0.8, 20)


def meets(one: int, other: int) -> bool:
    """The second of three is far from both others."""
    return 1 not in (one, other)


def test_a_ball_survives_its_attachment() -> None:
    sent = SentBall("a", 2.0, 0.75, 0.5, 16)
    assert sent_ball("a", sent.tensor) == sent


def test_two_hospitals_without_a_model_in_common_are_named() -> None:
    two = [ball("home"), ball("miscoded")]
    assert apart_in_words(two, meets, ["miscoded"]).startswith("miscoded and home")


def test_with_several_they_are_listed_and_those_whose_balls_meet_are_not() -> None:
    three = [ball("a"), ball("b"), ball("c")]
    assert apart_in_words(three, meets, ["b"]).startswith("b has ")
    assert apart_in_words(three, meets, ["a"]).startswith("a and")


def test_balls_that_do_not_meet_say_nothing_where_both_accept_the_model() -> None:
    assert apart_in_words([ball("a"), ball("b")], meets, []) == ""


def test_a_ball_without_a_radius_says_nothing_of_what_hospitals_have_in_common() -> None:
    three = [ball("a", radius=0.0), ball("b"), ball("c", radius=0.0)]
    assert apart_in_words(three, meets, ["a", "b"]) == ""
    meeting = Meeting(torch.ones(3) / 3, torch.tensor([0.5, 0.0, 0.0]), 0.5, 3)
    note = in_words(three, meeting)
    assert "(a and c)" in note
    assert note.endswith("a's by 0.5")


def test_the_checks_say_who_accepts_and_who_does_not() -> None:
    found = {
        "a": OwnCheck(accuracy=0.9, needed=0.8),
        "b": OwnCheck(accuracy=0.8, needed=0.8),
        "c": OwnCheck(accuracy=0.25, needed=0.8),
    }
    assert refusing(found) == ["c"]
    good, bad, unchecked = checks_in_words(found, {"d": "away"}).split("; ")
    assert good.endswith(" a and b")
    assert re.findall(r"\bc\b|\d\.\d+", bad) == ["c", "0.25", "0.80"]
    assert unchecked.startswith("d ")


def test_what_is_missed_and_who_cannot_be_believed() -> None:
    three = [ball("a"), ball("b", accuracy=0.5), ball("c", radius=-2.0)]
    meeting = Meeting(torch.ones(3) / 3, torch.tensor([0.0, 1.25, 9.0]), 1.25, 3)
    left_out, asks, nearest = in_words(three, meeting).split("; ")
    assert re.findall(r"\bc\b|-?\d+", left_out) == ["c", "-2"]
    assert re.findall(r"\bb\b|\d[\d.]*", asks) == ["b", "0.80", "0.50", "20"]
    assert nearest.endswith("b's by 1.2")
