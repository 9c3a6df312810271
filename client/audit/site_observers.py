"""Observers of a site's agent: the log of what it sends and the status file."""

from datetime import UTC, datetime
from pathlib import Path

from flwr.app import Message

from erosion.client.audit.audit_log import AuditLog
from erosion.common.support.status_file import StatusFile

STATUS_NAME = "status.json"


class SiteObservers:
    """Follows the agent (a `SiteObserver`). Use it within the audit log's context."""

    def __init__(self, folder: Path, audit_log: AuditLog, *, name: str, coordinator: str) -> None:
        """Keep `folder`/status.json."""
        self._audit_log = audit_log
        self._sign = StatusFile(
            folder / STATUS_NAME,
            site=name,
            coordinator=coordinator,
            connected=False,
            trouble="not connected yet",
            sent=0,
            last_sent=None,
            log_head=audit_log.head,
        )
        self._sent = 0

    def connected(self) -> None:
        """The coordinator let this site in."""
        self._sign.show(connected=True, trouble=None)

    def disconnected(self, why: str) -> None:
        """The connection is down."""
        self._sign.show(connected=False, trouble=why)

    def sending(self, request: Message, reply: Message) -> str:
        """Write it down before it is sent; the hash of its line goes with it.

        Raises NotLogged; then it must not be sent.
        """
        self._audit_log.record(request, reply)
        self._sent += 1
        self._sign.show(
            sent=self._sent,
            last_sent=datetime.now(UTC).isoformat(timespec="seconds"),
            log_head=self._audit_log.head,
        )
        return self._audit_log.head

    def end(self, why: str) -> None:
        """The program ends."""
        self._sign.end(connected=False, trouble=why, ended=True)
