"""Holds the book of answers against the log of what was sent, when a site starts.

A book that was restored from a backup has forgotten answers, and a coordinator could ask for them
again with other parameters. The log, which is another file, still has them: they are counted as
used up, and not given twice.
"""

import logging
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.client.audit.entries_since import entries_since
from erosion.client.consent.store import FINAL_FIGURES, ConsentStore, LoggedAnswer, place
from erosion.common.algorithms.base import TRAIN
from erosion.common.protocol import wire

logger = logging.getLogger("erosion.site")


def recover_answers(store: ConsentStore, coordinator: str, dataset: str, log: Path) -> int:
    """How many answers the log at `log` has and the book lacked. Raises SiteError."""
    read_to = store.log_was_read_to()
    sent: set[LoggedAnswer] = set()
    for entry in entries_since(log, read_to):
        read_to = entry.number
        if (answer := _answer_of(entry)) is not None:
            sent.add(answer)
    lacking = sent - store.logged_answers() if sent else set()
    store.recover(coordinator, dataset, lacking, read_to)
    if lacking:
        logger.warning(
            "%s has %d answers that %s lacks, which was restored or replaced: they are counted as"
            " used up, and their runs cannot be gone on with",
            log,
            len(lacking),
            store.path,
        )
    return len(lacking)


def _answer_of(entry: AuditEntry) -> LoggedAnswer | None:
    """What the line is the answer to; None for an error, and for what no budget counts."""
    said_it_lacks_the_study = isinstance(entry.figures, dict) and "unknown_study" in entry.figures
    if entry.error is not None or said_it_lacks_the_study:
        return None
    variant, run = entry.digest or "", entry.run or ""
    if entry.kind == wire.EVALUATE:
        return LoggedAnswer(variant, run, "", 0, FINAL_FIGURES)
    kind, _, step = entry.kind.partition(".")
    if kind != wire.TRAIN:
        return None
    step = step or TRAIN
    if step != TRAIN and entry.exchange is not None:
        step = place(step, entry.exchange)
    return LoggedAnswer(variant, run, entry.arm or "", entry.round or 0, step)
