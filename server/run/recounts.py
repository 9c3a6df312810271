"""Hospitals that came back in the middle of a run with other numbers of patients."""

from collections.abc import Iterable

from erosion.common.rounds.records import RoundRecord
from erosion.common.settings.base import Settings


class Recount(Settings):
    """A hospital that introduced itself anew with another number: its data were changed."""

    hospital: str
    arm: str
    round: int  # of the arm, the first with the new number
    before: int  # training samples, rounded as the hospital tells them
    after: int


def recounts(records: Iterable[RoundRecord]) -> tuple[Recount, ...]:
    """Every change, as rounds' records have it; `records` in the order in which they happened."""
    told: dict[str, int] = {}
    found = []
    for record in records:
        for name, entry in record.hospitals.items():
            if (now := entry.described_samples) is None:  # it was away, or the journal is older
                continue
            if (before := told.get(name, now)) != now:
                found.append(
                    Recount(
                        hospital=name,
                        arm=record.arm,
                        round=record.round,
                        before=before,
                        after=now,
                    )
                )
            told[name] = now
    return tuple(found)
