"""How well one column alone predicts an outcome: target leakage does so nearly perfectly.

Each column is divided into its categories or ranges, including one for missing values. A patient's
prediction is the mean outcome of the others in the same one. So a column that exists only where the
event happened is found, too. Numbers are also used directly, increasing and decreasing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from erosion_common.tasks.features import CategoryFeature, Feature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.survival import concordances
from erosion_common.tasks.task import Floats, Targets, Task

Kind = Literal["classification", "regression", "survival"]

MEASURES = {"classification": "AUROC", "regression": "R²", "survival": "concordance"}
TELLS = {"classification": 0.9, "regression": 0.9, "survival": 0.88}  # from which a column is
# suspected: data from before the outcome seldom predicts that well alone
FOLDS = 5
MOST_RANGES = 16
PRIOR = 2.0  # patients with the mean outcome, added to each category or range
FEWEST = 10  # patients of a class, with the event, or with a value
MOST_ROWS, MOST_SURVIVAL = 20_000, 3_000  # more are not used


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome to predict: (n,) classes from 0, (n,) numbers, or (n, 2) times and events."""

    kind: Kind
    targets: Floats

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def signal(self) -> Floats:
        """The values that are averaged: (n, k)."""
        if self.kind == "classification":
            classes = np.unique(self.targets)
            shown = classes[1:] if len(classes) == 2 else classes
            of_classes: Floats = np.equal.outer(self.targets, shown).astype(np.float64)
            return of_classes
        if self.kind == "regression":
            return self.targets[:, None].astype(np.float64)
        return _martingale(self.targets)[:, None]

    def measured(self, scores: Floats) -> float:
        """Return how well scores (n, k) predict; NaN where too few have the outcome."""
        if self.kind == "classification":
            found = [_auroc(s, t > 0) for s, t in zip(scores.T, self.signal.T, strict=True)]
            known = [area for area in found if np.isfinite(area)]
            return float(np.mean(known)) if known else np.nan
        if self.kind == "regression":
            apart = float(np.square(self.targets - self.targets.mean()).sum())
            left = float(np.square(self.targets - scores[:, 0]).sum())
            return 1 - left / apart if apart > 0 and len(self) >= 2 * FEWEST else np.nan
        if self.targets[:, 1].sum() < FEWEST:
            return np.nan
        ones = np.ones((1, len(self)))
        return float(concordances(scores[:, 0], self.targets, ones, ones)[0, 0])

    def of(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Outcome":
        """Return the outcome of some rows."""
        return Outcome(self.kind, self.targets[rows])


def outcome_of(task: Task, targets: Targets) -> Outcome:
    """Return the targets (n, ...) of a study's task as an outcome."""
    kinds: dict[str, Kind] = {"classification": "classification", "survival": "survival"}
    return Outcome(kinds.get(task.outcome, "regression"), targets.astype(np.float64))


def columns_of(
    task: TabularTask, rows: NDArray[np.generic], groups: NDArray[np.int64]
) -> Iterator[tuple[Feature, Floats]]:
    """Yield every feature, and each patient's value of it (patients,), NaN where it has none.

    For several rows, it is the mean of the patient's numbers, or its commonest category.
    """
    _, places = np.unique(groups, return_inverse=True)
    for feature, column in zip(task.features, rows.T, strict=True):
        values = column.astype(np.float64)
        known = ~np.isnan(values)
        if isinstance(feature, CategoryFeature):
            counts = np.zeros((int(places.max(initial=-1)) + 1, len(feature.categories)))
            np.add.at(counts, (places[known], values[known].astype(np.int64)), 1)
            yield feature, np.where(counts.any(axis=1), counts.argmax(axis=1), np.nan)
            continue
        num = np.bincount(places[known], minlength=int(places.max(initial=-1)) + 1)
        sums = np.bincount(places[known], weights=values[known], minlength=len(num))
        yield feature, np.where(num > 0, sums / np.maximum(num, 1), np.nan)


def suspicion(values: Floats, outcome: Outcome, *, is_category: bool) -> str:
    """Return why a column seems to be target leakage; "" where it does not."""
    asked = [outcome]
    if outcome.kind == "survival":
        asked.append(Outcome("classification", outcome.targets[:, 1]))
    for each in asked:
        found = strength(values, each, is_category=is_category)
        if found >= TELLS[each.kind]:
            return f"alone it predicts the outcome ({MEASURES[each.kind]} {found:.2f})"
    return ""


def strength(values: Floats, outcome: Outcome, *, is_category: bool) -> float:
    """Return the measure of a column (n,), NaN where a value is missing, by cross-validation."""
    most = MOST_SURVIVAL if outcome.kind == "survival" else MOST_ROWS
    if len(values) > most:
        kept = np.random.default_rng(0).choice(len(values), most, replace=False)
        values, outcome = values[kept], outcome.of(kept)
    fold = np.random.default_rng(0).permutation(len(values)) % FOLDS
    signal = outcome.signal
    scores = np.zeros((3, *signal.shape))
    for number in range(FOLDS):
        held = fold == number
        if held.any() and not held.all():
            for kind, found in enumerate(
                _scores(values, signal, ~held, held, is_category=is_category)
            ):
                scores[kind, held] = found
    return _best(scores, values, outcome)


def strength_held_out(
    values: Floats,
    outcome: Outcome,
    trained: NDArray[np.bool_],
    *,
    is_category: bool,
) -> float:
    """Return the same, learnt on the rows `trained` (n,) and measured on the others."""
    scores = np.stack(
        [*_scores(values, outcome.signal, trained, ~trained, is_category=is_category)]
    )
    return _best(scores, values[~trained], outcome.of(~trained))


def _best(scores: Floats, values: Floats, outcome: Outcome) -> float:
    """Return the better of all rows by categories or ranges, and rows with a value both ways."""
    known = ~np.isnan(values)
    found = [outcome.measured(scores[0])]
    if 2 * known.sum() >= len(values):  # else a few rows with a value would decide for all
        found += [outcome.of(known).measured(of_kind[known]) for of_kind in scores]
    return max((figure for figure in found if np.isfinite(figure)), default=0.0)


def _scores(
    values: Floats,
    signal: Floats,
    trained: NDArray[np.bool_],
    held: NDArray[np.bool_],
    *,
    is_category: bool,
) -> Iterator[Floats]:
    """Yield three predictions (held, k): by categories or ranges, and two lines for numbers."""
    cells = _cells(values, trained, is_category=is_category)
    mean = signal[trained].mean(axis=0)
    sums = np.zeros((int(cells.max(initial=0)) + 1, signal.shape[1]))
    np.add.at(sums, cells[trained], signal[trained])
    counts = np.bincount(cells[trained], minlength=len(sums))[:, None]
    by_cell = ((sums + PRIOR * mean) / (counts + PRIOR))[cells[held]]
    yield by_cell
    usable = trained & ~np.isnan(values)
    if is_category or usable.sum() < FEWEST or np.ptp(values[usable]) == 0:
        yield by_cell
        yield by_cell
        return
    for told in (values, rankdata(values, nan_policy="omit")):
        x = told[usable] - told[usable].mean()
        slope = x @ (signal[usable] - mean) / (x @ x)
        line = mean + (told[held, None] - told[usable].mean()) * slope
        yield np.where(np.isnan(line), mean, line)


def _cells(values: Floats, trained: NDArray[np.bool_], *, is_category: bool) -> NDArray[np.int64]:
    """Return the category or range of each value (n,), with one more for missing values."""
    known = ~np.isnan(values)
    if is_category:
        places = np.where(known, values, 0).astype(np.int64)
    else:
        shares = np.linspace(0, 1, MOST_RANGES + 1)[1:-1]
        usable = values[known & trained]
        edges = np.unique(np.quantile(usable, shares)) if len(usable) else np.zeros(0)
        places = np.searchsorted(edges, np.where(known, values, 0.0), side="right")
    return np.where(known, places, int(places.max(initial=0)) + 1)


def _auroc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    num, others = int(positive.sum()), int((~positive).sum())
    if min(num, others) < FEWEST:
        return np.nan
    area = (rankdata(scores)[positive].sum() - num * (num + 1) / 2) / (num * others)
    return float(area)


def _martingale(targets: Floats) -> Floats:
    """Return events minus those expected by then if all patients were alike: (n,)."""
    times, events = targets[:, 0], targets[:, 1]
    order = np.argsort(times, kind="stable")
    at_risk = len(times) - np.searchsorted(times[order], times[order], side="left")
    hazard = np.cumsum(events[order] / at_risk)
    last = np.searchsorted(times[order], times, side="right") - 1
    residuals: Floats = events - hazard[last]
    return residuals
