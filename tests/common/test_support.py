"""Small parts that all programs share: clocks, logs, imports, installations, errors as data."""

import gc
import io
import json
import logging
import pickle
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_client.records.audit_log import AuditLog  # noqa: F401 - defines an error of its own
from erosion_common.errors import DataError, ErosionError, Problem, StudyError
from erosion_common.protocol.flower import NoAnswer, read_error
from erosion_common.protocol.frames import LONGEST_REASON
from erosion_common.rounds.presence import UserDeclinedError  # noqa: F401 - as above
from erosion_common.support.logs import JsonLines, SafeText, about, stamp
from erosion_common.support.process import GAP_SECONDS, RunningTime, imports_for_good
from erosion_common.support.software import DISTRIBUTIONS, check_distributions, install_command
from erosion_common.support.text import significant
from tests.support.patience import PATIENCE
from tests.support.projects import EXTRAS, PROJECTS
from tests.support.refusals import refused


class Machine:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("stopped", [GAP_SECONDS, 300.0, 86_400.0])
def test_a_gap_counts_as_one_second_whoever_looks_first(stopped: float) -> None:
    machine = Machine()
    clock = RunningTime(machine)
    begun = clock.now()
    machine.seconds += stopped
    assert clock.now() - begun == pytest.approx(1.0)
    machine.seconds += 2.0
    assert clock.now() - begun == pytest.approx(3.0)


# -- Logs as JSON --------------------------------------------------------------------------------


def test_a_record_is_one_line_of_json_with_its_traceback() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("erosion.test")
    logger.addHandler(handler)
    logger.warning("%s was not let in:\nits key expired", "bob")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    plain, failed = (json.loads(line) for line in stream.getvalue().splitlines())
    assert plain["message"] == "bob was not let in:\nits key expired"
    assert (plain["level"], plain["component"]) == ("warning", "test")
    assert "traceback" not in plain
    assert "ValueError" in failed["traceback"]


def logged(formatter: logging.Formatter, text: str) -> str:
    record = logging.LogRecord("erosion.site", logging.INFO, "", 0, "%s", (text,), None)
    return formatter.format(record)


def test_a_line_says_what_it_is_about_and_nothing_else_afterwards() -> None:
    with about(study="heart", run="r1", hospital=None):
        with about(round=3, run=""):
            line = json.loads(logged(JsonLines(), "x"))
        after = json.loads(logged(JsonLines(), "x"))
    assert {key: line[key] for key in ("study", "run", "round")} == {
        "study": "heart", "run": "r1", "round": 3,
    }  # fmt: skip
    assert "hospital" not in line
    assert "round" not in after
    assert "study" not in json.loads(logged(JsonLines(), "x"))


def test_a_field_from_elsewhere_is_short_and_on_one_line() -> None:
    with about(study="a\n" + "b" * 10_000):
        line = logged(JsonLines(), "x")
    assert "\n" not in line
    assert len(line) < 500


def test_a_line_of_text_has_its_time_with_the_offset_level_and_component() -> None:
    when, level, component, text = logged(SafeText(), "ready").split(" ", 3)
    assert datetime.fromisoformat(when).tzinfo is not None
    assert (level, component, text) == ("INFO", "erosion.site:", "ready")
    assert stamp(0.0, UTC) == "1970-01-01T00:00:00.000+00:00"


def test_one_event_is_one_line_whatever_its_text_holds() -> None:
    forged = "no\n2026-01-01T00:00:00.000+00:00 ERROR erosion.site: forged\r\x1b[2K\u202e"
    line = logged(SafeText(), forged)
    assert len(line.splitlines()) == 1
    assert line.isprintable()


# -- Imports without collections meanwhile -------------------------------------------------------


def test_an_import_that_fails_leaves_collections_on() -> None:
    with pytest.raises(ImportError), imports_for_good():
        raise ImportError
    assert gc.isenabled()


# -- What a message says to install is what the extra needs, by its own name ---------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of this program's packages, whose extras are those of the project files."""

    def requires(name: str) -> list[str]:
        (project,) = (p["project"] for p in PROJECTS.values() if p["project"]["name"] == name)
        extras = project["optional-dependencies"].items()
        return [
            "numpy>=2",
            *(f'{text}; extra == "{name}"' for name, texts in extras for text in texts),
        ]

    monkeypatch.setattr(metadata, "requires", requires)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("extra", [name for name in EXTRAS if name != "dev"])
def test_an_extra_is_installed_by_its_packages(extra: str) -> None:
    words = install_command(extra).replace("'", "").removeprefix("pip install ").split()
    assert list(map(Requirement, words)) == list(map(Requirement, EXTRAS[extra]))


def test_what_only_lies_in_a_folder_installs_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> Any:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("sql") == "pip install '.[sql]'"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("source", "extra", "package"),
    [(DicomImages, "dicom", "pydicom"), (NiftiImages, "nifti", "nibabel")],
)
def test_a_source_without_its_package_says_how_to_install_it(
    source: Any, extra: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("erosion_client.dataset.sources.labelled_images.find_spec", lambda _: None)
    with refused(DataError, f"pip install '{package}>="):
        source(path=Path("images")).require(package, extra)


# -- Versions ------------------------------------------------------------------------------------


def test_parts_of_two_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict.fromkeys(DISTRIBUTIONS, "0.3.0")
    monkeypatch.setattr(metadata, "version", lambda name: versions[name])
    check_distributions()
    versions["erosion-client"] = "0.2.0"
    with pytest.raises(ErosionError, match=r"erosion-client 0\.2\.0"):
        check_distributions()


# -- Errors are data: every class keeps its code on its way over the wire --------------------------


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's memory")
def test_large_buffers_that_were_freed_are_used_again() -> None:
    program = (
        "import resource\n"
        "from erosion_common.support.process import keep_freed_memory, return_freed_memory\n"
        "def fresh_pages():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    bytearray(2**26)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "keep_freed_memory(large=True)\n"
        "first, again = fresh_pages(), fresh_pages()\n"
        "return_freed_memory()\n"
        "print(first, again, fresh_pages(), fresh_pages())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    first, again, *returned = map(int, said.stdout.split())
    assert again < first / 8
    assert min(returned[1:]) > first / 2


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(1224.0, 3, "1220"), (250_000.0, 3, "250000"), (0.09384, 3, "0.0938"), (-12.0, 2, "-12")],
)
def test_a_figure_keeps_its_digits_without_an_exponent(
    value: float, digits: int, said: str
) -> None:
    assert significant(value, digits) == said
