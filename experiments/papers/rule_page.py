"""Tables and a picture of many rules, measured over many splits of several settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from erosion.client.evaluation.verdict import sign_flip_p_value
from erosion.common.algorithms import REGISTRY
from erosion.common.algorithms.weight_erosion import PRESETS
from erosion.common.study.study import load_study
from erosion.common.support.holm import adjusted_p_values
from erosion.experiments.cells import Cell, Values
from erosion.experiments.experiment import Page
from erosion.experiments.papers.paired import (
    INTERVALS,
    LEVEL,
    MARKS,
    one_or_range,
    paired_difference,
    told,
)
from erosion.experiments.papers.picture import COLOURS, picture
from erosion.experiments.standard_error import in_words
from erosion.experiments.testbed import study_path

Setting = tuple[str, str]  # study, user
Arms = Mapping[str, Mapping[str, Any]]

REFERENCE = "local"
OTHERS = ("local", "fedavg", "fine_tuning", "weight_erosion", "evidence_erosion")
RECOMMENDED = "weight_erosion_recommended"
RECOMMENDED_ARM: Mapping[str, Any] = {"algorithm": "weight_erosion", **PRESETS["recommended"]}
DRAWN = ("local", "fedavg", "weight_erosion")  # of those
PICTURE = "differences.svg"


@dataclass(frozen=True, slots=True)
class RulePage:
    """What is compared, and which arm is set beside the others."""

    arms: Arms
    ours: str
    settings: Sequence[Setting]
    allows_for_sharing: bool = False  # marks, too, what holds by a variance for shared patients

    def draw(self, cells: Mapping[str, Cell], heading: Sequence[str]) -> Page:
        """The heading, a summary over the settings, and a table for each that has two splits.

        Of a single setting its table says all.
        """
        found = {
            setting: [cell.figures for cell in cells.values() if _setting_of(cell) == setting]
            for setting in self.settings
        }
        measured = {setting: figures for setting, figures in found.items() if len(figures) > 1}
        if not measured:
            return Page("\n".join([*heading, ""]))
        lines = [*heading, *self._left_out(), ""]
        if len(self.settings) > 1:
            lines += self._summary(measured)
        lines += self._against_others(measured)
        for (study, user), figures in measured.items():
            lines += self._table(f"{study}, for {user}", figures)
        return Page("\n".join(lines), {PICTURE: self._picture(measured)})

    def _left_out(self) -> list[str]:
        """The methods that a study can name and that are not compared here."""
        here = {options.get("algorithm", arm) for arm, options in self.arms.items()}
        others = sorted(REGISTRY.keys() - here)
        if not others:
            return []
        return [
            f"Not compared here: {', '.join(others)}; [robustness](../robustness/README.md) has"
            " those that fit its studies."
        ]

    def _summary(self, found: Mapping[Setting, Sequence[Values]]) -> list[str]:
        """Mean rank over the settings, and how much worse than the best arm in the worst one."""
        means = {
            arm: [fmean(_losses(figures, arm)) for figures in found.values()] for arm in self.arms
        }
        best = [min(means[arm][place] for arm in self.arms) for place in range(len(found))]
        ranks = {
            arm: fmean(
                1 + sum(means[other][place] < means[arm][place] for other in self.arms)
                for place in range(len(found))
            )
            for arm in self.arms
        }
        rows = [
            f"| {arm} | {ranks[arm]:.1f} |"
            f" {max(mean - least for mean, least in zip(means[arm], best, strict=True)):.3f} |"
            for arm in sorted(self.arms, key=lambda arm: ranks[arm])
        ]
        return [
            f"## Over {len(found)} settings",
            "",
            "| arm | mean rank by log loss | worst regret: log loss above the best arm's |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]

    def _against_others(self, found: Mapping[Setting, Sequence[Values]]) -> list[str]:
        """The recommended arm minus some others, with intervals that hold all together."""
        comparisons = len(found) * len(OTHERS)
        rows, differences = [], []
        for (study, user), figures in found.items():
            ours = _losses(figures, self.ours)
            share = None
            if self.allows_for_sharing:
                share = load_study(study_path(study)).evaluation.test_share
            of_user = [
                paired_difference(
                    ours, _losses(figures, other), comparisons=comparisons, test_share=share
                )
                for other in OTHERS
            ]
            differences += of_user
            rows.append(f"| {study}, {user} | {' | '.join(apart.text() for apart in of_user)} |")
        told_of = [
            f"{INTERVALS}, {100 * (1 - LEVEL):g} % for all {comparisons} together;",
            "\\*: leaves out 0.",
        ]
        if self.allows_for_sharing:
            told_of = [f"{told_of[0][:-1]}.", *MARKS, told(differences)]
        return [
            f"## {self.ours} minus others",
            "",
            f"![The differences from some]({PICTURE})",
            "",
            "Difference in log loss, below 0 where it is the better one.",
            *told_of,
            "",
            f"| | {' | '.join(OTHERS)} |",
            f"| --- |{' --- |' * len(OTHERS)}",
            *rows,
            "",
        ]

    def _table(self, title: str, figures: Sequence[Values]) -> list[str]:
        reference = np.array(_losses(figures, REFERENCE))
        apart = {
            arm: np.array(_losses(figures, arm)) - reference
            for arm in self.arms
            if arm != REFERENCE
        }
        p_values = {arm: sign_flip_p_value(values, seed=0) for arm, values in apart.items()}
        claimed = {arm for arm, p in adjusted_p_values(p_values).items() if p <= LEVEL}
        rows = []
        for arm in sorted(self.arms, key=lambda arm: fmean(_losses(figures, arm))):
            errors = [(1 - split[arm]["accuracy"]) * split["patients"] for split in figures]
            beside = ""
            if arm in apart:
                beside = in_words(apart[arm].tolist(), "+.3f") + (" \\*" if arm in claimed else "")
            rows.append(
                f"| {arm} | {in_words(_losses(figures, arm))} | {beside} |"
                f" {in_words(errors, '.1f')} | {_auroc(figures, arm)} |"
            )
        patients = one_or_range(split["patients"] for split in figures)
        base = fmean(_losses(figures, "base rate"))
        majority = fmean(
            (1 - split["base rate"]["accuracy"]) * split["patients"] for split in figures
        )
        return [
            f"## {title}",
            "",
            f"{len(figures)} splits, {patients} test patients each. Base rate: log"
            f" loss {base:.3f}, {majority:.1f} errors. \\*: differs from local training (paired"
            f" sign-flip test over splits, Holm's correction, {100 * LEVEL:g} % for the table)."
            + _too_few(len(figures), len(apart)),
            "",
            "| arm | log loss | minus local | errors | AUROC |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]

    def _picture(self, found: Mapping[Setting, Sequence[Values]]) -> bytes:
        """The differences from some others, a row for each setting."""
        comparisons = len(found) * len(OTHERS)
        # The picture may stand without its page: how few splits there are is in it.
        names = [f"{study}, {user} ({len(of)} splits)" for (study, user), of in found.items()]
        with picture(columns=len(DRAWN), height=0.8 + 0.32 * len(found)) as (figure, content):
            panels = figure.subplots(1, len(DRAWN), sharey=True)
            for other, axes, colour in zip(DRAWN, panels, COLOURS, strict=False):
                for place, figures in enumerate(found.values()):
                    ours, theirs = _losses(figures, self.ours), _losses(figures, other)
                    apart = paired_difference(ours, theirs, comparisons=comparisons)
                    axes.plot([apart.low, apart.high], [place, place], color=colour)
                    axes.plot([apart.mean], [place], marker="o", markersize=4, color=colour)
                axes.axvline(0, color="#999999", linewidth=0.8, linestyle="--")
                axes.locator_params(axis="x", nbins=4)
                axes.set(title=f"minus {other}", xlabel="log loss (below 0: better)")
            panels[0].set_yticks(range(len(names)), names)
            panels[0].invert_yaxis()
        return content.getvalue()


def _setting_of(cell: Cell) -> Setting:
    return cell.plan.config["study"], cell.plan.config["user"]


def _auroc(figures: Sequence[Values], arm: str) -> str:
    """Over the splits whose test part has both classes."""
    found = [split[arm]["auroc"] for split in figures if split[arm]["auroc"] is not None]
    if len(found) < 2:
        return f"{found[0]:.3f} (1 split)" if found else "–"
    return in_words(found) + (f" ({len(found)} splits)" if len(found) < len(figures) else "")


def _too_few(splits: int, comparisons: int) -> str:
    """Where not even the least p-value of so few splits passes Holm's first step."""
    if 2.0 ** (1 - splits) * comparisons <= LEVEL:
        return ""
    return f" With {splits} splits and {comparisons} comparisons nothing can be marked."


def _losses(figures: Sequence[Values], arm: str) -> list[float]:
    return [float(split[arm]["log_loss"]) for split in figures]
