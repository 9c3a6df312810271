"""The robustness page: the means over seeds of the cells, and the harm by method and attack."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import median

from scipy import stats

from experiments.cells import Cell
from experiments.experiment import Page
from experiments.papers.robustness import (
    ABSENT,
    ATTACKERS,
    ATTACKS,
    CLAIM_ONLY,
    ERODING,
    METHODS,
    NO_ATTACK,
    RECOMMENDED,
    one_arm_study,
)
from experiments.tables import LEVEL, ROUNDED, mean_and_error

ALONE = "local"  # the method that hears nobody
NOTABLE = 0.02  # log loss; a harm above it is reported even where it is not clear


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
        """Return if it is that many standard errors above 0; never with a single seed."""
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
    """Return one row for each method and attack, in their order; every one must have all seeds."""
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


INTRODUCTION = f"""\
# One harmful hospital

What happens to the user's model when one of the other hospitals does harm, for every method that a
study can name. The studies are those that come with the program; every method runs with its
defaults, which for `{ERODING}` are those of its paper: `{RECOMMENDED}` has
`preset = "recommended"`. The seed decides the training and the user's test patients (in
breast-cancer also which patient is at which hospital), so the standard errors are about such
splits, not about other patients.

In breast-cancer the attacker is `miscoded`: the study has its labels the wrong way round. Here
its labels are put right unless the attack is the label flip, so without an attack it is an honest
hospital with the user's own population. In heart-disease it is `hungary`, the peer with the most
patients, which methods that weight by patients trust most.

Three references stand next to the attacks: no attack; the attacker absent, which is what a perfect
defence would leave; and the method `{ALONE}`, which hears nobody. A user is called harmed where its
log loss is above that with the attacker absent, and worse than alone where it is above that of
`{ALONE}`, by Student's one-sided test of the paired differences over the seeds, at
{100 * LEVEL:g} % for all comparisons of a study together (Bonferroni). With few seeds hardly
anything passes it: not being called harmed is no proof of safety. A mean harm of more than
{NOTABLE:g} that does not pass is listed as unclear. ± is one standard error over the seeds. How
accurate it is to name the commonest class stands in
[which rule wins](../which-rule/README.md).

The attacker hears all updates of the round before it sends its own. What a method sends with
the update (SCAFFOLD's control variate, FedLin's gradient, the noise of `{CLAIM_ONLY}`) stays
honest, except with the free rider and the claimed noise. Nobody lies about its number of patients,
to which methods that weight by it would be open; and neither study sets
`federation.max_update_norm`, which rejects long updates.
"""


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw who fails under which attack, and all figures behind that."""
    found = (summarise(name, cells.values()) for name in ATTACKERS)
    text = page([summary for summary in found if summary is not None])
    return Page(text)


def page(summaries: Sequence[Summary]) -> str:
    """Return the tables, as Markdown."""
    attacks = [f"- {attack.title}: {attack.explanation}" for attack in ATTACKS.values()]
    parts = [INTRODUCTION, "The attacker ...\n", "\n".join(attacks) + "\n"]
    return "\n".join([*parts, *(_of_study(summary) for summary in summaries)])


def _of_study(summary: Summary) -> str:
    return "\n\n".join(
        [
            f"## {summary.study}",
            _about(summary),
            "### Who fails",
            _failures(summary),
            "### Log loss of the user",
            _metric(summary, lambda row: row.log_loss),
            "### Accuracy of the user",
            _metric(summary, lambda row: row.accuracy),
            "### When Weight Erosion takes a weight to zero",
            "The median round over the seeds in which the weight reached zero, the earliest and\n"
            "the latest, and how many seeds those are. A weight of zero never rises again.",
            *(_erosion(summary, method) for method in _eroding(summary)),
            "### The attacker's weight at the end",
            "Relative to the user's own update, which counts 1 (or, where a rule leaves that out,\n"
            "to the largest); the median over the seeds, – where none is known. Coordinate rules\n"
            "say for how much of the model a hospital's value was used.",
            _weights(summary),
            "",
        ]
    )


