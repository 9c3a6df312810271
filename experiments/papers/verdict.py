"""The verdict, on made-up predictions and whole studies: false claims, and power."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from erosion_common.protocol.messages import CROSS_FITTED_SIGNIFICANCE, SIGNIFICANCE
from experiments.cells import Cell, CellPlan, Values
from experiments.experiment import experiment
from experiments.page import Page, add_legend, grid, joined, named, page, picture, table
from experiments.papers import verdict_refits, verdict_simulated
from experiments.papers.verdict_refits import (
    HOLD_OUT,
    PAIRS,
    POPULATIONS,
    SCHEMES,
    TRUTH,
    TRUTH_OF_TRAINING_PART,
    Floats,
)
from experiments.papers.verdict_simulated import GAINS, KINDS, NULLS, RULES
from experiments.tables import one_or_range, wilson

TEST_PATIENTS = (16, 30, 50, 60, 100, 104, 200, 300)
SIMULATED = 2000  # studies of a cell
PATIENTS = (40, 80, 160, 320)  # of the user's
SCENARIOS = ("alike", "wrong")  # the others' patients
REFITTED = 100  # studies of a cell
SEEDS = range(3)  # of cells that are pooled
LEVELS = (0.02, 0.01, 0.005, 0.003, 0.002)
ALLOWED = 0.05
PICTURE = "verdict.svg"
*DIFFERING, ALIKE = PAIRS
NEARLY_EQUAL = DIFFERING[1]
HARDLY = 0.003  # of log loss, either way: the mean over a cell's studies
EVERY_SCHEME = (HOLD_OUT, *SCHEMES)

Simulated = Mapping[tuple[str, int], Cell]  # by kind and test patients
Pair = tuple[str, str]
Choice = tuple[str, float]  # a scheme, and the level at which it claims


def plans() -> Sequence[CellPlan]:
    """Return every kind of made-up predictions, then every data set."""
    simulated = [
        CellPlan(
            f"simulated-{kind.replace(' ', '-')}-{patients}",
            {"kind": kind, "patients": patients, "studies": SIMULATED, "seed": 0, "version": 1},
        )
        for kind in (*NULLS, *(kind for kind in KINDS if kind not in NULLS))
        for patients in TEST_PATIENTS
    ]
    refitted = [
        CellPlan(
            f"{name}-{scenario}-{patients}" + (f"-{seed}" if seed else ""),
            {
                "data": name,
                "scenario": scenario,
                "patients": patients,
                "studies": REFITTED,
                "seed": seed,
                "version": 2,
            },
        )
        for seed in SEEDS
        for name in POPULATIONS
        for scenario in SCENARIOS
        for patients in PATIENTS
    ]
    return [*simulated, *refitted]


def run(config: Values, data_dir: Path | None) -> Values:
    """Return how many claims each rule makes, or what each study measured."""
    patients, studies, seed = config["patients"], config["studies"], config["seed"]
    if "kind" in config:
        drawn = verdict_simulated.draw(config["kind"], studies, patients, seed)
        claims = {rule: verdict_simulated.claims_of(rule, drawn) for rule in RULES}
        figures: Values = {
            rule: {"first": int((found < 0).sum()), "second": int((found > 0).sum())}
            for rule, found in claims.items()
        }
    else:
        figures = verdict_refits.measure(
            verdict_refits.population(config["data"], data_dir),
            patients,
            config["scenario"],
            studies=studies,
            seed=seed,
        )
    return figures


@dataclass(frozen=True, slots=True)
class Pooled:
    """The cells of one data set, scenario and number of patients, of all seeds together."""

    data: str
    scenario: str
    patients: int
    figures: Mapping[str, Mapping[str, Floats]]  # by pair of arms: each scheme's, study by study

    @property
    def studies(self) -> int:
        """How many there are."""
        return len(next(iter(self.figures.values()))[HOLD_OUT])

    def truth(self, pair: Pair, what: str = TRUTH) -> Floats:
        """Return the true difference of each study: (studies,)."""
        return self.figures[" - ".join(pair)][what]

    def rates(self, pair: Pair, scheme: str, level: float) -> tuple[float, float]:
        """Return the shares of studies with a claim of the right sign, and of the wrong one."""
        p_values = self.figures[" - ".join(pair)][scheme]  # with the sign that is claimed
        true = self.truth(pair, TRUTH_OF_TRAINING_PART if scheme == HOLD_OUT else TRUTH)
        claimed = np.abs(p_values) <= level
        right = claimed & (p_values * true > 0)
        return float(right.mean()), float((claimed & ~right).mean())


def pooled(cells: Mapping[str, Cell]) -> list[Pooled]:
    """Of whole studies, in the order of the first seed's."""
    found: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in cells.values():
        if "data" in (config := cell.plan.config):
            setting = config["data"], config["scenario"], config["patients"]
            found.setdefault(setting, []).append(cell)
    return [
        Pooled(
            *setting,
            {
                pair: {
                    scheme: np.concatenate([cell.figures[pair][scheme] for cell in of])
                    for scheme in by_scheme
                }
                for pair, by_scheme in of[0].figures.items()
            },
        )
        for setting, of in found.items()
    ]


