"""Admits sites by their certificates, by the federation's files as they are now."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509

from erosion_common.protocol.frames import Reason
from erosion_common.support import expiry
from erosion_common.support.keys import PublicKey, certified_key, public_pem
from erosion_common.support.logs import about
from erosion_server.enrolment.certificates import (
    OwnAuthorities,
    Watched,
    names_in,
    read_own_authorities,
)
from erosion_server.enrolment.federation_folder import (
    EnrolledKey,
    FederationFolder,
    KeyRegistry,
    read_key_registry,
)

logger = logging.getLogger("erosion.admission")


MOST_HOLDERS = 10_000  # of certificates that are remembered


@dataclass(frozen=True, slots=True)
class Admitted:
    """The certificate's holder may come in, as this hospital."""

    hospital: str
    expires: datetime


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """The certificate's holder may not come in."""

    hospital: str | None  # None: it is nobody's that is enrolled
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who shows a certificate: all of a verdict that does not depend on the time."""

    key: EnrolledKey | None  # None: it is no enrolled one
    hospital: str | None  # that the certificate is for; None: for none, or not for the key's
    ends: datetime  # of the certificate


class _Books:
    def __init__(self, roster: KeyRegistry, own: OwnAuthorities) -> None:
        self.roster, self.own = roster, own
        self._by_key = {key.public_key.encode(): key for key in roster.keys}
        self.holder = lru_cache(MOST_HOLDERS)(self._holder)  # who shows a certificate

    def has_own_authority(self, hospital: str) -> bool:
        return hospital in self.own.by_hospital

    def _holder(self, certificate: x509.Certificate) -> _Holder:
        ends = certificate.not_valid_after_utc
        public = certified_key(certificate)
        key = None if public is None else self._by_key.get(public_pem(public))
        if key is None:
            return _Holder(None, self.own.hospital_of(certificate), ends)
        if self.has_own_authority(key.hospital):  # only its own authority vouches for it
            vouched = self.own.hospital_of(certificate) == key.hospital
        else:
            vouched = key.hospital in names_in(certificate)
        return _Holder(key, key.hospital if vouched else None, ends)


class Authorizer:
    """Asked at every connection and every second of it, so that a revocation takes effect.

    The TLS handshake has shown that the site holds the certificate's key, and that one of the
    federation's authorities signed it. The registry names the hospital by the key; for a hospital
    with its own authority, that authority and the name in the certificate do.
    """

    def __init__(self, folder: FederationFolder) -> None:
        """Raises EnrolmentError where the federation cannot be read at the start."""
        self._folder = folder
        self._books = Watched("the roster", self._read)

    def verdict(self, certificate: x509.Certificate) -> Admitted | NotAdmitted:
        """May the holder of `certificate` come in now?"""
        books = self._books.value
        holder = books.holder(certificate)
        key, hospital, ends = holder.key, holder.hospital, holder.ends
        if key is None and hospital is None:
            text = "its key is not enrolled in this federation; ask the coordinator to enrol it"
            return NotAdmitted(None, Reason.NOT_ENROLLED, text)
        if key is not None:
            if (trouble := key.trouble) is not None:
                if key.revoked is not None and self.may_renew(key.hospital):
                    trouble = "was replaced"
                reason = Reason.EXPIRED if key.revoked is None else Reason.REVOKED
                return NotAdmitted(key.hospital, reason, f"its key {trouble}; ask the coordinator")
            ends = min(ends, key.expires)
        if key is not None and hospital is None:
            text = f"its certificate is not for the name {key.hospital!r}, as which it is enrolled"
            if books.has_own_authority(key.hospital):
                text = f"its certificate is not of {key.hospital}'s own authority"
            return NotAdmitted(key.hospital, Reason.NAME, text)
        assert hospital is not None
        if expiry.has_ended(ends):  # within a connection; at its start TLS saw to it
            text = f"its certificate expired on {ends:%Y-%m-%d}; ask the coordinator"
            return NotAdmitted(hospital, Reason.EXPIRED, text)
        return Admitted(hospital, ends)

    def why_not(self, hospital: str) -> str | None:
        """Return why no site could come in as `hospital` now; None where one could."""
        books = self._books.value
        if books.has_own_authority(hospital):
            return None
        key = books.roster.latest(hospital)
        if key is None:
            return "it is not enrolled"
        if key.trouble is None and key.certificate is None:
            return "its key has no certificate yet"
        return None if key.trouble is None else f"its key {key.trouble}"

    def may_renew(self, hospital: str) -> bool:
        """Return whether a renewed key would let it in again, or does; not where it was revoked."""
        books = self._books.value
        return books.has_own_authority(hospital) or books.roster.current(hospital) is not None

    def expiries(self) -> dict[str, datetime]:
        """Return when each hospital's current key ends."""
        return {key.hospital: key.expires for key in self._books.value.roster.in_force}

    def keys(self) -> dict[str, PublicKey]:
        """Return each hospital's current key; not of those with their own authority."""
        books = self._books.value
        in_force = books.roster.in_force
        return {k.hospital: k.key for k in in_force if not books.has_own_authority(k.hospital)}

    def _read(self) -> tuple[_Books, Sequence[Path]]:
        roster, own = read_key_registry(self._folder.roster), read_own_authorities(self._folder)
        return _Books(roster, own), (self._folder.roster, self._folder.place, *own.files)


