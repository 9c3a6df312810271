"""Curves, calibration, thresholds and subgroups of the held-out predictions, with intervals.

Patients are the unit: intervals come from draws of patients, the same for every model. Where a
patient was predicted in several cuts into folds, a share is the mean over the cuts. A threshold is
shown only where at least a cell of patients is on either side, and between it and the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.disclosure.control import around
from erosion_common.protocol.messages import QUANTILES
from erosion_common.protocol.performance import (
    Curve,
    CurveName,
    Estimate,
    EstimateName,
    ModelFigures,
    PredictedGroup,
    Subgroup,
    ThresholdRow,
)
from erosion_common.settings.names import LARGEST_FIGURE
from erosion_common.tasks.classification import Classification, binary_auroc
from erosion_common.tasks.features import CategoryFeature, Feature
from erosion_common.tasks.metric import of_mean
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.survival import Survival, chance_of_being_followed
from erosion_common.tasks.task import Floats, Targets

MOST_MODELS, MOST_CLASSES = 5, 6
MOST_PATIENTS = 20_000  # that figures are of; of more, a random part
DRAWS = 500  # of patients; fewer where there are many
NUMBERS = 4_000_000  # of the draws, in memory at a time
GROUPS = 5  # of patients by their prediction
GRID = np.round(
    np.concatenate([np.arange(1, 10) / 1000, np.arange(1, 100) / 100, np.arange(991, 1000) / 1000]),
    3,
)  # possible thresholds
LARGEST_THRESHOLD = 0.9  # of net benefit, which has no limit near 1
KNOTS = (0.1, 0.5, 0.9)  # quantiles, of a restricted cubic spline (Harrell 2015)
STEEPEST = 50.0  # of a calibration slope: beyond, the outcome is separated and there is none
CONVERGED = 1e-3  # the last step of a fit
LONGEST_STEP = 8.0  # of Newton's method
REFITS = 200  # draws that curves are fitted to
SMALLEST = 1e-6  # of a predicted chance, before its logit

Bools = NDArray[np.bool_]


def by_cut(predictions: Floats) -> Floats:
    """Return (cuts, n, k) of predictions that may be (n, k), of one cut."""
    return predictions if predictions.ndim == 3 else predictions[None]


@dataclass(frozen=True, slots=True)
class Predicted:
    """One model's chance of an event for each patient."""

    chances: Floats  # (cuts, n)
    event: Bools  # (n,)
    weights: Floats  # (n,) 1; of survival that of patients with a known outcome, 0 for others
    draws: Floats  # (draws, n) how often a patient was drawn

    @property
    def drawn(self) -> Floats:
        """The draws, with every patient's own weight: the first row is of the patients as is."""
        return self.draws * self.weights

    def auroc(self) -> Floats:
        """Return the mean of the cuts' AUROC, by draw."""
        each = [binary_auroc(chances, self.event, self.drawn) for chances in self.chances]
        mean: Floats = np.mean(each, axis=0)
        return mean

    def expected_over_observed(self) -> Floats:
        """Return the expected events per event, by draw; NaN without one."""
        happened = self.drawn @ self.event
        expected = self.drawn @ self.chances.mean(axis=0)
        ratio: Floats = expected / np.where(happened > 0, happened, np.nan)
        return ratio

    def of(self, some: Bools) -> "Predicted":
        """Return some of the patients."""
        return Predicted(
            self.chances[:, some], self.event[some], self.weights[some], self.draws[:, some]
        )


def model_figures(
    dataset: LocalDataset, predictions: Mapping[str, Floats], first: Sequence[str]
) -> list[ModelFigures]:
    """Return the figures of each model, `first` in front; of several classes, of the first alone.

    `predictions`: (n, k) or (cuts, n, k) by model, of the patients that are measured.
    """
    task, cell = dataset.study.task, dataset.cells.cell
    kept, targets, draws = _shown_patients(dataset)
    names = [*dict.fromkeys(name for name in (*first, *predictions) if name in predictions)]
    every = {name: by_cut(predictions[name])[:, kept] for name in names[:MOST_MODELS]}
    if isinstance(task, Regression):
        return [
            _of_numbers(name, each[..., 0], targets, draws, cell) for name, each in every.items()
        ]
    found: list[ModelFigures] = []
    for event, number in (events := events_of(task)):
        if (of := event_of(task, targets, number, cell)) is None:
            continue
        is_event, weights, horizon = of
        for name, each in every.items() if len(events) == 1 else [*every.items()][:1]:
            predicted = Predicted(chances_of(task, each, number, horizon), is_event, weights, draws)
            figures = _of_event(dataset, name, event, predicted)
            figures = figures.model_copy(update={"horizon": horizon})
            if isinstance(task, Survival):
                figures = _with_time(task, figures, each, targets, draws, cell)
            found.append(figures)
    return found


