"""The page of the verdict: false claims and power of the rules, and of cross-fitting."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import fmean
from typing import NamedTuple

from erosion_common.protocol.messages import CROSS_FITTED_SIGNIFICANCE, SIGNIFICANCE
from experiments.cells import Cell, Values
from experiments.experiment import Page
from experiments.papers.verdict import PATIENTS, TEST_PATIENTS
from experiments.papers.verdict_refits import (
    HOLD_OUT,
    PAIRS,
    SCHEMES,
    TRUTH,
    TRUTH_OF_TRAINING_PART,
)
from experiments.papers.verdict_simulated import GAINS, NULLS, RULES
from experiments.pictures import add_legend, picture
from experiments.tables import wilson

LEVELS = (0.02, 0.01, 0.005, 0.003, 0.002)
ALLOWED = 0.05
PICTURE = "verdict.svg"
*DIFFERING, ALIKE = PAIRS
NEARLY_EQUAL = DIFFERING[1]
HARDLY = 0.003  # of log loss, either way: the mean over a cell's studies


@dataclass(frozen=True, slots=True)
class Pooled:
    """The cells of one data set, scenario and number of patients, of all seeds together."""

    data: str
    scenario: str
    patients: int
    figures: Mapping[str, Values]  # by pair of arms: each scheme's values, study by study

    @property
    def studies(self) -> int:
        """How many there are."""
        return len(next(iter(self.figures.values()))[HOLD_OUT])


def pooled(cells: Iterable[Cell]) -> list[Pooled]:
    """Of whole studies, in the order of the first seed's."""
    found: dict[tuple[str, str, int], dict[str, dict[str, list[float]]]] = {}
    for cell in cells:
        config = cell.plan.config
        of_pairs = found.setdefault((config["data"], config["scenario"], config["patients"]), {})
        for pair, by_scheme in cell.figures.items():
            for scheme, values in by_scheme.items():
                of_pairs.setdefault(pair, {}).setdefault(scheme, []).extend(values)
    return [Pooled(*which, figures) for which, figures in found.items()]


class Rates(NamedTuple):
    """Of one scheme in one cell, for one pair of arms."""

    right: float  # share of studies with a claim of the right sign
    wrong: float  # and of the wrong one


def rates(figures: Values, scheme: str, level: float) -> Rates:
    """From the signed p-values of one pair."""
    truth = figures[TRUTH_OF_TRAINING_PART if scheme == HOLD_OUT else TRUTH]
    claims = [(p, true) for p, true in zip(figures[scheme], truth, strict=True) if abs(p) <= level]
    right = sum(p * true > 0 for p, true in claims)
    return Rates(right / len(truth), (len(claims) - right) / len(truth))


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw tables of what was run, and one picture of both parts."""
    simulated = {
        (cell.plan.config["kind"], cell.plan.config["patients"]): cell
        for cell in cells.values()
        if "kind" in cell.plan.config
    }
    studies = pooled(cell for cell in cells.values() if "data" in cell.plan.config)
    lines = [
        "# How often is the verdict wrong?",
        "",
        "The verdict is a paired sign-flip test of the test patients' log losses, with chances",
        f"clipped to [.01, .99], at p ≤ {SIGNIFICANCE:g} and at least five patients of each class.",
        "",
        *_simulated_tables(simulated),
        *_study_tables(studies),
        f"![False claims and power]({PICTURE})",
        "",
    ]
    return Page("\n".join(lines), {PICTURE: _picture(simulated, studies)})


def percent(cell: Cell, rule: str) -> float:
    """Of a cell's simulated studies, those with a claim."""
    found = cell.figures[rule]
    return float(100 * (found["first"] + found["second"]) / cell.plan.config["studies"])


