"""Admits sites by their keys, and reports those that are rejected."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from cryptography import x509

from erosion.common.protocol.admission_terms import Reason
from erosion.server.enrolment.authorizer import Admitted, Authorizer, KeptOut

logger = logging.getLogger("erosion.admission")

UNNAMED = "a stranger"  # the TLS library does not say from where
REPEAT_SECONDS = 600.0  # before the same trouble is reported again
MOST_TOLD = 1000  # different troubles that are remembered; a stranger can make up any number
HANDSHAKE_SECONDS = 10.0  # from a connection's start to its first call, on a slow line


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Somebody who was not let in."""

    hospital: str | None  # by its key; None where that says nothing
    origin: str  # the address without its port; "" where it is not known
    text: str  # completes "the site ... was not let in: "

    @property
    def who(self) -> str:
        """For people."""
        return self.hospital or (f"a site at {self.origin}" if self.origin else UNNAMED)


class RejectionLog:
    """Used by many threads. Without an admission everybody is let in (this machine only)."""

    def __init__(
        self,
        admission: Authorizer | None,
        own_trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`own_trouble`: why nobody would accept the coordinator's own certificate."""
        self.admission, self._own_trouble = admission, own_trouble
        self._news: deque[TurnedAway] = deque(maxlen=MOST_TOLD)
        self.num_news = 0  # of all times
        self._lock = threading.Lock()
        self._told: dict[tuple[str, Reason], float] = {}  # when a trouble was last reported
        self._handshakes: deque[float] = deque(maxlen=MOST_TOLD)  # that no call followed yet
        self._callers: dict[str, None] = {}  # connections that got as far as a call

    def verdict(self, certificate: x509.Certificate) -> Admitted | KeptOut | None:
        """May the holder of this certificate come in? None where everybody may."""
        return None if self.admission is None else self.admission.verdict(certificate)

    def keep_out(self, hospital: str | None, peer: str, reason: Reason, text: str) -> None:
        """Tell that somebody was not let in: once in a while, however often it tries."""
        origin = _without_port(peer)
        key = (hospital or origin, reason)
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
                return
            while len(self._told) >= MOST_TOLD:
                del self._told[next(iter(self._told))]
            self._told[key] = now
        event = TurnedAway(hospital, origin, text)
        where = f" ({peer})" if peer else ""
        logger.warning("%s%s was not let in: %s", event.who, where, text)
        with self._lock:
            self._news.append(event)
            self.num_news += 1

    def handshake(self) -> None:
        """A connection begins; what becomes of it shows by the call that follows, or does not."""
        with self._lock:
            self._handshakes.append(time.monotonic())

    def call(self, peer: str) -> None:
        """A connection got as far as a call."""
        if peer in self._callers:
            return
        with self._lock:
            self._callers[peer] = None
            if self._handshakes:
                self._handshakes.popleft()
            while len(self._callers) > MOST_TOLD:
                del self._callers[next(iter(self._callers))]

    def news(self, since: int) -> tuple[list[TurnedAway], int]:
        """Return the denials after the first `since`, and how many there were in all."""
        self._tell_of_broken_handshakes()
        with self._lock:
            num_new = min(self.num_news - since, len(self._news))
            return list(self._news)[len(self._news) - num_new :], self.num_news

    def _tell_of_broken_handshakes(self) -> None:
        """The TLS library does not say whose handshake failed, only that no call came of it."""
        overdue = time.monotonic() - HANDSHAKE_SECONDS
        with self._lock:
            broken = 0
            while self._handshakes and self._handshakes[0] < overdue:
                self._handshakes.popleft()
                broken += 1
        if broken:
            many = f"{broken} connections" if broken > 1 else "one connection"
            own = self._own_trouble()
            self.keep_out(
                None,
                "",
                Reason.HANDSHAKE,
                f"on {many} TLS was not agreed: {'' if own is None else f'{own}. Else: '}no"
                " certificate of this federation or an expired one, another authority trusted,"
                " another name dialled, or no TLS at all; `erosion check` at the site says which",
            )


def _without_port(peer: str) -> str:
    """`ipv4:10.0.0.7:53211` as 10.0.0.7; a new port is no news."""
    if not peer.startswith(("ipv4:", "ipv6:")):
        return peer
    return unquote(peer.partition(":")[2]).rpartition(":")[0]