def events_of(task: object) -> list[tuple[str, int]]:
    """Return what can happen: names, and the place of its chance in a prediction."""
    if isinstance(task, Survival):
        return [("event", -1)]
    if isinstance(task, Classification):
        classes = [(label.name, place) for place, label in enumerate(task.classes)]
        return classes[1:] if len(classes) == 2 else classes[:MOST_CLASSES]
    return []


def event_of(
    task: object, targets: Targets, number: int, cell: int
) -> tuple[Bools, Floats, float | None] | None:
    """Return whether it happened, each patient's weight, and by when; None: to too few.

    Of survival, by the last cut point with a cell of patients on either side, and none later than
    the mean follow-up of the cell before the longest: the choice, in study after study, would tell
    a single patient's. Patients who were not followed until then have no weight, and others stand
    for them, as the follow-up of all of these says: so the share with the event is Kaplan and
    Meier's, which that of another part, perhaps of 30 patients, may be far from.
    """
    if not isinstance(task, Survival):
        is_event: Bools = targets == number
        few = min(is_event.sum(), (~is_event).sum()) < cell
        return None if few else (is_event, np.ones(len(targets)), None)
    times, events = targets[:, 0], targets[:, 1] > 0
    if len(times) < 2 * cell:
        return None
    latest = np.sort(times)[-2 * cell : -cell].mean()
    for horizon in reversed(task.cut_points):
        happened, beyond = events & (times <= horizon), times > horizon
        if horizon <= latest and min(happened.sum(), beyond.sum()) >= cell:
            return happened, followed_weights(targets, horizon), float(horizon)
    return None


def followed_weights(targets: Targets, horizon: float) -> Floats:
    """Return 1 / the chance of being followed until the event or the horizon; 0: was not."""
    times, events = targets[:, 0], targets[:, 1] > 0
    known = (times > horizon) | events
    followed = chance_of_being_followed(targets)(np.minimum(times, horizon))
    weights: Floats = np.where(known & (followed > 0), 1 / np.maximum(followed, SMALLEST), 0.0)
    return weights


def chances_of(task: object, each: Floats, number: int, horizon: float | None) -> Floats:
    """Return the chance of an event of predictions (cuts, n, k): (cuts, n)."""
    if isinstance(task, Survival):
        number = [float(point) for point in task.cut_points].index(float(horizon or 0))
        return 1 - each[:, :, number]
    return each[:, :, number]


def _shown_patients(dataset: LocalDataset) -> tuple[NDArray[np.int64], Targets, Floats]:
    """Return which patients figures are of, their outcomes, and draws of them."""
    targets = dataset.measured_patients.outcomes
    kept = np.arange(len(targets))
    if len(targets) > MOST_PATIENTS:
        generator = np.random.default_rng(dataset.seed("curves"))
        kept = np.sort(generator.permutation(len(targets))[:MOST_PATIENTS])
    return kept, targets[kept], drawn_patients(len(kept), dataset.seed("bootstrap"))


