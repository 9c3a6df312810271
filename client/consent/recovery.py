"""Holds the book of answers against the log of what was sent, when a site starts.

A book that was restored from a backup has forgotten answers, and a coordinator could ask for them
again with other parameters. The log, which is another file, still has them: they are counted as
used up, and not given twice.
"""

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.client.audit.entries_since import entries_since
from erosion.client.consent.derivation import derived
from erosion.client.consent.store import FINAL_FIGURES, ConsentStore, LoggedAnswer, place
from erosion.common.algorithms.base import TRAIN
from erosion.common.errors import ErosionError
from erosion.common.protocol import wire
from erosion.common.study.study import study_from_json

logger = logging.getLogger("erosion.site")


def recover_answers(store: ConsentStore, coordinator: str, dataset: str, log: Path) -> int:
    """How many answers the log at `log` has and the book lacked. Raises SiteError."""
    read_to = store.log_was_read_to(log)
    sent: set[LoggedAnswer] = set()
    for entry in entries_since(log, read_to):
        read_to = entry.number
        if entry.dataset in ("", dataset) and (answer := _answer_of(entry)) is not None:
            sent.add(answer)
    lacking = sent - store.logged_answers() if sent else set()
    store.recover(coordinator, dataset, lacking, log, read_to, _came_of(store, lacking))
    if lacking:
        logger.warning(
            "%s has %d answers that %s lacks, which was restored or replaced: they are counted as"
            " used up, and their runs cannot be gone on with",
            log,
            len(lacking),
            store.path,
        )
    return len(lacking)


def _came_of(store: ConsentStore, answers: Collection[LoggedAnswer]) -> dict[str, str]:
    """The approved study of each variant, as far as it or its run's trials tell.

    A study with chosen settings is known by its run; asked for again, it is known in any case.
    """
    if not answers:
        return {}
    origins: dict[str, str] = {}
    for entry in store.studies("approved"):
        with suppress(ErosionError):  # of another version, which nobody can ask for any more
            for study in derived(study_from_json(entry.content)):
                origins.setdefault(study.digest, entry.digest)
    runs = {logged.run: origins[logged.variant] for logged in answers if logged.variant in origins}
    of_runs = {logged.variant: runs[logged.run] for logged in answers if logged.run in runs}
    return of_runs | {v: origins[v] for v in of_runs if v in origins}


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
