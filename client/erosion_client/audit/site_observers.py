"""Observers of a site's agent: the log of what it sends and the status file."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import Message

from erosion_client.audit.audit_log import AuditLog
from erosion_common.protocol import wire
from erosion_common.support.status import STATUS_NAME, StatusFile, certificate_shown

BUDGETS_SECONDS = 5.0  # between two checks of the budgets


class SiteObservers:
    """Follows the agent. Use within the audit log's context."""

    def __init__(
        self,
        folder: Path,
        audit_log: AuditLog,
        *,
        name: str,
        coordinator: str,
        budgets: Callable[[], Sequence[str]] = lambda: (),
        site_file: Callable[[], str] = lambda: "",
        study_named: Callable[[str], str | None] = lambda _digest: None,
        certificate_expires: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """Keep `folder`/status.json.

        `budgets` returns what is used up, in lines; `site_file` what has changed in it;
        `study_named` the name of the approved study with a digest;
        `certificate_expires` when the site's certificate ends, None where it has none.
        """
        self._study_named = study_named
        self._audit_log, self._budgets, self._site_file = audit_log, budgets, site_file
        self._looked = float("-inf")  # when the budgets were last checked
        self._sign = StatusFile(
            folder / STATUS_NAME,
            live=lambda: certificate_shown(certificate_expires()),
            site=name,
            coordinator=coordinator,
            connected=False,
            trouble="not connected yet",
            disconnected_since=_now(),
            sent=0,
            last_sent=None,
            log_head=audit_log.head,
        )
        self._sent, self._is_connected = 0, False

    def connected(self) -> None:
        """Note that the coordinator admitted this site."""
        self._is_connected = True
        self._looked = time.monotonic()
        self._sign.show(
            connected=True,
            trouble=None,
            disconnected_since=None,
            budgets=list(self._budgets()),
            site_file=self._site_file(),
        )

    def disconnected(self, why: str) -> None:
        """Note that the connection is down."""
        values: dict[str, Any] = {"connected": False, "trouble": why}
        if self._is_connected:
            values["disconnected_since"] = _now()
        self._is_connected = False
        self._sign.show(**values)

    def sending(self, request: Message, reply: Message) -> str:
        """Log the reply before it is sent; return the hash of its line, which is sent with it."""
        digest = wire.header_of(request.content).get("digest")
        name = self._study_named(digest) if isinstance(digest, str) else None
        self._audit_log.record(request, reply, name)
        self._sent += 1
        self._sign.show(
            sent=self._sent,
            last_sent=_now(),
            log_head=self._audit_log.head,
        )
        if time.monotonic() >= self._looked + BUDGETS_SECONDS:
            self._looked = time.monotonic()
            self._sign.show(budgets=list(self._budgets()))
        return self._audit_log.head

    def end(self, why: str) -> None:
        """Note that the program ends."""
        self._sign.show(budgets=list(self._budgets()))
        self._sign.end(connected=False, trouble=why, ended=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