def drawn_patients(num_patients: int, seed: int) -> Floats:
    """Return how often each patient is drawn: (1 + draws, n), the first row once each."""
    count = int(np.clip(NUMBERS // max(1, num_patients), 100, DRAWS))
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(num_patients, np.full(num_patients, 1 / num_patients), count)
    return np.concatenate([np.ones((1, num_patients)), drawn])


def _of_event(dataset: LocalDataset, model: str, event: str, predicted: Predicted) -> ModelFigures:
    cell, declared = dataset.cells.cell, dataset.study.evaluation.thresholds
    shares, weights = _PatientShares.of(predicted, declared, cell), predicted.drawn[0]
    is_counted = not isinstance(dataset.study.task, Survival)
    return ModelFigures(
        model=model,
        event=event,
        num_patients=len(predicted.event),
        num_events=int(predicted.event.sum()) if is_counted else None,
        prevalence=_rounded((weights @ predicted.event) / weights.sum()),
        estimates=_estimates(predicted),
        curves={**shares.curves(), **_calibration_curve(predicted, cell)},
        groups=tuple(_groups(predicted, cell)),
        thresholds=tuple(shares.row(threshold) for threshold in declared),
    )


@dataclass(frozen=True, slots=True)
class _PatientShares:
    """Weights of patients at or above each shown threshold, by draw: (1 + draws, thresholds)."""

    thresholds: Floats  # (t,) ascending
    above: Floats  # of all patients
    found: Floats  # of those with the event
    total: Floats  # (1 + draws, 1)
    events: Floats

    @classmethod
    def of(cls, predicted: Predicted, declared: Sequence[float], cell: int) -> "_PatientShares":
        """Choose thresholds, the declared ones first."""
        every = np.unique([*GRID, *declared])
        counted = np.zeros((len(predicted.event), len(every)))
        for chances in predicted.chances:
            counted += chances[:, None] >= every
        counted /= len(predicted.chances)
        known = predicted.weights > 0
        above = counted[known].sum(axis=0)
        kept = _far_enough_apart(above, every, declared, int(known.sum()), cell)
        is_above, drawn = counted[:, kept], predicted.drawn
        return cls(
            every[kept],
            drawn @ is_above,
            (drawn * predicted.event) @ is_above,
            drawn.sum(axis=1, keepdims=True),
            (drawn @ predicted.event)[:, None],
        )

    def net_benefit(self) -> Floats:
        """Return true positives minus weighted false ones, per patient (Vickers & Elkin 2006)."""
        odds = self.thresholds / (1 - self.thresholds)
        benefit: Floats = (self.found - (self.above - self.found) * odds) / self.total
        return benefit

    def curves(self) -> dict[CurveName, Curve]:
        """Return ROC, precision-recall and decision curve."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found = self.found / self.events
            false = (self.above - self.found) / (self.total - self.events)
            right = self.found / self.above
        ends = np.ones((len(found), 1)), np.zeros((len(found), 1))
        sensitivity = np.hstack([ends[0], found, ends[1]])
        false = np.hstack([ends[0], false, ends[1]])
        curves: dict[CurveName, Curve] = {}
        if len(self.thresholds) > 1:
            curves["roc"] = _with_band(false[:, ::-1], sensitivity[:, ::-1])
            shown = (self.above[0] > 0) & (self.above[0] < self.total[0])
            if shown.sum() > 1:
                recall, precision = found[:, shown][:, ::-1], right[:, shown][:, ::-1]
                curves["precision_recall"] = _with_band(recall, precision)
        acted_on = self.thresholds <= LARGEST_THRESHOLD
        if acted_on.sum() > 1:
            benefit = self.net_benefit()[:, acted_on]
            curves["net_benefit"] = _banded(self.thresholds[acted_on], benefit)
        return curves

    def row(self, threshold: float) -> ThresholdRow:
        """Return the figures of one threshold."""
        (place,) = np.nonzero(self.thresholds == threshold)
        if not len(place):
            return ThresholdRow(threshold=threshold)
        at = int(place[0])
        above, found = self.above[:, at], self.found[:, at]
        total, events = self.total[:, 0], self.events[:, 0]
        others, below = total - events, total - above
        return ThresholdRow(
            threshold=threshold,
            alerts=_rounded(above[0] / total[0]),
            sensitivity=_share(found, events),
            specificity=_share(others - (above - found), others),
            positive_predictive_value=_share(found, above),
            negative_predictive_value=_share(below - (events - found), below),
            net_benefit=estimate(self.net_benefit()[:, at]),
        )


def _far_enough_apart(
    above: Floats, every: Floats, declared: Sequence[float], total: int, cell: int
) -> NDArray[np.int64]:
    """Return which thresholds may be shown: nobody, or a cell, between any two and at the ends."""
    chosen: list[int] = []
    counts = [0.0, float(total)]  # patients above those chosen, and at the ends

    def is_apart(count: float) -> bool:
        return all(abs(count - other) < 1e-9 or abs(count - other) >= cell for other in counts)

    declared_first = sorted(range(len(every)), key=lambda at: every[at] not in declared)
    for at in declared_first:
        if is_apart(float(above[at])):
            chosen.append(at)
            counts.append(float(above[at]))
    return np.array(sorted(chosen), dtype=np.int64)


def _with_band(x: Floats, y: Floats) -> Curve:
    """Return the first draw's points, ascending, with the others' band at the same x."""
    points = []
    for each_x, each_y in zip(x[1:], y[1:], strict=True):
        if np.isfinite(each_x).all() and np.isfinite(each_y).all():
            order = np.argsort(each_x, kind="stable")
            points.append(np.interp(x[0], each_x[order], each_y[order]))
    low, high = np.percentile(points, [2.5, 97.5], axis=0) if points else (y[0], y[0])
    return _curve(x[0], y[0], np.minimum(low, y[0]), np.maximum(high, y[0]))


def _estimates(predicted: Predicted) -> dict[EstimateName, Estimate]:
    drawn, event = predicted.drawn, predicted.event
    precision = [average_precision(chances, event, drawn) for chances in predicted.chances]
    logits = _logits(predicted.chances)
    ones = np.ones(logits.size)
    truth, weights = _stacked(predicted)
    slope = fitted(np.column_stack([ones, logits.ravel()]), truth, weights)[:, 1]
    areas = predicted.auroc()
    # There is none where all predictions are equal, or separate the outcomes perfectly.
    has_slope = (np.abs(slope) < STEEPEST) & (areas > 0)[: len(slope)] & (areas < 1)[: len(slope)]
    has_slope &= np.ptp(logits) > SMALLEST
    large = fitted(ones[:, None], truth, weights, offset=logits.ravel())[:, 0]
    found: dict[EstimateName, Estimate | None] = {
        "auroc": estimate(areas),
        "average_precision": estimate(np.mean(precision, axis=0)),
        "calibration_slope": estimate(np.where(has_slope, slope, np.nan)),
        "calibration_in_the_large": estimate(np.where(np.abs(large) < STEEPEST, large, np.nan)),
        "expected_over_observed": estimate(predicted.expected_over_observed()),
    }
    return _defined(found)


def average_precision(scores: Floats, event: Bools, weights: Floats) -> Floats:
    """Return the mean precision over the events, for weights (draws, n): (draws,)."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # of equal scores
    drawn = weights[:, order]
    above = np.cumsum(drawn, axis=1)[:, ends]
    found = np.cumsum(drawn * event[order], axis=1)[:, ends]
    steps = np.diff(found, axis=1, prepend=0.0)
    shares = np.divide(found, above, out=np.zeros_like(found), where=above > 0)
    total = found[:, -1]
    precision: Floats = np.divide(
        (shares * steps).sum(axis=1), total, out=np.full(len(total), np.nan), where=total > 0
    )
    return precision


def _stacked(predicted: Predicted) -> tuple[Floats, Floats]:
    """Return outcomes and weights of every cut's rows: (cuts * n,), (1 + draws, cuts * n)."""
    cuts = len(predicted.chances)
    truth = np.tile(predicted.event.astype(np.float64), cuts)
    return truth, np.tile(predicted.drawn[: 1 + REFITS] / cuts, (1, cuts))


def fitted(
    columns: Floats,
    truth: Floats,
    weights: Floats,
    *,
    offset: Floats | float = 0.0,
    penalty: Floats | None = None,
    is_linear: bool = False,
) -> Floats:
    """Return regression coefficients (fits, q) of columns (n, q), one for each row of weights.

    Logistic by Newton's method, or `is_linear` by least squares. `penalty`: (q,), times the half of
    a squared coefficient. Each fit starts from the first one's. NaN where there is no solution.
    """
    width = columns.shape[1]
    ridge = np.full(width, 1e-9) if penalty is None else penalty
    products = (columns[:, :, None] * columns[:, None, :]).reshape(-1, width * width)

    def steps(found: Floats, drawn: Floats, most: int) -> Floats:
        step = np.zeros_like(found)
        for _ in range(most):
            outputs = found @ columns.T + offset
            means = outputs if is_linear else 1 / (1 + np.exp(-np.clip(outputs, -500, 500)))
            curvature = drawn if is_linear else drawn * means * (1 - means)
            slopes = (drawn * (truth - means)) @ columns - ridge * found
            hessian = (curvature @ products).reshape(-1, width, width)
            hessian += np.diag(ridge + 1e-12)
            step = np.linalg.solve(hessian, slopes[..., None])[..., 0].astype(np.float64)
            found = found + (step if is_linear else np.clip(step, -LONGEST_STEP, LONGEST_STEP))
            if np.abs(step).max(initial=0.0) < 1e-9:
                break
        if not is_linear:  # outcomes that columns tell apart have no finite solution
            found[np.abs(step).max(axis=1) > CONVERGED] = np.nan
        return found

    first = steps(np.zeros((1, width)), weights[:1], 1 if is_linear else 30)
    if len(weights) == 1:
        return first
    rest = np.repeat(np.nan_to_num(first), len(weights) - 1, axis=0)
    return np.concatenate([first, steps(rest, weights[1:], 1 if is_linear else 12)])


def spline(values: Floats, knots: Sequence[float]) -> Floats:
    """Return a restricted cubic spline's columns (n, 3): linear beyond the outer knots.

    Without three different knots, a line's (n, 2).
    """
    line = np.column_stack([np.ones_like(values), values])
    first, middle, last = knots
    if not first < middle < last:
        return line

    def cube(beyond: Floats) -> Floats:
        return np.maximum(beyond, 0) ** 3

    bend = (
        cube(values - first)
        - cube(values - middle) * (last - first) / (last - middle)
        + cube(values - last) * (middle - first) / (last - middle)
    ) / (last - first) ** 2
    return np.column_stack([line, bend])


def _calibration_curve(predicted: Predicted, cell: int) -> dict[CurveName, Curve]:
    logits = _logits(predicted.chances).ravel()
    knots = np.quantile(logits, KNOTS).tolist()
    truth, weights = _stacked(predicted)
    found = fitted(spline(logits, knots), truth, weights)
    grid = _range_shown(predicted.chances, cell)
    if not len(grid):
        return {}
    fits = spline(_logits(grid), knots) @ found.T
    observed = 1 / (1 + np.exp(-np.clip(fits, -500, 500)))
    curve = _banded(grid, observed.T)
    return {"calibration": curve} if curve.x else {}


def _range_shown(values: Floats, cell: int) -> Floats:
    """Return places for a curve of values (cuts, n), with a cell of patients beyond either end.

    The ends are rounded, inwards, to two digits of the range.
    """
    ordered = np.sort(values.mean(axis=0))
    if len(ordered) < 3 * cell or ordered[-cell] - ordered[cell - 1] < SMALLEST:
        return np.empty(0)
    low, high = float(ordered[cell - 1]), float(ordered[-cell])
    digits = int(np.clip(1 - np.floor(np.log10(high - low)), -9, 9))
    step = 10.0**-digits
    low, high = float(np.ceil(low / step)) * step, float(np.floor(high / step)) * step
    return np.linspace(low, high, 41) if low < high else np.empty(0)


def _groups(predicted: Predicted, cell: int) -> Iterator[PredictedGroup]:
    mean = predicted.chances.mean(axis=0)
    for some in _by_quantile(mean, cell):
        drawn = predicted.drawn[:, some]
        observed = _share(drawn @ predicted.event[some], drawn.sum(axis=1))
        if observed is not None and (predicted.weights[some] > 0).sum() >= cell:
            yield PredictedGroup(
                num_patients=len(some), predicted=_rounded(mean[some].mean()), observed=observed
            )


def _by_quantile(values: Floats, cell: int, groups: int = GROUPS) -> list[NDArray[np.int64]]:
    """Return the patients in up to `groups` parts by value, each of at least a cell."""
    parts = min(groups, len(values) // max(cell, 1))
    if parts < 2:
        return []
    return [*np.array_split(np.argsort(values, kind="stable"), parts)]


def _of_numbers(
    model: str, predicted: Floats, targets: Floats, draws: Floats, cell: int
) -> ModelFigures:
    cuts, values = len(predicted), predicted.ravel()
    truth, weights = np.tile(targets, cuts), np.tile(draws[: 1 + REFITS] / cuts, (1, cuts))
    least = SMALLEST * (1 + float(np.abs(values).max()))
    scale = max(float(values.std()), least)
    middle = float(values.mean())
    scaled = (values - middle) / scale
    line = np.column_stack([np.ones_like(values), scaled])
    slope = fitted(line, truth, weights, is_linear=True)[:, 1] / scale
    if scale == least:  # all predictions are equal
        slope[:] = np.nan
    large = draws @ (targets - predicted.mean(axis=0)) / draws.sum(axis=1)
    curves: dict[CurveName, Curve] = {}
    grid = _range_shown(predicted, cell)
    if len(grid):
        knots = np.quantile(scaled, KNOTS).tolist()
        found = fitted(spline(scaled, knots), truth, weights, is_linear=True)
        observed = spline((grid - middle) / scale, knots) @ found.T
        curves["calibration"] = _banded(grid, observed.T)
    mean, groups = predicted.mean(axis=0), []
    for some in _by_quantile(mean, cell):
        drawn = draws[:, some]
        observed_mean = estimate(drawn @ targets[some] / np.maximum(drawn.sum(axis=1), 1))
        errors = np.sort(targets[some] - mean[some])
        spread = [around(errors, level, cell) for level in QUANTILES]
        if observed_mean is not None:
            groups.append(
                PredictedGroup(
                    num_patients=len(some),
                    predicted=_rounded(mean[some].mean()),
                    observed=observed_mean,
                    errors=tuple(None if each is None else _rounded(each) for each in spread),
                )
            )
    return ModelFigures(
        model=model,
        num_patients=len(targets),
        estimates=_defined(
            {"calibration_slope": estimate(slope), "calibration_in_the_large": estimate(large)}
        ),
        curves=curves,
        groups=tuple(groups),
    )


def _with_time(
    task: Survival,
    found: ModelFigures,
    each: Floats,
    targets: Targets,
    draws: Floats,
    cell: int,
) -> ModelFigures:
    """Return it with the AUROC at the cut points, and who was free of the event by risk."""
    curves = dict(found.curves)
    times, events = targets[:, 0], targets[:, 1] > 0
    areas, last = [], task.cut_points.index(found.horizon or task.cut_points[-1])
    enough = [t for t in task.cut_points[: last + 1] if (events & (times <= t)).sum() >= cell]
    shown = _cell_apart(enough, times, cell)
    for time in shown:
        happened, risks = events & (times <= time), 1 - each[:, :, task.cut_points.index(time)]
        drawn = draws * followed_weights(targets, time)
        areas.append(np.mean([binary_auroc(cut, happened, drawn) for cut in risks], axis=0))
    if shown:
        curves["auroc_by_time"] = _banded(np.array(shown), np.array(areas).T)
    risks = chances_of(task, each, -1, found.horizon).mean(axis=0)
    parts = _by_quantile(risks, cell, 3)
    names: tuple[CurveName, ...] = (
        ("free_of_event_low", "free_of_event_middle", "free_of_event_high")
        if len(parts) == 3
        else ("free_of_event_low", "free_of_event_high")
    )
    for name, some in zip(names, parts, strict=False):
        points = [t for t in task.cut_points if (times[some] >= t).sum() >= cell]
        if points := _cell_apart(points, times[some], cell):
            free = kaplan_meier(targets[some], draws[:, some], points)
            shown_at = np.array([0.0, *points])
            free = np.column_stack([np.ones(len(free)), free])
            curves[name] = _banded(shown_at, free)
    return found.model_copy(update={"curves": curves})


def _cell_apart(points: Sequence[float], times: Floats, cell: int) -> list[float]:
    """Return the last point, and others with a cell of times up to each and between any two."""
    chosen: list[float] = []
    ended = np.inf  # by the earliest one chosen
    for point in reversed(points):
        if (before := int((times <= point).sum())) >= cell and ended - before >= cell:
            chosen, ended = [point, *chosen], before
    return chosen


def kaplan_meier(targets: Targets, weights: Floats, points: Sequence[float]) -> Floats:
    """Return the share without the event at `points`, by row of weights: (draws, points)."""
    order = np.argsort(targets[:, 0], kind="stable")
    times, drawn = targets[order, 0], weights[:, order]
    starts = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    happened = np.add.reduceat(drawn * (targets[order, 1] > 0), starts, axis=1)
    left = np.add.reduceat(drawn, starts, axis=1)
    at_risk = left[:, ::-1].cumsum(axis=1)[:, ::-1]
    hazards = np.divide(happened, at_risk, out=np.zeros_like(happened), where=at_risk > 0)
    survived = np.column_stack([np.ones(len(drawn)), np.cumprod(1 - hazards, axis=1)])
    free: Floats = survived[:, np.searchsorted(times[starts], points, side="right")]
    return free


def subgroups(dataset: LocalDataset, predictions: Floats) -> Iterator[Subgroup]:
    """Yield the groups of the declared columns, measured by one model's predictions.

    What is hidden of a column is together at least a cell, of those with the event and without.
    """
    task, evaluation, cell = dataset.study.task, dataset.study.evaluation, dataset.cells.cell
    kept, targets, draws = _shown_patients(dataset)
    num_measured, every = predictions.shape[-2], by_cut(predictions)[:, kept]
    measured: Predicted | None = None
    if len(events := events_of(task)) == 1:
        of = event_of(task, targets, events[0][1], cell)
        if of is not None:
            happened, weights, horizon = of
            chances = chances_of(task, every, events[0][1], horizon)
            measured = Predicted(chances, happened, weights, draws)
    for feature, values in dataset.columns(every=evaluation.folds is not None):
        if feature.name not in evaluation.subgroups:
            continue
        of_patients = values[len(values) - num_measured :][kept]
        groups = dict(_groups_of(feature, of_patients, evaluation.subgroups[feature.name]))
        hidden = _hidden(dataset, groups, measured)
        for label, some in groups.items():
            found: Measures = {}
            if label not in hidden and measured is not None:
                found = _of_subgroup(measured, some)
            elif label not in hidden and isinstance(task, Regression):
                found = _of_numbers_in(every[..., 0], targets, draws, some)
            count = None if label in hidden else int(some.sum())
            yield Subgroup(column=feature.name, group=label, num_patients=count, **found)


def _groups_of(
    feature: Feature, values: Floats, cuts: Sequence[float]
) -> Iterator[tuple[str, Bools]]:
    if isinstance(feature, CategoryFeature):
        for code, category in enumerate(feature.categories):
            yield str(category), values == code
        return
    unit = f" {feature.unit}" if feature.unit else ""
    yield f"below {cuts[0]:g}{unit}", values < cuts[0]
    for low, high in pairwise(cuts):
        yield f"{low:g} to below {high:g}{unit}", (values >= low) & (values < high)
    yield f"{cuts[-1]:g}{unit} and above", values >= cuts[-1]


def _hidden(
    dataset: LocalDataset, groups: Mapping[str, Bools], measured: Predicted | None
) -> set[str]:
    """Return groups that are too small, or whose sizes would disclose those of others."""
    of = np.ones(len(next(iter(groups.values()))), dtype=bool)
    parts = [of]
    if measured is not None:  # in survival, only patients whose outcome is known count
        parts = [measured.event, ~measured.event & (measured.weights > 0)]
    hidden: set[str] = set()
    # The total is known, also without those who have no value: they count as one more group.
    missing = ~np.any([*groups.values()], axis=0)
    for part in parts:
        sizes = {label: int((some & part).sum()) for label, some in groups.items()}
        told = dataset.cells.groups(
            {**sizes, "": int((missing & part).sum()) or dataset.cells.cell}
        )
        hidden |= {label for label, count in told.items() if count is None and label}
    while len(hidden) == 1 and len(groups) > 1:  # all others together would show it
        rest = [label for label in groups if label not in hidden]
        hidden.add(min(rest, key=lambda label: int(groups[label].sum())))
    return hidden


Measures = dict[str, Estimate | None]


def _of_subgroup(measured: Predicted, some: Bools) -> Measures:
    own = measured.of(some)
    area = own.auroc()
    return {
        "discrimination": estimate(area),
        "gap": estimate(area - measured.of(~some).auroc()) if (~some).any() else None,
        "calibration": estimate(own.expected_over_observed()),
    }


def _of_numbers_in(predicted: Floats, targets: Floats, draws: Floats, some: Bools) -> Measures:
    def explained(part: Bools) -> Floats:
        drawn, truth = draws[:, part], targets[part]
        total = np.maximum(drawn.sum(axis=1), 1)
        mean = drawn @ truth / total
        spread = drawn @ truth**2 / total - mean**2
        error = drawn @ np.mean((predicted[:, part] - truth) ** 2, axis=0) / total
        share: Floats = 1 - np.divide(
            error, spread, out=np.full(len(error), np.nan), where=spread > 1e-12
        )
        return share

    drawn = draws[:, some]
    errors = drawn @ (targets[some] - predicted.mean(axis=0)[some])
    own = explained(some)
    return {
        "discrimination": estimate(own),
        "gap": estimate(own - explained(~some)) if (~some).any() else None,
        "calibration": estimate(errors / np.maximum(drawn.sum(axis=1), 1)),
    }


def estimate(values: Floats) -> Estimate | None:
    """Return the first of values (1 + draws,) with the others' interval; None where undefined."""
    drawn = values[1:][np.isfinite(values[1:])]
    if not np.isfinite(values[0]) or len(drawn) * 2 < len(values) - 1:
        return None
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (values[0], values[0])
    return Estimate(
        value=_rounded(values[0]),
        low=_rounded(min(low, values[0])),
        high=_rounded(max(high, values[0])),
    )


def _defined(estimates: Mapping[EstimateName, Estimate | None]) -> dict[EstimateName, Estimate]:
    return {name: each for name, each in estimates.items() if each is not None}


def _share(part: Floats, of: Floats) -> Estimate | None:
    """Return a share, its interval widened to Wilson's where nearly all or none have it."""
    shares = np.divide(part, of, out=np.full(len(of), np.nan), where=of > 1e-9)
    shares = np.clip(shares, 0.0, 1.0)  # sums of weights are rounded
    if (found := estimate(shares)) is None:
        return None
    size = max(1, round(float(of[0])))
    seen = (np.arange(size) < round(found.value * size)).astype(np.float64)
    low, high = of_mean(seen, 1 - seen)
    return Estimate(
        value=found.value,
        low=_rounded(max(0.0, min(low, found.low))),
        high=_rounded(min(1.0, max(high, found.high))),
    )


def _banded(x: Floats, values: Floats) -> Curve:
    """Return the first of draws (1 + draws, points) with the others' 95 % band; else no point."""
    known = values[1:][np.isfinite(values[1:]).all(axis=1)]
    if len(known) * 2 < len(values) - 1:
        return Curve(x=(), y=(), low=(), high=())
    low, high = np.percentile(known, [2.5, 97.5], axis=0)
    return _curve(x, values[0], np.minimum(low, values[0]), np.maximum(high, values[0]))


def _curve(x: Floats, y: Floats, low: Floats, high: Floats) -> Curve:
    known = np.isfinite(x) & np.isfinite(y) & np.isfinite(low) & np.isfinite(high)
    parts = (tuple(map(_rounded, each[known].tolist())) for each in (x, y, low, high))
    x_values, y_values, lows, highs = parts
    return Curve(x=x_values, y=y_values, low=lows, high=highs)


def _logits(chances: Floats) -> Floats:
    clipped = np.clip(chances, SMALLEST, 1 - SMALLEST)
    logits: Floats = np.log(clipped / (1 - clipped))
    return logits


def _rounded(value: float) -> float:
    """Return six digits, which are more than anybody reads."""
    return float(f"{np.clip(value, -LARGEST_FIGURE, LARGEST_FIGURE):.6g}")
