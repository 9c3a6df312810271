"""The robustness page: the means over seeds of the cells, and the harm by method and attack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean, median

from scipy import stats

from experiments.cells import Cell, Values
from experiments.experiment import experiment
from experiments.page import Page, bullets, grid, joined, named, page, where
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
    plans,
    run,
    study_of,
)
from experiments.tables import LEVEL, ROUNDED, in_words, mean_and_error

ALONE = "local"  # the method that hears nobody
NOTABLE = 0.02  # log loss; a harm above it is reported even where it is not clear
TITLES = {attack.title: name for name, attack in ATTACKS.items()}


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one attack: what every seed came to."""

    method: str
    attack: str
    figures: Sequence[Values]
    to_absent: Sequence[float]  # log loss minus that without the attacker
    to_alone: Sequence[float]  # and minus that of the user alone
    limit: float  # a difference of more standard errors is clear; nan with a single seed

    @property
    def log_loss(self) -> float:
        """The mean."""
        return fmean(figures["log_loss"] for figures in self.figures)

    @property
    def harmed(self) -> bool:
        """Whether the user would do clearly better had the attacker never answered."""
        return _is_above(self.to_absent, self.limit)

    @property
    def perhaps_harmed(self) -> bool:
        """Whether the harm is notable in the mean but not clear."""
        return fmean(self.to_absent) > NOTABLE and not self.harmed

    @property
    def below_alone(self) -> bool:
        """Whether the user would do clearly better without anybody."""
        return _is_above(self.to_alone, self.limit)


def _is_above(apart: Sequence[float], limit: float) -> bool:
    """Return if the mean is that many standard errors above 0; never with a single seed."""
    if len(apart) < 2:
        return False
    mean, error = mean_and_error(apart)
    return mean > limit * max(error, ROUNDED)


@dataclass(frozen=True, slots=True)
class Summary:
    """One study: a row for each method and attack."""

    study: str
    seeds: Sequence[int]
    rows: Mapping[tuple[str, str], Row]

    @property
    def methods(self) -> list[str]:
        """Those that were run."""
        return list(dict.fromkeys(method for method, _ in self.rows))


def summarise(study: str, cells: Mapping[str, Cell]) -> Summary:
    """From the seeds with a cell of every method that has any, and of the user alone.

    A method without a cell, as one that was just added, is left out.
    """
    found: dict[int, dict[str, Values]] = {}  # by seed and method: figures by attack
    for cell in where(cells, study=study):
        (method,) = cell.plan.config["arm"]
        found.setdefault(cell.plan.config["seed"], {})[method] = cell.figures
    methods = {ALONE}.union(*found.values())
    complete = {seed: of for seed, of in sorted(found.items()) if of.keys() == methods}
    return Summary(study, list(complete), rows(list(complete.values())))


def rows(by_seed: Sequence[Mapping[str, Values]]) -> dict[tuple[str, str], Row]:
    """Return one row for each method and attack, of every seed's figures."""
    found = [
        (method, attack)
        for method, by_attack in (by_seed[0].items() if by_seed else ())
        for attack in by_attack
    ]
    limit = clear_limit(len(by_seed), comparisons=2 * len(found))  # harmed, and worse than alone

    def losses(method: str, attack: str) -> list[float]:
        return [seed[method][attack]["log_loss"] for seed in by_seed]

    def apart(row: tuple[str, str], reference: tuple[str, str]) -> list[float]:
        pairs = zip(losses(*row), losses(*reference), strict=True)
        return [ours - theirs for ours, theirs in pairs]

    return {
        (method, attack): Row(
            method,
            attack,
            [seed[method][attack] for seed in by_seed],
            to_absent=apart((method, attack), (method, ABSENT)),
            to_alone=apart((method, attack), (ALONE, NO_ATTACK)),
            limit=limit,
        )
        for method, attack in found
    }


