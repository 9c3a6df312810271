"""Holds the privacy ledger against the log of what was sent, when a site starts.

A ledger that was restored from a backup, or deleted, has forgotten what was spent. The log, which
is another file, still has every update with its noise.
"""

import logging
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.client.audit.entries_since import entries_since
from erosion.client.privacy.privacy_ledger import PrivacyLedger, Release
from erosion.common.privacy.accountant import strength_of
from erosion.common.protocol import wire

logger = logging.getLogger("erosion.site")


def recover_releases(ledger: PrivacyLedger, dataset: str, log: Path) -> int:
    """How many updates the log has and the ledger lacked. Raises SiteError."""
    read_to = ledger.log_was_read_to(log)
    sent = []
    for entry in entries_since(log, read_to):
        read_to = entry.number
        if (release := _release_of(entry, dataset)) is not None:
            sent.append(release)
    lacking = ledger.recover(sent, log, read_to)
    if lacking:
        logger.warning(
            "%s has %d updates with noise that the privacy ledger lacks, which was restored or"
            " deleted: they are counted as paid for, and not given again",
            log,
            lacking,
        )
    return lacking


def _release_of(entry: AuditEntry, dataset: str) -> Release | None:
    noise = entry.figures.get("noise_multiplier") if isinstance(entry.figures, dict) else None
    kind = entry.kind.partition(".")[0]  # whatever the step: a method's own may bring an update
    if (
        entry.dataset not in ("", dataset)
        or kind != wire.TRAIN
        or entry.error is not None
        or not isinstance(noise, int | float)
    ):
        return None
    return Release(
        dataset,
        entry.digest or "",
        entry.run or "",
        entry.arm or "",
        entry.round or 0,
        strength_of(noise),
    )
