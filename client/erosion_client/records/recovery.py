"""Compares a hospital's records with the log of what was sent, when a site starts.

Records that were restored from a backup, or deleted, lack answers, updates with noise and sealed
sums, and a coordinator could ask for them again with other parameters. The log, which is another
file, still has them: they count as used up and paid for, and are not given twice.
"""

import logging
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from erosion_client.consent.approvals import derived
from erosion_client.records.answers import FINAL_FIGURES, Answer, place
from erosion_client.records.ledgers import Release, RoundPlace
from erosion_client.records.records import Records
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import ErosionError
from erosion_common.formats.sent_log import (
    AuditEntry,
    entries_since,
    has_head,
    head_in_status,
    last_number,
)
from erosion_common.protocol import wire
from erosion_common.sealed import phases
from erosion_common.study.privacy import strength_of
from erosion_common.study.study import study_from_json
from erosion_common.support.status import STATUS_NAME

logger = logging.getLogger("erosion.site")


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the records lacked and the log has."""

    answers: int
    releases: int  # updates with noise
    sealed_rounds: int  # rounds with a lost answer


def recover(records: Records, coordinator: str, dataset: str, log: Path) -> Recovered:
    """Add what the log has since it was last read. Raises SiteError."""
    is_known, read_to = records.log_was_read_to(log)
    last, asked_by = last_number(log), {each for each, _ in records.answers.pairs()}
    is_older = last < read_to or (is_known and not last and coordinator in asked_by)
    if is_older or not _has_last_head(log):
        logger.warning(
            "%s ends with line %d, and %s knows of more that was sent: the log was restored from an"
            " older backup, damaged or lost. Put the newer one back; else tell the coordinator,"
            " which has the hash of a later line. Budgets stay as they are",
            log,
            last,
            records.path if is_older else log.parent / STATUS_NAME,
        )
    for forgotten in records.forgotten(log.parent / STATUS_NAME):
        logger.warning("%s", forgotten)
    answers: dict[str, set[Answer]] = {}  # by data set
    releases: list[Release] = []
    sealed: Counter[tuple[RoundPlace, str]] = Counter()
    for entry in entries_since(log, read_to):
        read_to = entry.number
        if entry.error is not None:
            continue
        of = entry.dataset or dataset
        for answer in _answer_of(entry):
            answers.setdefault(of, set()).add(answer)
        releases += _release_of(entry, of)
        sealed.update(_leg_of(entry))
    with records.transaction():
        known = records.answers.keys() if answers else set()
        num_answers = 0
        for of, each in answers.items():
            lacking = {answer for answer in each if answer.key not in known}
            records.answers.recover((coordinator, of), _with_origins(records, lacking))
            num_answers += len(lacking)
        recovered = Recovered(
            answers=num_answers,
            releases=records.privacy.recover(releases),
            sealed_rounds=records.sums.recover(sealed),
        )
        # A second kit's log may stay empty: that the coordinator asked says nothing of this one.
        if read_to or coordinator not in asked_by:
            records.note_log_read(log, read_to)
    if recovered != Recovered(0, 0, 0):
        logger.warning(
            "%s has %d answers, %d updates with noise and answers in %d sealed rounds that %s"
            " lacks, which was restored or replaced: they count as used up and paid for, and are"
            " given no second time",
            log,
            recovered.answers,
            recovered.releases,
            recovered.sealed_rounds,
            records.path,
        )
    return recovered


def _has_last_head(log: Path) -> bool:
    """Return whether the log has the line that this site's last program said was the last."""
    with suppress(ErosionError, OSError):  # no status that can be read says nothing
        head = head_in_status(log)
        return head is None or has_head(log, head)
    return True


def _with_origins(records: Records, answers: Collection[Answer]) -> list[Answer]:
    """Set the approved study of each answer, as far as its variant or its run's trials show it."""
    if not answers:
        return []
    origins: dict[str, str] = {}
    for entry in records.studies.all("approved"):
        with suppress(ErosionError):  # of another version, which nobody can ask for any more
            for study in derived(study_from_json(entry.content)):
                origins.setdefault(study.digest, entry.digest)
    runs = {each.run: origins[each.variant] for each in answers if each.variant in origins}
    return [
        replace(each, study=origins.get(each.variant) or runs.get(each.run) or each.variant)
        for each in answers
    ]


# Answered only with keys that a program has in memory, and after a phase that is noted.
_FROM_MEMORY = {phases.MASKED, phases.UNMASK}


def _answer_of(entry: AuditEntry) -> list[Answer]:
    """Return the answer that the line logs; None for one that no budget counts."""
    kind, _, step = entry.kind.partition(".")
    lacks_the_study = isinstance(entry.figures, dict) and "unknown_study" in entry.figures
    if kind not in (wire.TRAIN, wire.EVALUATE) or lacks_the_study or step in _FROM_MEMORY:
        return []
    variant, run = entry.digest or "", entry.run or ""
    if entry.kind == wire.EVALUATE:
        return [Answer(variant, run, variant, "", 0, FINAL_FIGURES)]
    step = TRAIN if step in ("", TRAIN) else place(step, entry.exchange or 0)
    return [Answer(variant, run, variant, entry.arm or "", entry.round or 0, step)]


def _release_of(entry: AuditEntry, dataset: str) -> list[Release]:
    """Return the update with noise that the line logs; a method's own step may have one, too."""
    noise = entry.figures.get("noise_multiplier") if isinstance(entry.figures, dict) else None
    if entry.kind.partition(".")[0] != wire.TRAIN or not isinstance(noise, int | float):
        return []
    where = dataset, entry.digest or "", entry.run or "", entry.arm or "", entry.round or 0
    return [Release(*where, strength_of(noise))]


def _leg_of(entry: AuditEntry) -> list[tuple[RoundPlace, str]]:
    """Return the phase of a sealed round that the line logs, where it is one that is noted."""
    kind, _, step = entry.kind.partition(".")
    has_keys = isinstance(entry.figures, dict) and entry.figures.get("sealed") is not None
    if kind != wire.TRAIN or not (step == phases.DISTANCE or (has_keys and not step)):
        return []
    return [(RoundPlace(entry.digest or "", entry.run or "", entry.round or 0), step or TRAIN)]
