"""Holds the record of sums against the log of what was sent, when a site starts.

A record that was restored from a backup, or deleted, has forgotten sums and distances, and an
update could be put into a second sum. The log, which is another file, still has every leg that was
answered.
"""

import logging
from collections import Counter
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.client.audit.entries_since import entries_since
from erosion.client.sealed.sum_ledger import Place, SumLedger
from erosion.common.algorithms.base import TRAIN
from erosion.common.protocol import wire
from erosion.common.sealed import legs

logger = logging.getLogger("erosion.site")


def recover_sums(ledger: SumLedger, dataset: str, log: Path) -> int:
    """Of how many rounds the ledger has forgotten what the log has. Raises SiteError."""
    read_to = ledger.log_was_read_to(log)
    sent: Counter[tuple[Place, str]] = Counter()
    for entry in entries_since(log, read_to):
        read_to = entry.number
        if entry.dataset in ("", dataset) and (step := _leg_of(entry)) is not None:
            sent[Place(entry.digest or "", entry.run or "", entry.round or 0), step] += 1
    forgotten = ledger.recover(sent, log, read_to)
    if forgotten:
        logger.warning(
            "%s has answers in %d sealed rounds that the record of sums lacks, which was restored"
            " or deleted: this site takes no part in these rounds any more",
            log,
            forgotten,
        )
    return forgotten


def _leg_of(entry: AuditEntry) -> str | None:
    """The leg of a sealed round that the line is the answer to."""
    kind, _, step = entry.kind.partition(".")
    if kind != wire.TRAIN or entry.error is not None:
        return None
    if step in legs.STEPS:
        return step
    has_keys = isinstance(entry.figures, dict) and entry.figures.get("sealed") is not None
    return TRAIN if has_keys and not step else None
