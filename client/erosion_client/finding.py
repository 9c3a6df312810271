"""The result of one preflight check."""

from dataclasses import dataclass
from enum import StrEnum

from erosion_common.errors import ErosionError


class Severity(StrEnum):
    """The outcome of one check."""

    OK = "ok"
    WARNING = "warning"  # usable today
    FAILED = "failed"
    SKIPPED = "skipped"  # because of something above that failed


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    what: str
    outcome: Severity
    text: str
    remedy: str = ""


def ok(what: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(what, Severity.OK, text)


def warning(what: str, text: str, remedy: str) -> Finding:
    """Return a finding that works today."""
    return Finding(what, Severity.WARNING, text, remedy)


def failed(what: str, text: str, remedy: str) -> Finding:
    """Return a finding that prevents taking part."""
    return Finding(what, Severity.FAILED, text, remedy)


def failed_by(what: str, problem: ErosionError) -> Finding:
    """Return the finding of what an error says prevents taking part."""
    said = problem.problem
    text = f"{said.where}: {said.what}" if said.where else said.what
    return failed(what, text, said.remedy)


def skipped(what: str, text: str) -> Finding:
    """Return a finding that waits for something else to be fixed."""
    return Finding(what, Severity.SKIPPED, text)
