"""Holds the book of answers against the log of what was sent, when a site starts.

A book that was restored from a backup has forgotten answers, and a coordinator could ask for them
again with other parameters. The log, which is another file, still has them: they are counted as
used up, and not given twice.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.client.audit.log_files import full_files, last_line, lines_of
from erosion.client.consent.store import FINAL_FIGURES, ConsentStore, LoggedAnswer
from erosion.common.algorithms.base import TRAIN
from erosion.common.errors import SiteError
from erosion.common.protocol import wire

logger = logging.getLogger("erosion.site")


def recover_answers(store: ConsentStore, coordinator: str, dataset: str, log: Path) -> int:
    """How many answers the log at `log` has and the book lacked. Raises SiteError."""
    read_to = store.log_was_read_to()
    sent: set[LoggedAnswer] = set()
    try:
        for entry in entries_since(log, read_to):
            read_to = entry.number
            if (answer := _answer_of(entry)) is not None:
                sent.add(answer)
    except OSError as problem:
        raise SiteError(f"{log} cannot be read: {problem.strerror}. Check its folder.") from None
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


def entries_since(log: Path, number: int) -> Iterator[AuditEntry]:
    """The lines of the log after that number; all of them where another log was begun since."""
    if (_last_number(log) or number) < number:
        number = 0
    files = [*full_files(log), log]
    firsts = [_first_number(file) for file in files]
    for file, following in zip(files, [*firsts[1:], None], strict=True):
        if following is not None and following <= number + 1:
            continue  # all of it was read
        for text, whole in lines_of(file):
            try:
                entry = AuditEntry.model_validate_json(text)
            except ValueError:
                continue  # `erosion log verify` reports it
            if whole and entry.number > number:
                yield entry


def _first_number(file: Path) -> int | None:
    for text, _ in lines_of(file):
        try:
            return AuditEntry.model_validate_json(text).number
        except ValueError:
            return None
    return None


def _last_number(log: Path) -> int | None:
    try:
        return AuditEntry.model_validate_json(last_line(log)).number
    except ValueError:
        return None


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
    return LoggedAnswer(variant, run, entry.arm or "", entry.round or 0, step)
