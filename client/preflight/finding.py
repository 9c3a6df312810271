"""What a preflight found about one thing."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How it stands."""

    OK = "ok"
    WARNING = "warning"  # it works today
    FAILED = "failed"
    SKIPPED = "skipped"  # because of something above that failed


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    what: str
    outcome: Outcome
    text: str
    remedy: str = ""


def ok(what: str, text: str) -> Finding:
    """All is well."""
    return Finding(what, Outcome.OK, text)


def warning(what: str, text: str, remedy: str) -> Finding:
    """It works today."""
    return Finding(what, Outcome.WARNING, text, remedy)


def failed(what: str, text: str, remedy: str) -> Finding:
    """The site cannot take part like this."""
    return Finding(what, Outcome.FAILED, text, remedy)


def skipped(what: str, text: str) -> Finding:
    """It cannot be looked into before something else is mended."""
    return Finding(what, Outcome.SKIPPED, text)
