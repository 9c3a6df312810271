"""Means over seeds of the robustness cells, and the user's harm per method and attack."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import median

from scipy import stats

from erosion.experiments.cells import Cell
from erosion.experiments.papers.robustness.attacks import ABSENT, NO_ATTACK
from erosion.experiments.papers.robustness.grid import ATTACKERS, one_arm_study
from erosion.experiments.tables import LEVEL, ROUNDED, mean_and_error

ALONE = "local"  # the method that hears nobody
NOTABLE = 0.02  # log loss; a harm above it is told even where it is not clear


@dataclass(frozen=True, slots=True)
class Outcome:
    """How well the user's model does under one attack, and what the attacker's update counted."""

    method: str
    attack: str
    seed: int
    log_loss: float
    accuracy: float
    weight: float | None  # the attacker's at the end, relative to the user's; None: none known
    zero_rounds: Mapping[str, int | None]  # peer -> first round at weight 0; Weight Erosion only


@dataclass(frozen=True, slots=True)
class Mean:
    """Over seeds."""

    mean: float
    error: float  # standard error; nan with a single seed

    def is_above(self, limit: float) -> bool:
        """Whether it is by more than so many standard errors above 0; never with a single seed."""
        return not isnan(self.error) and self.mean > limit * max(self.error, ROUNDED)


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
    limit: float  # a difference of more standard errors is clear; nan with a single seed
    weight: float | None  # median of the attacker's weight at the end
    zero_rounds: Mapping[str, Zero]  # by peer; of Weight Erosion only

    @property
    def harmed(self) -> bool:
        """Whether the user would do clearly better had the attacker never answered."""
        return self.to_absent.is_above(self.limit)

    @property
    def perhaps_harmed(self) -> bool:
        """Whether the harm is notable in the mean but not clear."""
        return self.to_absent.mean > NOTABLE and not self.harmed

    @property
    def below_alone(self) -> bool:
        """Whether the user would do clearly better without anybody."""
        return self.to_alone.is_above(self.limit)


@dataclass(frozen=True, slots=True)
class Summary:
    """One study."""

    study: str
    attacker: str
    seeds: Sequence[int]
    rounds: int
    hospitals: Sequence[str]
    rows: Sequence[Row]

    def row(self, method: str, attack: str) -> Row | None:
        """That row, where the method was put under that attack."""
        return next((r for r in self.rows if (r.method, r.attack) == (method, attack)), None)


def summarise(name: str, cells: Iterable[Cell]) -> Summary | None:
    """From the seeds with a cell of every method that has any, and of the user alone.

    None where there is no such seed. A method without a cell, as one that was just added, is left
    out.
    """
    found: dict[int, dict[str, Cell]] = {}  # by seed and method
    for cell in cells:
        if cell.plan.config["study"] == name:
            (method,) = cell.plan.config["arm"]
            found.setdefault(cell.plan.config["seed"], {})[method] = cell
    methods = {ALONE}.union(*found.values())
    seeds = sorted(seed for seed, by_method in found.items() if by_method.keys() == methods)
    if not seeds:
        return None
    study = one_arm_study(name, ALONE, seeds[0])
    outcomes = [
        Outcome(method, attack, seed, **figures)
        for seed in seeds
        for method, cell in found[seed].items()
        for attack, figures in cell.figures.items()
    ]
    return Summary(name, ATTACKERS[name], seeds, study.rounds, study.hospitals, rows(outcomes))


def rows(outcomes: Iterable[Outcome]) -> list[Row]:
    """One row for each method and attack, in their order; every one must have all seeds."""
    groups: dict[tuple[str, str], dict[int, Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.method, outcome.attack), {})[outcome.seed] = outcome

    def apart(group: Mapping[int, Outcome], method: str, attack: str) -> Mean:
        reference = groups[method, attack]
        return mean([one.log_loss - reference[seed].log_loss for seed, one in group.items()])

    seeds = max((len(group) for group in groups.values()), default=0)
    limit = clear_limit(seeds, comparisons=2 * len(groups))  # harmed, and worse than alone
    return [
        Row(
            limit=limit,
            method=method,
            attack=attack,
            log_loss=mean([one.log_loss for one in group.values()]),
            accuracy=mean([one.accuracy for one in group.values()]),
            to_absent=apart(group, method, ABSENT),
            to_honest=apart(group, method, NO_ATTACK),
            to_alone=apart(group, ALONE, NO_ATTACK),
            weight=_median([one.weight for one in group.values() if one.weight is not None]),
            zero_rounds=_zero_rounds(list(group.values())),
        )
        for (method, attack), group in groups.items()
    ]


def clear_limit(seeds: int, *, comparisons: int) -> float:
    """By how many standard errors a mean over seeds has to be above 0, Student's one-sided test.

    At `LEVEL` for all comparisons together (Bonferroni); nan with a single seed.
    """
    return float(stats.t.ppf(1 - LEVEL / comparisons, seeds - 1)) if seeds > 1 else float("nan")


def mean(values: Sequence[float]) -> Mean:
    """Mean and standard error."""
    if len(values) == 1:
        return Mean(values[0], float("nan"))
    return Mean(*mean_and_error(values))


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _zero_rounds(group: Sequence[Outcome]) -> dict[str, Zero]:
    found = {}
    for peer in group[0].zero_rounds:
        eroded = [r for one in group if (r := one.zero_rounds[peer]) is not None]
        found[peer] = Zero(
            seeds=len(eroded),
            of=len(group),
            first=min(eroded, default=None),
            middle=_median(eroded),
            last=max(eroded, default=None),
        )
    return found