def _simulated_tables(cells: Mapping[tuple[str, int], Cell]) -> list[str]:
    lines = [
        "## False claims, in percent of simulated studies",
        "",
        "Both arms have the same mean loss. *alike*: both err alike. *gross errors*: the first is",
        "the better one but for 3 % of the patients, where it is certain of the wrong class; *on",
        "easy patients*, it is certain and right about all others, and the second is cautious.",
        "*overconfident*: the first's log odds are twice the right ones, the second's too small.",
        "",
        "Also tried: a stricter level; chances clipped to [.1, .9]; a",
        "claim only where the Brier score's test makes it too; only what would still be claimed",
        "with one more patient where the better arm errs as badly as can be (by log loss, and by",
        "the Brier score); and a bet on bounded means, which holds for every distribution.",
        "",
        *_chance(cells),
    ]
    for kind in NULLS:
        lines += _rule_table(kind, cells)
    lines += [
        "## Claims of a true difference, in percent",
        "",
        "The second arm's mean log loss is worse by this.",
        "",
    ]
    for gain in GAINS:
        lines += _rule_table(f"gain {gain:.2f}", cells)
    return lines


def _chance(cells: Mapping[tuple[str, int], Cell]) -> list[str]:
    """Return how many simulated studies a figure rests on, and how far chance moves it."""
    if not cells:
        return []
    studies = min(cell.plan.config["studies"] for cell in cells.values())
    return [
        f"Each figure is of {studies:,} simulated studies or more; 95 % binomial intervals (Wilson)"
        f" of 2, 5 and 20 %: {', '.join(_interval(rate, studies) for rate in (0.02, 0.05, 0.2))}.",
        "",
    ]


def _interval(rate: float, studies: int) -> str:
    low, high = wilson(rate, studies)
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _rule_table(kind: str, cells: Mapping[tuple[str, int], Cell]) -> list[str]:
    known = [patients for patients in TEST_PATIENTS if (kind, patients) in cells]
    if not known:
        return []
    rows = [
        f"| {rule} | "
        + " | ".join(f"{percent(cells[kind, patients], rule):.1f}" for patients in known)
        + " |"
        for rule in RULES
    ]
    return [
        f"| {kind}: test patients | {' | '.join(map(str, known))} |",
        f"| --- |{' --- |' * len(known)}",
        *rows,
        "",
    ]


def worst_and_mean(
    cells: Sequence[Pooled], scheme: str, level: float, pair: tuple[str, str] | None = None
) -> tuple[float, float]:
    """Largest share of wrong claims in any cell, and mean share of right ones, over pairs."""
    found = [
        rates(cell.figures[" - ".join(one)], scheme, level)
        for cell in cells
        for one in ([pair] if pair else DIFFERING)
    ]
    return max(rate.wrong for rate in found), fmean(rate.right for rate in found)


def _worst_cell(cells: Sequence[Pooled], scheme: str, level: float) -> tuple[float, int]:
    """Largest share of wrong claims, and of how many studies; of equal ones the fewest."""
    found = [(worst_and_mean([cell], scheme, level)[0], cell.studies) for cell in cells]
    return max(found, key=lambda one: (one[0], -one[1]))


def between_near_equals(
    cells: Sequence[Pooled], scheme: str, level: float | None = None
) -> tuple[float, float]:
    """Share of studies with a claim of either sign where arms hardly differ: mean, and worst cell.

    Without a level, at that at which the program claims.
    """
    near = [
        cell
        for cell in cells
        if fmean(abs(true) for true in cell.figures[" - ".join(NEARLY_EQUAL)][TRUTH]) <= HARDLY
    ]
    return _claims(near, NEARLY_EQUAL, scheme, declared_level(scheme) if level is None else level)


def between_alike(cells: Sequence[Pooled], scheme: str) -> tuple[float, float]:
    """Return the same where arms differ by the luck of the draw, at the program's level."""
    return _claims(cells, ALIKE, scheme, declared_level(scheme))


def _claims(
    cells: Sequence[Pooled], pair: tuple[str, str], scheme: str, level: float
) -> tuple[float, float]:
    found = [sum(rates(cell.figures[" - ".join(pair)], scheme, level)) for cell in cells]
    return (fmean(found), max(found)) if found else (nan, nan)


