"""Errors are data: every class keeps its code on its way over the wire."""

import pickle
from collections.abc import Iterator

import pytest

from erosion_client.audit.audit_log import AuditLog  # noqa: F401 - defines an error of its own
from erosion_common.errors import ErosionError, Problem, StudyError
from erosion_common.protocol.flower import NoAnswer, read_error
from erosion_common.protocol.frames import LONGEST_REASON
from erosion_common.rounds.presence import UserDeclinedError  # noqa: F401 - as above


def kinds(of: type[ErosionError] = ErosionError) -> Iterator[type[ErosionError]]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=str))
def test_every_error_is_read_by_its_code(kind: type[ErosionError]) -> None:
    problem = Problem(kind.__name__, "what", "where", "Remedy.")
    told = read_error(NoAnswer(problem.code, "b", problem.text).encode())
    assert told == NoAnswer(kind.__name__, "b", "where: what. Remedy.")


def test_an_error_composes_its_text_and_survives_another_process() -> None:
    problem = StudyError("rounds = 0.", where="study.toml", remedy="Write 1 or more.")
    assert str(problem) == "study.toml: rounds = 0. Write 1 or more."
    again = pickle.loads(pickle.dumps(problem))  # noqa: S301 - our own bytes
    assert (str(again), again.problem) == (str(problem), problem.problem)
    assert problem.problem.reason == str(problem)[:-1]


@pytest.mark.parametrize("letter", ["x", '"', "\\", "\x1b", "\ud800", "\n", "ä"])
def test_a_reason_of_any_letters_fits_into_one_line_of_the_wire(letter: str) -> None:
    error = NoAnswer("Refusal", "b", "a" + letter * 20_000).encode()
    assert error.reason is not None
    assert len(error.reason) <= LONGEST_REASON
    assert error.reason.isprintable()
    assert read_error(error).hospital == "b"
    assert read_error(error).reason.startswith("a")


@pytest.mark.parametrize("text", ["", "left", "[1]", "{}", "[" * 4000, '{"code": 1}'])
def test_what_is_no_error_of_ours_is_a_reason_and_names_nobody(text: str) -> None:
    from flwr.app import Error

    told = read_error(Error(2, text))
    assert (told.code, told.hospital) == ("", "")
    assert told.reason == (text or "no reason given")