def worst_and_mean(
    cells: Sequence[Pooled], scheme: str, level: float, pair: Pair | None = None
) -> tuple[float, float]:
    """Largest share of wrong claims in any cell, and mean share of right ones, over pairs."""
    pairs = [pair] if pair else DIFFERING
    right, wrong = zip(
        *(cell.rates(one, scheme, level) for cell in cells for one in pairs), strict=True
    )
    return max(wrong), fmean(right)


def declared_level(scheme: str) -> float:
    """At which the program claims a difference."""
    return SIGNIFICANCE if scheme == HOLD_OUT else CROSS_FITTED_SIGNIFICANCE


def between_near_equals(
    cells: Sequence[Pooled], scheme: str, level: float | None = None
) -> tuple[float, float]:
    """Share of studies with a claim of either sign where arms hardly differ: mean, and worst cell.

    Without a level, at that at which the program claims.
    """
    near = [cell for cell in cells if np.abs(cell.truth(NEARLY_EQUAL)).mean() <= HARDLY]
    return _claims(near, NEARLY_EQUAL, scheme, level or declared_level(scheme))


def between_alike(cells: Sequence[Pooled], scheme: str) -> tuple[float, float]:
    """Return the same where arms differ by the luck of the draw, at the program's level."""
    return _claims(cells, ALIKE, scheme, declared_level(scheme))


def _claims(cells: Sequence[Pooled], pair: Pair, scheme: str, level: float) -> tuple[float, float]:
    found = [sum(cell.rates(pair, scheme, level)) for cell in cells]
    return (fmean(found), max(found)) if found else (nan, nan)


def holding(cells: Sequence[Pooled]) -> list[Choice]:
    """Schemes and levels with at most 5 % of wrong claims in every cell, most power first."""
    choices = list(product(EVERY_SCHEME, LEVELS))
    measured = {choice: worst_and_mean(cells, *choice) for choice in choices}
    allowed = [choice for choice in choices if measured[choice][0] <= ALLOWED]
    return sorted(allowed, key=lambda choice: -measured[choice][1])


def holding_between_near_equals(cells: Sequence[Pooled]) -> list[Choice]:
    """Return those of `holding` with at most 5 % of claims either way where arms hardly differ."""
    return [
        choice for choice in holding(cells) if between_near_equals(cells, *choice)[1] <= ALLOWED
    ]


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw tables of what was run, and one picture of both parts."""
    simulated = {
        (cell.plan.config["kind"], cell.plan.config["patients"]): cell
        for cell in cells.values()
        if "kind" in cell.plan.config
    }
    studies = pooled(cells)
    num_simulated = min((cell.plan.config["studies"] for cell in simulated.values()), default=1)
    return page(
        "verdict",
        {PICTURE: _picture(simulated, studies)},
        level=f"{SIGNIFICANCE:g}",
        simulated=num_simulated,
        chance=", ".join(_interval(rate, num_simulated) for rate in (0.02, 0.05, 0.2)),
        nulls=joined(_rule_table(kind, simulated) for kind in NULLS),
        gains=joined(_rule_table(f"gain {gain:.2f}", simulated) for gain in GAINS),
        **(_of_studies(studies) if studies else {"studies": ""}),
    )


def _of_studies(cells: Sequence[Pooled]) -> dict[str, Any]:
    """Return what the page says of whole studies, of one at least."""
    best, best_near = holding(cells), holding_between_near_equals(cells)
    near = any(np.abs(cell.truth(NEARLY_EQUAL)).mean() <= HARDLY for cell in cells)
    data = ", ".join(sorted({cell.data for cell in cells}))
    return {
        "studies": f"{len(cells)} cells of {one_or_range(c.studies for c in cells)} studies each:"
        f" {data}",
        "cross_fitted_level": f"{CROSS_FITTED_SIGNIFICANCE:g}",
        "choices": _of_choices(
            ["right, mean %", "wrong, worst cell %", "full - half alone, worst %"],
            lambda scheme, level: (
                *reversed(worst_and_mean(cells, scheme, level)),
                worst_and_mean(cells, scheme, level, NEARLY_EQUAL)[0],
            ),
        ),
        "best": best and _worst_of(cells, *best[0]),
        "hardly": f"{HARDLY:g}",
        "near": near
        and _of_choices(
            ["claims, mean %", "claims, worst cell %"],
            lambda scheme, level: between_near_equals(cells, scheme, level),
        ),
        "best_near": best_near and f"{best_near[0][0]} at p ≤ {best_near[0][1]:g}",
        "best_near_right": best_near and f"{100 * worst_and_mean(cells, *best_near[0])[1]:.1f}",
        "alike": _alike(cells),
        "pairs": {" - ".join(pair): _pair_table(pair, cells) for pair in PAIRS},
    }


def percent(cell: Cell, rule: str) -> float:
    """Of a cell's simulated studies, those with a claim; if the first arm is better, with that."""
    found, config = cell.figures[rule], cell.plan.config
    wrong = found["second"] if config["kind"] in NULLS else 0
    return float(100 * (found["first"] + wrong) / config["studies"])