def declared_level(scheme: str) -> float:
    """At which the program claims a difference."""
    return SIGNIFICANCE if scheme == HOLD_OUT else CROSS_FITTED_SIGNIFICANCE


def holding(cells: Sequence[Pooled]) -> list[tuple[str, float]]:
    """Schemes and levels with at most 5 % of wrong claims in every cell, most power first."""
    measured = {
        (scheme, level): worst_and_mean(cells, scheme, level)
        for scheme in (HOLD_OUT, *SCHEMES)
        for level in LEVELS
    }
    return sorted(
        (choice for choice, (worst, _) in measured.items() if worst <= ALLOWED),
        key=lambda choice: -measured[choice][1],
    )


def _study_tables(cells: Sequence[Pooled]) -> list[str]:
    if not cells:
        return []
    rows = []
    for scheme in (HOLD_OUT, *SCHEMES):
        for level in LEVELS:
            worst, right = worst_and_mean(cells, scheme, level)
            near, _ = worst_and_mean(cells, scheme, level, NEARLY_EQUAL)
            rows.append(
                f"| {scheme} | {level:g} | {100 * right:.1f} | {100 * worst:.1f} |"
                f" {100 * near:.1f} |"
            )
    best = holding(cells)
    chosen = f"**{best[0][0]}** at p ≤ {best[0][1]:g}" if best else "none of them"
    caution = ""
    if best:
        wrong, studies = _worst_cell(cells, *best[0])
        caution = (
            f" Its worst cell, {100 * wrong:.1f} % of {studies} studies, has a 95 % binomial"
            f" interval (Wilson) of {_interval(wrong, studies)} %, and it was chosen on these"
            " same cells."
        )
    names = sorted({cell.data for cell in cells})
    counts = sorted({cell.studies for cell in cells})
    each = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    lines = [
        "## Whole studies",
        "",
        "Logistic regressions on the user's patients and 400 others', who count nothing (local),",
        "half or fully; *alike*: others are of the user's population; *wrong*: a quarter of the",
        f"others' classes are wrong. {len(cells)} cells of {each} studies each:",
        f"{', '.join(names)}; the truth is known from up to 5,000 further patients. *full - half*",
        "is the case in which arms differ little. A claim is wrong where its sign is not that of",
        "the delivered models' difference. This table is of *full - local* and *full - half*.",
        "",
        "| | p ≤ | right, mean % | wrong, worst cell % | full - half alone, worst % |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"Of those with at most 5 % of wrong claims in every cell, {chosen} claims most true"
        f" differences.{caution}",
        "",
        *_near_equal_table(cells),
        *_alike_table(cells),
    ]
    for pair in PAIRS:
        lines += _pair_table(pair, cells)
    return lines


def holding_between_near_equals(cells: Sequence[Pooled]) -> list[tuple[str, float]]:
    """Return those of `holding` with at most 5 % of claims either way where arms hardly differ."""
    return [
        choice for choice in holding(cells) if between_near_equals(cells, *choice)[1] <= ALLOWED
    ]


def _near_equal_table(cells: Sequence[Pooled]) -> list[str]:
    rows = []
    for scheme in (HOLD_OUT, *SCHEMES):
        for level in LEVELS:
            mean, worst = between_near_equals(cells, scheme, level)
            if isnan(mean):
                return []
            claims = " (claimed at)" if level == declared_level(scheme) else ""
            rows.append(f"| {scheme} | {level:g}{claims} | {100 * mean:.1f} | {100 * worst:.1f} |")
    best = holding_between_near_equals(cells)
    told = "None of these choices has at most 5 % of claims in every such cell."
    if best:
        right = worst_and_mean(cells, *best[0])[1]
        told = (
            "With at most 5 % of claims in every such cell, and of wrong ones in every cell,"
            f" {best[0][0]} at p ≤ {best[0][1]:g} claims most true differences"
            f" ({100 * right:.1f} %). The level at which the program claims was chosen by the wrong"
            " signs alone."
        )
    return [
        f"*full - half* is {HARDLY:g} or less of log loss in the mean, either way, in some cells:",
        "how often a difference is claimed there, either way. That is more than p allows: the",
        "differences are small and not 0, and patients who are predicted by models of nearly the",
        "same patients are not independent.",
        "",
        "| | p ≤ | claims, mean % | claims, worst cell % |",
        "| --- | --- | --- | --- |",
        *rows,
        "",
        told,
        "",
    ]