UNNAMED = "a stranger"  # the TLS library does not say from where
REPEAT_SECONDS = 600.0  # before the same trouble is reported again
MOST_TOLD = 1000  # different troubles that are remembered; a stranger can make up any number
HANDSHAKE_SECONDS = 10.0  # from a connection's start to its first call, on a slow line


@dataclass(frozen=True, slots=True)
class Denial:
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
        self, admission: Authorizer | None, own_trouble: Callable[[], str | None] = lambda: None
    ) -> None:
        """`own_trouble`: why nobody would accept the coordinator's own certificate."""
        self.admission, self._own_trouble = admission, own_trouble
        self._news: deque[Denial] = deque(maxlen=MOST_TOLD)
        self.num_news = 0  # of all times
        self._denials: Counter[str] = Counter()  # every one, by reason
        self._lock = threading.Lock()
        self._told: dict[tuple[str, Reason], float] = {}  # when a trouble was last reported
        self._handshakes: deque[float] = deque(maxlen=MOST_TOLD)  # that no call followed yet
        self._callers: dict[str, None] = {}  # connections that got as far as a call

    def verdict(self, certificate: x509.Certificate) -> Admitted | NotAdmitted | None:
        """May the holder of this certificate come in? None where everybody may."""
        return None if self.admission is None else self.admission.verdict(certificate)

    def deny(self, hospital: str | None, peer: str, reason: Reason, text: str) -> None:
        """Report that somebody was denied: once in a while, however often it tries."""
        origin = _without_port(peer)
        key = (hospital or origin, reason)
        now = time.monotonic()
        with self._lock:
            self._denials[reason.value] += 1
            if now - self._told.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
                return
            while len(self._told) >= MOST_TOLD:
                del self._told[next(iter(self._told))]
            self._told[key] = now
        event = Denial(hospital, origin, text)
        where = f" ({peer})" if peer else ""
        with about(hospital=event.who):
            logger.warning("%s%s was not let in: %s", event.who, where, text)
        with self._lock:
            self._news.append(event)
            self.num_news += 1

    @property
    def denials(self) -> dict[str, int]:
        """How often somebody was denied since the start, by reason."""
        self._report_broken_handshakes()
        with self._lock:
            return dict(self._denials)

    def handshake(self) -> None:
        """Note that a connection begins; a call follows it where it succeeds."""
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

    def news(self, since: int) -> tuple[list[Denial], int]:
        """Return the denials after the first `since`, and how many there were in all."""
        self._report_broken_handshakes()
        with self._lock:
            num_new = min(self.num_news - since, len(self._news))
            return list(self._news)[len(self._news) - num_new :], self.num_news

    def _report_broken_handshakes(self) -> None:
        """Report handshakes that no call followed; the TLS library does not say who failed."""
        overdue = time.monotonic() - HANDSHAKE_SECONDS
        with self._lock:
            broken = 0
            while self._handshakes and self._handshakes[0] < overdue:
                self._handshakes.popleft()
                broken += 1
        if broken:
            many = f"{broken} connections" if broken > 1 else "one connection"
            own = self._own_trouble()
            self.deny(
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
