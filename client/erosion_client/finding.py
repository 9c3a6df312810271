"""The result of one preflight check."""

from dataclasses import dataclass
from enum import StrEnum


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


def skipped(what: str, text: str) -> Finding:
    """Return a finding that waits for something else to be fixed."""
    return Finding(what, Severity.SKIPPED, text)
