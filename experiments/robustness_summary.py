"""Means over seeds of the robustness cells, and the user's harm per method and attack."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from erosion.experiments.attacks import ABSENT, NO_ATTACK
from erosion.experiments.robustness_cells import ATTACKERS, Cell, keys, one_arm_study
from erosion.experiments.standard_error import mean_and_error

ALONE = "local"  # the method that hears nobody
CLEAR = 3.0  # a difference of so many standard errors is called clear
NOTABLE = 0.02  # log loss; a harm above it is told even where it is not clear


@dataclass(frozen=True, slots=True)
class Mean:
    """Over seeds."""

    mean: float
    error: float  # standard error; nan with a single seed

    @property
    def clearly_positive(self) -> bool:
        """Above zero by more than `CLEAR` standard errors."""
        return self.mean > CLEAR * self.error


@dataclass(frozen=True, slots=True)
class Zero:
    """When Weight Erosion took a hospital's weight to zero."""

    seeds: int  # in how many seeds it did
    of: int
    first: int | None  # the earliest, middle and latest of those rounds; None: it never did
    middle: float | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one attack."""

    method: str
    attack: str
    log_loss: Mean
    accuracy: Mean
    to_absent: Mean  # log loss minus that of the same method and seed without the attacker
    to_honest: Mean  # and minus that with the attacker honest
    to_alone: Mean  # and minus that of the user alone
    weight: float | None  # median of the attacker's weight at the end
    zero_rounds: Mapping[str, Zero]  # by peer; of weight_erosion only

    @property
    def harmed(self) -> bool:
        """Whether the user would do clearly better had the attacker never answered."""
        return self.to_absent.clearly_positive

    @property
    def perhaps_harmed(self) -> bool:
        """Whether the harm is notable in the mean but not clear."""
        return self.to_absent.mean > NOTABLE and not self.harmed

    @property
    def below_alone(self) -> bool:
        """Whether the user would do clearly better without anybody."""
        return self.to_alone.clearly_positive


@dataclass(frozen=True, slots=True)
class Summary:
    """One study."""

    study: str
    attacker: str
    seeds: Sequence[int]
    rounds: int
    hospitals: Sequence[str]
    commits: Sequence[str]  # of the programs that trained the cells
    rows: Sequence[Row]

    def row(self, method: str, attack: str) -> Row | None:
        """That row, where the method was put under that attack."""
        return next((r for r in self.rows if (r.method, r.attack) == (method, attack)), None)


def summarise(name: str, cells: Iterable[Cell]) -> Summary | None:
    """From the seeds with every cell under the study's present settings, if there are any.

    A method without a single such cell, as one that was just added, is left out.
    """
    by_key = {cell.key: cell for cell in cells}
    present = {
        seed: [key for key, _ in keys(name, [seed])] for seed in sorted({k.seed for k in by_key})
    }
    measured = {key.method for wanted in present.values() for key in wanted if key in by_key}
    seeds: list[int] = []
    complete: list[Cell] = []
    for seed, every_key in present.items():
        wanted = [key for key in every_key if key.method in measured | {ALONE}]
        if all(key in by_key for key in wanted):
            seeds.append(seed)
            complete += [by_key[key] for key in wanted]
    if not seeds:
        return None
    study = one_arm_study(name, ALONE, seeds[0])
    commits = sorted({cell.commit for cell in complete})
    return Summary(
        name, ATTACKERS[name], seeds, study.rounds, study.hospitals, commits, rows(complete)
    )


def rows(cells: Iterable[Cell]) -> list[Row]:
    """One row for each method and attack, in their order; every one must have all seeds."""
    groups: dict[tuple[str, str], dict[int, Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.method, cell.attack), {})[cell.seed] = cell

    def apart(group: Mapping[int, Cell], method: str, attack: str) -> Mean:
        reference = groups[method, attack]
        return mean([cell.log_loss - reference[seed].log_loss for seed, cell in group.items()])

    return [
        Row(
            method=method,
            attack=attack,
            log_loss=mean([cell.log_loss for cell in group.values()]),
            accuracy=mean([cell.accuracy for cell in group.values()]),
            to_absent=apart(group, method, ABSENT),
            to_honest=apart(group, method, NO_ATTACK),
            to_alone=apart(group, ALONE, NO_ATTACK),
            weight=_median([c.weight for c in group.values() if c.weight is not None]),
            zero_rounds=_zero_rounds(list(group.values())),
        )
        for (method, attack), group in groups.items()
    ]


def mean(values: Sequence[float]) -> Mean:
    """Mean and standard error."""
    if len(values) == 1:
        return Mean(values[0], float("nan"))
    return Mean(*mean_and_error(values))


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _zero_rounds(group: Sequence[Cell]) -> dict[str, Zero]:
    found = {}
    for peer in group[0].zero_rounds:
        eroded = [r for cell in group if (r := cell.zero_rounds[peer]) is not None]
        found[peer] = Zero(
            seeds=len(eroded),
            of=len(group),
            first=min(eroded, default=None),
            middle=_median(eroded),
            last=max(eroded, default=None),
        )
    return found