def _about(summary: Summary) -> str:
    alone, num_hospitals = _row(summary, ALONE, NO_ATTACK), len(summary.hospitals)
    unfit = [method for method in METHODS if method not in _methods(summary)]
    limit = summary.rows[0].limit
    passes = (
        "With a single seed none is called clear."
        if isnan(limit)
        else f"Of {2 * len(summary.rows)} comparisons, one passes where the mean is more than"
        f" {limit:.3g} standard errors above 0."
    )
    left_out = f"\nThese methods do not fit the study: {', '.join(unfit)}." if unfit else ""
    return (
        f"{len(summary.seeds)} seeds, {summary.rounds} rounds, {num_hospitals} hospitals; attacker:"
        f" `{summary.attacker}`.\n{passes}\nAlone, the user has a log loss of"
        f" {_plus_minus(alone.log_loss)} and an accuracy of"
        f" {_plus_minus(alone.accuracy)}.\nKrum and Multi-Krum are made for at most"
        f" {max(0, num_hospitals - 3) // 2} harmful among {num_hospitals}."
        f"{left_out}"
    )


def _failures(summary: Summary) -> str:
    lines = []
    for name, attack in ATTACKS.items():
        found = [row for row in summary.rows if row.attack == name]
        lines.append(
            [
                attack.title,
                _named((r.method, r.to_absent) for r in found if r.harmed),
                _named((r.method, r.to_absent) for r in found if r.perhaps_harmed),
                _named((r.method, r.to_alone) for r in found if r.below_alone),
            ]
        )
    return (
        "In brackets: how much the log loss is above that with the attacker absent, and in the last"
        "\ncolumn above that of the user alone. Without an attack, harm means that an honest"
        f"\n`{summary.attacker}` makes the model worse.\n\n"
        + _table(["", "harmed", "unclear", "worse than alone"], lines)
    )


def _named(found: Iterable[tuple[str, Mean]]) -> str:
    return ", ".join(f"{method} ({apart.mean:+.3f})" for method, apart in found) or "none"


def _metric(summary: Summary, of: Callable[[Row], Mean]) -> str:
    lines = []
    for method in _methods(summary):
        found = (summary.row(method, attack) for attack in ATTACKS)
        lines.append([method, *(_plus_minus(of(row)) if row else "" for row in found)])
    return _table(["", *(attack.title for attack in ATTACKS.values())], lines)


def _eroding(summary: Summary) -> list[str]:
    return [method for method in (ERODING, RECOMMENDED) if method in _methods(summary)]


def _erosion(summary: Summary, method: str) -> str:
    names = [*_row(summary, method, NO_ATTACK).zero_rounds]
    names = [summary.attacker, *(name for name in names if name != summary.attacker)]
    lines = []
    for name, attack in ATTACKS.items():
        if row := summary.row(method, name):
            cells = [_zero(row.zero_rounds[peer]) for peer in names]
            lines.append([attack.title, *(cells if attack.answers else ["", *cells[1:]])])
    return _table([f"`{method}`", f"{summary.attacker} (attacker)", *names[1:]], lines)


def _weights(summary: Summary) -> str:
    lines = []
    for method in _methods(summary):
        found = [summary.row(method, attack) for attack in ATTACKS]
        lines.append([method, *("" if row is None else _weight(row.weight) for row in found)])
    return _table(["", *(attack.title for attack in ATTACKS.values())], lines)


def _weight(weight: float | None) -> str:
    return "–" if weight is None else f"{weight:.2g}"


def _zero(zero: Zero) -> str:
    if zero.middle is None:
        return f"never (0 of {zero.of})"
    return f"{zero.middle:g} ({zero.first} to {zero.last}; {zero.seeds} of {zero.of})"


def _plus_minus(value: Mean) -> str:
    return f"{value.mean:.3f}" + ("" if isnan(value.error) else f" ± {value.error:.3f}")


def _methods(summary: Summary) -> list[str]:
    return list(dict.fromkeys(row.method for row in summary.rows))


def _row(summary: Summary, method: str, attack: str) -> Row:
    row = summary.row(method, attack)
    assert row is not None, f"{summary.study} has no {method} under {attack}"
    return row


def _table(header: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    names = list(header)
    drawn = [names, ["---"] * len(names), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in drawn)
