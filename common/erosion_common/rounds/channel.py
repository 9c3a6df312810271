"""How the driver reaches hospitals: a network, this process, or a test's script.

A channel knows connections, each a number that is used once: a site that reconnects gets another.
Which of the connected sites takes part is for `Presence` to say. Time is the channel's, too.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.protocol.messages import (
    DescribeReply,
    EvaluateRequest,
    EvaluateResult,
    StepResult,
    TrainRequest,
    TrainResult,
)
from erosion_common.rounds.records import Absence, Rejection

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
    for_now: bool = False  # a person there has yet to decide; the site then connects again


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
class Denied:
    """Somebody was not let in: a key that is not enrolled, or an answer that makes no sense."""

    who: str
    hospital: HospitalName | None  # that it wanted to be, where that is known
    reason: str


News = Introduced | Declined | Left | Away | Denied


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """The reply to one request. Drop it before taking the next: it may be large."""

    connection: Connection
    content: Result | Rejection | Absence
    left: bool = False  # the connection ended while the site was asked
    seconds: float | None = None  # from the request to the reply
    bytes_sent: int | None = None  # of the request; None where nothing was encoded
    bytes_received: int | None = None


class Channel(Protocol):
    """One study's way to its hospitals. Called from one thread."""

    def news(self) -> Iterable[News]:
        """Returns who connected, left or was denied since the last call; does not wait."""

    def turn_away(self, connection: Connection, reason: str) -> None:
        """Rejects a site; it should not come back as it is."""

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        """Sends all requests at once and yields one reply for each, as they arrive.

        After `seconds` an `Absence` stands for each missing answer; later ones are dropped. A
        request that several hospitals share is encoded once.
        """

    def hears(self, connection: Connection) -> bool:
        """Returns False while a site with an overdue answer gives no sign of life."""

    def wait_for_change(self, seconds: float) -> None:
        """Waits until there may be news, at most `seconds`."""

    def now(self) -> float:
        """Returns the seconds that this program has run; suspended time does not count."""


def too_late(connection: Connection, seconds: float, bytes_sent: int | None = None) -> Reply:
    """Returns the reply for an answer that did not come within `seconds`."""
    absence = Absence(f"did not answer within {seconds:g} s", late=True)
    return Reply(connection, absence, bytes_sent=bytes_sent)
