"""What hospitals did wrong in a sealed round, and whom rounds go on without because of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from erosion.common.aggregation.cohort import HospitalName

MOST_SPOILT = 2  # in a row; then a hospital is not asked any more
NOBODY = ""  # whose fault it is that too few have weight, though all are there


class Skipped(Exception):  # noqa: N818 - ends the round, not the run
    """The round gives no step, and why."""

    def __init__(self, why: str, spoilt_by: Collection[HospitalName] = (), times: int = 1) -> None:
        """`spoilt_by`: without whom there would have been one; `times`: how much that counts."""
        super().__init__(why)
        self.spoilt_by, self.times = spoilt_by, times


@dataclass(slots=True)
class Faults:
    """Of one round, while it goes on."""

    rejected: dict[HospitalName, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """What did no harm."""
        self.notes.append(what)

    def reject(self, name: HospitalName, why: str) -> None:
        """The first reason counts."""
        self.rejected.setdefault(name, why)


Spoilt = Mapping[HospitalName, int]  # rounds in a row, by whom


def after_skipping(spoilt: Spoilt, why: Skipped) -> dict[HospitalName, int]:
    """With one round more."""
    return {**spoilt, **{name: spoilt.get(name, 0) + why.times for name in why.spoilt_by}}


def after_success(spoilt: Spoilt) -> dict[HospitalName, int]:
    """Only those who are not asked any more."""
    return {name: times for name, times in spoilt.items() if times >= MOST_SPOILT}