def _alike_table(cells: Sequence[Pooled]) -> list[str]:
    rows = []
    for scheme in (HOLD_OUT, *SCHEMES):
        level = declared_level(scheme)
        claims = [f"{100 * share:.1f}" for share in between_alike(cells, scheme)]
        wrong, _ = worst_and_mean(cells, scheme, level, ALIKE)
        rows.append(f"| {scheme} | {level:g} | {' | '.join(claims)} | {100 * wrong:.1f} |")
    return [
        "*some - rest*: each of these arms counts another half of the others, so that over many",
        "studies neither is better, and in one study only by the luck of who was drawn. How often",
        "a difference is claimed, either way, and how often one of the wrong sign:",
        "",
        "| | p ≤ | claims, mean % | claims, worst cell % | wrong, worst cell % |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _pair_table(pair: tuple[str, str], cells: Sequence[Pooled]) -> list[str]:
    schemes = (HOLD_OUT, *SCHEMES)
    rows = []
    for cell in cells:
        figures = cell.figures[" - ".join(pair)]
        found = [rates(figures, scheme, declared_level(scheme)) for scheme in schemes]
        rows.append(
            f"| {cell.data} | {cell.scenario} | {cell.patients} |"
            f" {fmean(figures[TRUTH]):+.3f} | "
            + " | ".join(f"{100 * r.right:.1f} / {100 * r.wrong:.1f}" for r in found)
            + " |"
        )
    return [
        f"### {' - '.join(pair)}: right / wrong claims in percent",
        "",
        f"Hold-out at p ≤ {SIGNIFICANCE:g}, cross-fitted at p ≤ {CROSS_FITTED_SIGNIFICANCE:g}.",
        "",
        f"| data | others | patients | true difference | {' | '.join(schemes)} |",
        f"| --- | --- | --- | --- |{' --- |' * len(schemes)}",
        *rows,
        "",
    ]


def _picture(simulated: Mapping[tuple[str, int], Cell], studies: Sequence[Pooled]) -> bytes:
    with picture(columns=2) as (figure, content):
        false, power = figure.subplots(1, 2)
        for kind in NULLS:
            known = [n for n in TEST_PATIENTS if (kind, n) in simulated]
            values = [percent(simulated[kind, n], "declared") for n in known]
            if known:
                false.plot(known, values, marker="o", markersize=3, label=kind)
        false.axhline(100 * ALLOWED, color="#999999", linewidth=0.8, linestyle="--", label="5 %")
        false.set(
            title="False claims of the hold-out verdict",
            xlabel="test patients",
            ylabel="% of studies",
        )
        false.set_ylim(bottom=0)
        add_legend(false)
        for scheme in (HOLD_OUT, *SCHEMES):
            points = [
                (n, worst_and_mean(chosen, scheme, declared_level(scheme))[1])
                for n in PATIENTS
                if (chosen := [cell for cell in studies if cell.patients == n])
            ]
            if points:
                power.plot(
                    [n for n, _ in points],
                    [100 * right for _, right in points],
                    marker="o",
                    markersize=3,
                    label=scheme,
                )
        power.set(
            title="True differences claimed, mean over settings",
            xlabel="the user's patients",
            ylabel="% of studies",
        )
        power.set_ylim(bottom=0)
        add_legend(power)
    return content.getvalue()