def _interval(rate: float, studies: int) -> str:
    low, high = wilson(rate, studies)
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _rule_table(kind: str, cells: Simulated) -> str:
    known = [patients for patients in TEST_PATIENTS if (kind, patients) in cells]
    return grid(
        f"{kind}: test patients",
        named(RULES),
        named(known),
        lambda rule, patients: f"{percent(cells[kind, patients], rule):.1f}",
    )


def _of_choices(header: Sequence[str], of: Callable[[str, float], Sequence[float]]) -> str:
    """Return a table of shares for every scheme and level, in percent."""
    return table(
        ["", "p ≤", *header],
        (
            [
                scheme,
                f"{level:g}" + (" (claimed at)" if level == declared_level(scheme) else ""),
                *(f"{100 * share:.1f}" for share in of(scheme, level)),
            ]
            for scheme, level in product(EVERY_SCHEME, LEVELS)
        ),
    )


def _worst_of(cells: Sequence[Pooled], scheme: str, level: float) -> dict[str, Any]:
    """Return how sure it is that a choice holds in every cell, for the page."""
    worst = [(worst_and_mean([cell], scheme, level)[0], cell.studies) for cell in cells]
    wrong, studies = max(worst, key=lambda one: (one[0], -one[1]))
    return {
        "scheme": scheme,
        "level": f"{level:g}",
        "wrong": f"{100 * wrong:.1f}",
        "studies": studies,
        "interval": _interval(wrong, studies),
    }


def _alike(cells: Sequence[Pooled]) -> str:
    """Return a table of the claims where neither arm is better, at the program's levels."""
    rows = []
    for scheme in EVERY_SCHEME:
        level = declared_level(scheme)
        shares = *between_alike(cells, scheme), worst_and_mean(cells, scheme, level, ALIKE)[0]
        rows.append([scheme, f"{level:g}", *(f"{100 * share:.1f}" for share in shares)])
    return table(["", "p ≤", "claims, mean %", "claims, worst cell %", "wrong, worst cell %"], rows)


def _pair_table(pair: Pair, cells: Sequence[Pooled]) -> str:
    rows = []
    for cell in cells:
        found = [cell.rates(pair, scheme, declared_level(scheme)) for scheme in EVERY_SCHEME]
        claims = (f"{100 * right:.1f} / {100 * wrong:.1f}" for right, wrong in found)
        setting = [cell.data, cell.scenario, str(cell.patients)]
        rows.append([*setting, f"{cell.truth(pair).mean():+.3f}", *claims])
    return table(["data", "others", "patients", "true difference", *EVERY_SCHEME], rows)


def _picture(simulated: Simulated, studies: Sequence[Pooled]) -> bytes:
    declared = {
        kind: {
            n: percent(cell, "declared")
            for n in TEST_PATIENTS
            if (cell := simulated.get((kind, n)))
        }
        for kind in NULLS
    }
    power = {
        scheme: {
            n: 100 * worst_and_mean(chosen, scheme, declared_level(scheme))[1]
            for n in PATIENTS
            if (chosen := [cell for cell in studies if cell.patients == n])
        }
        for scheme in EVERY_SCHEME
    }
    with picture(columns=2) as (figure, content):
        panels = figure.subplots(1, 2)
        for axes, curves in zip(panels, (declared, power), strict=True):
            for label, points in curves.items():
                if points:
                    axes.plot(points.keys(), points.values(), marker="o", markersize=3, label=label)
        panels[0].axhline(
            100 * ALLOWED, color="#999999", linewidth=0.8, linestyle="--", label="5 %"
        )
        panels[0].set(title="False claims of the hold-out verdict", xlabel="test patients")
        panels[1].set(
            title="True differences claimed, mean over settings", xlabel="the user's patients"
        )
        for axes in panels:
            axes.set_ylabel("% of studies")
            axes.set_ylim(bottom=0)
            add_legend(axes)
    return content.getvalue()


EXPERIMENT = experiment(
    "verdict",
    plans,
    run,
    draw,
    data_sets=lambda config: (config["data"],) if "data" in config else (),
)
