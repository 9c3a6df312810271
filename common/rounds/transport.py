"""The driver's way to the hospitals: a network, this process, or a test's script.

A transport knows connections, each a number that is given once: a site that comes back has another.
It introduces every site that connects (`Introduced`, with what the site answered to `describe`)
and says who went away. Which of them takes part is for `Membership` to say, the same for every
transport.
Time is the transport's, too: seconds pass in a script when it says so.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.protocol.messages import (
    DescribeReply,
    EvaluateRequest,
    EvaluateResult,
    StepResult,
    TrainRequest,
    TrainResult,
)
from erosion.common.rounds.records import Absence, Rejection

Connection = int
Request = TrainRequest | EvaluateRequest
Result = TrainResult | StepResult | EvaluateResult


@dataclass(frozen=True, slots=True)
class Introduced:
    """A site connected and described itself, under a name that it may use."""

    connection: Connection
    described: DescribeReply


@dataclass(frozen=True, slots=True)
class Declined:
    """A site connected and will not or cannot take part."""

    connection: Connection
    hospital: HospitalName
    reason: str  # its own words
    for_now: bool = False  # a person there has yet to decide; the site connects anew after that


@dataclass(frozen=True, slots=True)
class Left:
    """A connection is gone."""

    connection: Connection
    expelled: str = ""  # why its hospital is out for good; empty: it may come back


@dataclass(frozen=True, slots=True)
class Away:
    """A hospital is not ready yet, or no longer, and is waited for."""

    hospital: HospitalName
    reason: str  # its key has expired, say
    connection: Connection | None = None  # with which the reason goes; None: it stays


@dataclass(frozen=True, slots=True)
class KeptOut:
    """Somebody was not let in: a key that is not enrolled, or an answer that makes no sense."""

    who: str
    hospital: HospitalName | None  # that it wanted to be, where that is known
    reason: str


News = Introduced | Declined | Left | Away | KeptOut


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What came back to one request. Let go of it before taking the next: it may be large."""

    connection: Connection
    content: Result | Rejection | Absence
    left: bool = False  # the connection ended while the site was asked
    seconds: float | None = None  # from the request to the reply
    bytes_sent: int | None = None  # of the request; None where nothing was encoded
    bytes_received: int | None = None


class Transport(Protocol):
    """Reaches hospitals. Called from one thread."""

    def news(self) -> Iterable[News]:
        """Who came, went, or was kept out since this was last asked; it does not wait."""
        ...

    def turn_away(self, connection: Connection, reason: str) -> None:
        """Tell a site that it cannot take part, and why; it should not come back as it is."""
        ...

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        """Ask at once, then yield what comes back within `seconds`, as it comes.

        Every request has one reply: in the end, an `Absence` for who did not answer in time, whose
        late answer is dropped. Requests that are one object are encoded once.
        """
        ...

    def hears(self, connection: Connection) -> bool:
        """Is there a sign of life since its last request went unanswered, if one did?"""
        ...

    def wait_for_change(self, seconds: float) -> None:
        """Return when there may be news, or after `seconds`."""
        ...

    def now(self) -> float:
        """Seconds in which this program has run; while it was stopped, none passed."""
        ...


def too_late(connection: Connection, seconds: float, bytes_sent: int | None = None) -> Reply:
    """What stands for the answer of a site that did not give one within `seconds`."""
    absence = Absence(f"did not answer within {seconds:g} s", late=True)
    return Reply(connection, absence, bytes_sent=bytes_sent)