def clear_limit(seeds: int, *, comparisons: int) -> float:
    """By how many standard errors a mean over seeds has to be above 0, Student's one-sided test.

    At `LEVEL` for all comparisons together (Bonferroni); nan with a single seed.
    """
    return float(stats.t.ppf(1 - LEVEL / comparisons, seeds - 1)) if seeds > 1 else nan


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw who fails under which attack, and all figures behind that."""
    found = [summarise(study, cells) for study in ATTACKERS]
    return page(
        "robustness",
        eroding=ERODING,
        recommended=RECOMMENDED,
        alone=ALONE,
        claim_only=CLAIM_ONLY,
        level=f"{100 * LEVEL:g}",
        notable=f"{NOTABLE:g}",
        attacks=bullets(f"{attack.title}: {attack.explanation}" for attack in ATTACKS.values()),
        studies=[_of_study(summary) for summary in found if summary.seeds],
    )


def _of_study(summary: Summary) -> Mapping[str, str]:
    def over_seeds(figure: str) -> str:
        return _by_method(summary, lambda row: in_words([of[figure] for of in row.figures]))

    return {
        "name": summary.study,
        "attacker": ATTACKERS[summary.study],
        "about": _about(summary),
        "failures": _failures(summary),
        "log_loss": over_seeds("log_loss"),
        "accuracy": over_seeds("accuracy"),
        "erosion": joined(_erosion(summary, method) for method in (ERODING, RECOMMENDED)),
        "weights": _by_method(summary, _weight),
    }


def _about(summary: Summary) -> str:
    study = one_arm_study(summary.study, ALONE, summary.seeds[0])
    hospitals, alone = len(study.hospitals), summary.rows[ALONE, NO_ATTACK]
    loss, accuracy = (
        in_words([figures[name] for figures in alone.figures]) for name in ("log_loss", "accuracy")
    )
    unfit = ", ".join(method for method in METHODS if method not in summary.methods)
    passes = (
        "With a single seed none is called clear."
        if len(summary.seeds) < 2
        else f"Of {2 * len(summary.rows)} comparisons, one passes where the mean is more than"
        f" {alone.limit:.3g} standard errors above 0."
    )
    return (
        f"{len(summary.seeds)} seeds, {study.rounds} rounds, {hospitals} hospitals; attacker:"
        f" `{ATTACKERS[summary.study]}`. {passes} Alone, the user has a log loss of {loss} and an"
        f" accuracy of {accuracy}. Krum and Multi-Krum are made for at most"
        f" {max(0, hospitals - 3) // 2} harmful among {hospitals}."
        + (f" These methods do not fit the study: {unfit}." if unfit else "")
    )


def _failures(summary: Summary) -> str:
    columns: dict[str, Callable[[Row], Sequence[float] | None]] = {
        "harmed": lambda row: row.to_absent if row.harmed else None,
        "unclear": lambda row: row.to_absent if row.perhaps_harmed else None,
        "worse than alone": lambda row: row.to_alone if row.below_alone else None,
    }

    def entry(attack: str, harm: Callable[[Row], Sequence[float] | None]) -> str:
        found = [
            f"{row.method} ({fmean(apart):+.3f})"
            for row in summary.rows.values()
            if row.attack == attack and (apart := harm(row)) is not None
        ]
        return ", ".join(found) or "none"

    return grid("", TITLES, columns, entry)


def _by_method(summary: Summary, of: Callable[[Row], str]) -> str:
    """Return a table of an entry for every method and attack."""

    def entry(method: str, attack: str) -> str:
        row = summary.rows.get((method, attack))
        return of(row) if row else ""

    return grid("", named(summary.methods), TITLES, entry)


def _weight(row: Row) -> str:
    known = [figures["weight"] for figures in row.figures if figures["weight"] is not None]
    return f"{median(known):.2g}" if known else "–"


def _erosion(summary: Summary, method: str) -> str:
    if method not in summary.methods:
        return ""
    attacker = ATTACKERS[summary.study]
    (peers,) = {tuple(of["zero_rounds"]) for of in summary.rows[method, NO_ATTACK].figures}
    columns = {f"{attacker} (attacker)": attacker} | {p: p for p in peers if p != attacker}

    def entry(attack: str, peer: str) -> str:
        if (method, attack) not in summary.rows or (peer == attacker and attack == ABSENT):
            return ""
        figures = summary.rows[method, attack].figures
        ended = [number for of in figures if (number := of["zero_rounds"][peer]) is not None]
        seeds = f"{len(ended)} of {len(figures)}"
        if not ended:
            return f"never ({seeds})"
        return f"{median(ended):g} ({min(ended)} to {max(ended)}; {seeds})"

    return grid(f"`{method}`", TITLES, columns, entry)


EXPERIMENT = experiment(
    "robustness",
    plans,
    run,
    draw,
    study_of,
)
