"""Admits keys by the key registry's file, which is read again whenever it changes."""

import logging
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from erosion.common.errors import EnrolmentError
from erosion.common.protocol.admission_terms import Reason
from erosion.common.support.files import version_of
from erosion.server.enrolment.key_registry import EnrolledKey, KeyRegistry, read_key_registry

logger = logging.getLogger("erosion.door")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The key's holder may come in, as this hospital."""

    hospital: str
    expires: datetime


@dataclass(frozen=True, slots=True)
class KeptOut:
    """The key's holder may not come in."""

    hospital: str | None  # None: the key was never enrolled
    reason: Reason
    text: str


class Authorizer:
    """Asked at every call of every site, by many threads, so that a revocation takes effect."""

    def __init__(self, roster_file: Path) -> None:
        """Raises EnrolmentError where the roster cannot be read at the start."""
        self._path = roster_file
        self._lock = threading.Lock()
        self._seen = version_of(roster_file)
        self._roster = read_key_registry(roster_file)
        self._by_key = _by_key(self._roster)

    def verdict(self, public_key: bytes) -> Admitted | KeptOut:
        """Whether the holder of `public_key` (PEM) may come in now."""
        self._refresh()
        key = self._by_key.get(public_key)
        if key is None:
            text = "its key is not enrolled in this federation; ask the coordinator to enrol it"
            return KeptOut(None, Reason.NOT_ENROLLED, text)
        if (trouble := key.trouble) is not None:
            reason = Reason.EXPIRED if key.revoked is None else Reason.REVOKED
            return KeptOut(key.hospital, reason, f"its key {trouble}; ask the coordinator")
        return Admitted(key.hospital, key.expires)

    def why_not(self, hospital: str) -> str | None:
        """Why no site could come in as `hospital` now; None where one could."""
        self._refresh()
        key = self._roster.latest(hospital)
        if key is None:
            return "it is not enrolled"
        return None if key.trouble is None else f"its key {key.trouble}"

    def expiries(self) -> dict[str, datetime]:
        """When each hospital's current key ends."""
        self._refresh()
        return {key.hospital: key.expires for key in self._roster.keys if key.revoked is None}

    def _refresh(self) -> None:
        seen = version_of(self._path)
        if seen == self._seen:
            return
        with self._lock:
            self._seen = seen
            try:
                self._roster = read_key_registry(self._path)
            except EnrolmentError as problem:
                # A damaged file must neither let anyone in nor throw everyone out.
                logger.error("the roster stays as it was: %s", problem)
                return
            self._by_key = _by_key(self._roster)
            logger.info("read the roster again: %d keys", len(self._by_key))


def _by_key(roster: KeyRegistry) -> dict[bytes, EnrolledKey]:
    return {key.public_key.encode(): key for key in roster.keys}
