"""Survival: when an event happens, where some patients are not followed until it does.

Discrete-time hazards (Gensheimer & Narasimhan 2019, nnet-survival). The study cuts time into
intervals, and the model gives a logit for each: the hazard, which is the chance of the event within
the interval for who came to its beginning without one. The likelihood is then a sum over patients.
So mini-batches, distances between updates and the paired test by patient mean what they mean for
every other task, which a Cox model's partial likelihood, a sum over pairs of patients, would not
allow.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn.functional import softplus

from erosion_common.settings.base import Settings
from erosion_common.settings.names import Code, ColumnName, Unit
from erosion_common.support.software import install_command
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.metric import (
    LARGEST_LOG_LOSS,
    LARGEST_LOG_LOSS_DIFFERENCE,
    Metric,
    log_losses,
    of_mean,
    of_ranking,
)
from erosion_common.tasks.task import (
    Bounds,
    CodedColumn,
    DerivedLoss,
    Floats,
    Loss,
    Targets,
    Task,
    as_tensor,
    weighted_means,
)

TIED = 1e-8  # risks that differ by no more, as in scikit-survival; such a pair is half right
CHUNK = 4_000_000  # pairs in memory at a time


def concordances(risks: Floats, targets: Targets, weights: Floats, counts: Floats) -> Floats:
    """Return it for each row of `counts` and resample: (rows, resamples), NaN without any pair.

    `risks`: (n,). `targets`: (n, 2), time and 1 for an event. `weights`: (resamples, n), how often
    each patient was drawn. `counts`: (rows, n), what a pair counts, by the patient with the event.
    Copies of one patient are no comparable pair.
    """
    times, with_event = targets[:, 0], targets[:, 1] > 0
    events = np.flatnonzero(with_event)
    drawn = weights.astype(np.float32)  # sums of halves, exact up to eight million patients
    right, all_pairs = np.zeros((2, len(counts), len(weights)))
    at_a_time = max(1, CHUNK // max(len(weights), len(risks)))
    for start in range(0, len(events), at_a_time):
        some = events[start : start + at_a_time]
        longer = times > times[some, None]
        comparable = longer | ((times == times[some, None]) & ~with_event)  # (some, n)
        lead = risks[some, None] - risks
        scores = comparable * np.where(np.abs(lead) <= TIED, 0.5, lead > 0)
        for total, pairs in ((right, scores), (all_pairs, comparable)):
            of_event = weights[:, some] * (drawn @ pairs.T.astype(np.float32))
            total += counts[:, some] @ of_event.T
    shares: Floats = np.divide(
        right, all_pairs, out=np.full_like(right, np.nan), where=all_pairs > 0
    )
    return shares


MOST_INTERVALS = 100
MOSTLY = (
    0.9  # of the times: as many before the first cut point or after the last are to be asked about
)
_LINEAR_ABOVE = 20  # where torch's softplus gives up its logarithm
_through_softplus = torch.ops.aten.softplus_backward.default


class SurvivalTarget(Settings):
    """The two columns: how long a patient was followed, and whether the event ended that."""

    time: ColumnName = Field(description="Column with the time that the patient was followed.")
    event: ColumnName = Field(
        description="Column that says whether the event happened at the end of that time."
    )
    unit: Unit = Field(  # of the time
        default="", description='Unit of the time, for people, such as `"days"`.'
    )
    happened: tuple[Code, ...] = Field(
        default=("1",), description="Values of the event column that mean that it happened."
    )
    censored: tuple[Code, ...] = Field(
        default=("0",),
        description="Values of the event column that mean: followed until then, without the event.",
    )


def _ascending(points: tuple[float, ...]) -> tuple[float, ...]:
    if any(b <= a for a, b in zip((0.0, *points), points, strict=False)):
        raise ValueError("write times above 0, each later than the one before")
    return points


class Survival(Task):
    """Predict when an event happens; some patients were not followed until then.

    `cut_points` are the ends of the intervals, in the unit of the time column; the last one is the
    horizon, beyond which nothing is predicted. The study declares them, because hospitals must
    agree on them. A patient who is not followed to the end of an interval counts for it where at
    least half of it was seen.
    """

    outcome: Literal["survival"] = Field(
        default="survival", description="What kind of thing is predicted: when an event happens."
    )
    target: SurvivalTarget = Field(
        description="The two columns that say how long a patient was followed, and whether the "
        "event ended that."
    )
    cut_points: Annotated[tuple[float, ...], AfterValidator(_ascending)] = Field(
        min_length=2,
        max_length=MOST_INTERVALS,
        description="Ends of the intervals, ascending, in the unit of the time column. The last "
        "one is the horizon, beyond which nothing is predicted. Take few: an update can tell the "
        "record of a patient who alone leaves in an interval.",
    )

    predicts: ClassVar[Literal["classes", "number", "times", "other"]] = "times"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "harrell_c",
            "Harrell's C",
            "chance of ranking a pair rightly",
            "higher",
            remark="A patient's rank is the predicted chance of an event by the horizon; 0.5 is"
            " what chance ranks rightly.",
            least=0.0,
            most=1.0,
            by_chance=0.5,
        ),
        Metric(
            "uno_c",
            "Uno's C",
            "chance of ranking a pair rightly",
            "higher",
            remark="Uno's C is up to the horizon and weighted by how likely a patient was still"
            " followed.",
            least=0.0,
            most=1.0,
            by_chance=0.5,
        ),
        Metric(
            "integrated_brier",
            "integrated Brier score",
            "squared distance",
            "lower",
            "int. Brier",
            from_zero=True,
            least=0.0,  # weights of who was followed for long have no limit
        ),
        Metric(
            "log_loss",
            "log loss",
            "nats per patient",
            "lower",
            from_zero=True,
            remark="The log loss is that of what was seen of a patient: the interval of the event,"
            " or the time without one.",
            least=0.0,
            most=LARGEST_LOG_LOSS,
        ),
    )
    curves: ClassVar[tuple[str, ...]] = ("harrell_c", "log_loss")
    headline: ClassVar[tuple[str, ...]] = ("log_loss", "harrell_c")
    in_progress: ClassVar[tuple[str, ...]] = ("harrell_c", "log_loss")
    leak_metric: ClassVar[str] = "harrell_c"
    verdict_metric: ClassVar[str] = "log_loss"
    group_word: ClassVar[str] = "with the event"
    verdict_needs: ClassVar[str] = "at least {fewest} {tested} had the event"
    unmeasurable_remedy: ClassVar[str] = (
        "Add patients with the event, or check the columns of the target, [data.values] and"
        " [data.units]."
    )
    patients_apart: ClassVar[bool] = True

    @property
    def target_columns(self) -> tuple[NumberFeature | CodedColumn, ...]:
        wanted = self.target
        codes = {**dict.fromkeys(wanted.happened, 1.0), **dict.fromkeys(wanted.censored, 0.0)}
        wrong = (
            f"neither of the event ({', '.join(wanted.happened)}) nor of its absence"
            f" ({', '.join(wanted.censored)})"
        )
        return (
            NumberFeature(name=wanted.time, unit=wanted.unit, range=(0, 1e9)),
            CodedColumn(wanted.event, codes, wrong),
        )

    def targets(self, columns: Floats) -> Floats:
        """Return time, and 1 for an event: (n, 2)."""
        return columns.astype(np.float64)

    def why_unmeasurable(self, targets: Targets) -> str:
        """Refuse a test or training part without an event, or of the first interval alone."""
        events, first = int(targets[:, 1].sum()), self.cut_points[0]
        if events < 2:
            return f"{('nobody', 'one patient alone')[events]} had the event"
        is_early = bool((targets[:, 0] <= first).all())
        return f"nobody was followed beyond the first cut point, {first:g}" if is_early else ""

    def doubt_about(self, targets: Targets) -> str:
        """Return a doubt if nearly all times lie on one side of the cut points: another unit?"""
        if not len(targets):
            return ""
        times, (first, *_, last) = targets[:, 0], self.cut_points
        early, late = float((times <= first).mean()), float((times > last).mean())
        if max(early, late) < MOSTLY:
            return ""
        where = f"{early:.0%} of the values are up to {first:g}"
        if late > early:
            where = f"{late:.0%} of the values are above {last:g}"
        unit = f" {self.target.unit}" if self.target.unit else ""
        return (
            f"column {self.target.time}: {where}, while the study's intervals end at {first:g} to"
            f" {last:g}{unit}; correct its unit under [data.units], if it is another"
        )

    def groups(self, targets: Targets) -> dict[str, int]:
        events = int(targets[:, 1].sum())
        return {"with the event": events, "censored": len(targets) - events}

    def strata(self, targets: Targets) -> NDArray[np.int64]:
        return targets[:, 1].astype(np.int64)

    def update_parts(self, targets: Targets) -> NDArray[np.int64]:
        """Return the parts by intervals survived, those with the event in the next one apart."""
        seen_until = as_tensor(targets)  # as rounded as those that are trained on
        died, survived = _Intervals.of(self.cut_points, seen_until).seen(seen_until)
        parts: NDArray[np.int64] = (2 * survived + died).sum(dim=1).long().numpy()
        return parts

    def smallest_group(self, targets: Targets) -> int:
        return int(targets[:, 1].sum())

    @property
    def num_outputs(self) -> int:
        return len(self.cut_points)

    @property
    def start(self) -> float:
        """The logit of a hazard with which half are without the event at the horizon.

        Outputs are added to it. From 0, every interval would begin with a hazard of a half, and
        training would be spent on unlearning that.
        """
        hazard = 1 - 0.5 ** (1 / len(self.cut_points))
        return log(hazard / (1 - hazard))

    def training_loss(self, targets: Tensor) -> Loss:
        # Made once and out here: what is made inside a transform of torch.func is of no use after.
        return _MinusLogLikelihood(_Intervals.of(self.cut_points, targets), self.start)

    def base_rate_outputs(self, targets: Tensor) -> Tensor:
        """Return the logits of each interval's share of events: (intervals,) float32."""
        seen = _Intervals.of(self.cut_points, targets).seen(targets)
        died, survived = (each.double().sum(dim=0) for each in seen)
        return (torch.log((died + 0.5) / (survived + 0.5)) - self.start).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(-outputs - self.start).cumprod(dim=1)

    def held_out_loss(self, predictions: Tensor, targets: Tensor) -> float:
        """Return mean of minus the log of the chance of what was seen, nothing clipped."""
        died, survived = _Intervals.of(self.cut_points, targets).seen(targets)
        chance = _chance_of_seen(predictions, died.to(predictions), survived.to(predictions))
        return float(-chance.nan_to_num(nan=0.0).log().mean())

    def prediction_columns(self) -> list[str]:
        """Return the chance to be event-free at each cut point, and of the event by the horizon."""
        points = [
            repr(point).removesuffix(".0") for point in self.cut_points
        ]  # in all their digits
        return [*(f"event_free_at_{point}" for point in points), "risk"]

    def prediction_cells(self, prediction: Sequence[float]) -> list[str]:
        """Return them in all their digits: patients are ranked by the last ones."""
        return [repr(float(value)) for value in (*prediction, 1 - prediction[-1])]

    def usable(self, predictions: Floats) -> Floats:
        """Return a half at all times where outputs overflowed."""
        return np.where(np.isnan(predictions), 0.5, predictions)

    @property
    def largest_difference(self) -> float:
        return LARGEST_LOG_LOSS_DIFFERENCE

    def patient_losses(self, predictions: Floats, targets: Targets) -> Floats:
        """Return -log of the chance of what was seen of each patient, clipped to [0.01, 0.99]."""
        return log_losses(self._chances_of_seen(predictions, targets))

    def seen_intervals(self, targets: Targets) -> tuple[Floats, Floats]:
        """Return each patient's interval of the event, and those survived: (n, K) of 0, 1."""
        seen_until = torch.from_numpy(targets)
        died, survived = _Intervals.of(self.cut_points, seen_until).seen(seen_until)
        return died.numpy(), survived.numpy()

    def _chances_of_seen(self, predictions: Floats, targets: Targets) -> Floats:
        tensor, seen_until = torch.from_numpy(predictions), torch.from_numpy(targets)
        died, survived = _Intervals.of(self.cut_points, seen_until).seen(seen_until)
        chance: Floats = _chance_of_seen(tensor, died.to(tensor), survived.to(tensor)).numpy()
        return chance

    def base_rate(self, training: Targets) -> Floats:
        from sksurv.nonparametric import kaplan_meier_estimator

        times, chances = kaplan_meier_estimator(training[:, 1] > 0, training[:, 0])
        steps = np.concatenate(([1.0], chances))
        found: Floats = steps[np.searchsorted(times, self.cut_points, side="right")]
        return found

    def figures(
        self, predictions: Floats, targets: Targets, weights: Floats, training: Targets
    ) -> dict[str, Floats]:
        losses = {
            "log_loss": self.patient_losses(predictions, targets),
            "integrated_brier": self._brier_scores(predictions, targets, training),
        }
        weight = self._weights_of_events(targets, training)
        known = np.nan_to_num(weight)
        counts = np.stack([np.ones_like(known), known])
        harrell_c, uno_c = concordances(1 - predictions[:, -1], targets, weights, counts)
        uno_c[(weights[:, np.isnan(weight)] > 0).any(axis=1)] = np.nan
        return {**weighted_means(losses, weights), "harrell_c": harrell_c, "uno_c": uno_c}

    def score_intervals(
        self, predictions: Floats, targets: Targets, training: Targets
    ) -> dict[str, Bounds]:
        """Return intervals, as if the opposite could have been seen of each patient.

        A concordance's is that of ranking those with the event among all.
        """
        chances = self._chances_of_seen(predictions, targets)
        found = {"log_loss": of_mean(log_losses(chances), log_losses(1 - chances))}
        scores, opposite = (
            self._brier_scores(alive, targets, training) for alive in (predictions, 1 - predictions)
        )
        if np.isfinite(scores).all():
            found["integrated_brier"] = of_mean(scores, opposite)
        if np.ptp(predictions[:, -1]) == 0:  # one risk for everyone: exactly 1/2
            return found
        events = max(1, self.smallest_group(targets))
        figures = self.figures(predictions, targets, np.ones((1, len(targets))), training)
        for name in ("harrell_c", "uno_c"):
            if np.isfinite(figures[name][0]):
                found[name] = of_ranking(float(figures[name][0]), events, len(targets))
        return found

    def _weights_of_events(self, targets: Targets, training: Targets) -> Floats:
        """Return an event's weight in Uno's C: (n,), 0 from the horizon on, NaN where unknown.

        It is 1 / (the chance that a patient is followed until then) squared, as scikit-survival
        has it: unknown beyond the training part's follow-up, and where nobody there had the event.
        """
        times, events = targets[:, 0], targets[:, 1] > 0
        if not training[:, 1].any():
            return np.full(len(times), np.nan)
        last = training[:, 0].max()
        followed = chance_of_being_followed(training)(np.minimum(times, last))
        followed[(times > last) | (followed == 0)] = np.nan
        weights: Floats = np.where(events & (times < self.cut_points[-1]), 1 / followed**2, 0.0)
        return weights

    def _brier_scores(self, predictions: Floats, targets: Targets, training: Targets) -> Floats:
        """Return each patient's part of the integrated Brier score (Graf et al. 1999): (n,).

        It is over the cut points up to which patients of both parts were followed, and NaN where
        these are fewer than two.
        """
        times, events = targets[:, :1], targets[:, 1:] > 0
        points = np.array(self.cut_points)
        shown = points < min(times.max(), training[:, 0].max())
        if shown.sum() < 2:
            return np.full(len(targets), np.nan)
        points, alive = points[shown], predictions[:, shown]
        followed = chance_of_being_followed(training)
        until_event = followed(np.minimum(times[:, 0], points[-1]))[:, None]
        scores = np.where(
            times > points,
            np.square(1 - alive) / followed(points),
            np.square(alive) * events / until_event,
        )
        integrated: Floats = np.trapezoid(scores, points, axis=1) / np.ptp(points)
        return integrated

    def why_not_here(self) -> str:
        if importlib.util.find_spec("sksurv") is not None:
            return ""
        return (
            "The study predicts survival, and its user's site measures that with scikit-survival,"
            f" which is not installed here. Run: {install_command('survival')}"
        )


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Between the cut points, each (K,)."""

    begins: Tensor
    middles: Tensor
    ends: Tensor

    @classmethod
    def of(cls, cut_points: Sequence[float], targets: Tensor) -> Self:
        """Return them in the targets' type, on their device."""
        ends = targets.new_tensor(cut_points)
        begins = torch.cat([ends.new_tensor([-torch.inf]), ends[:-1]])
        return cls(begins, (begins.clamp(min=0) + ends) / 2, ends)

    def seen(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return each patient's interval of the event, and those survived: (n, K) of 0, 1."""
        times, events = targets[:, :1], targets[:, 1:] > 0
        died = events & (times > self.begins) & (times <= self.ends)
        survived = torch.where(events, times > self.ends, times >= self.middles)
        kind = targets.dtype if targets.is_floating_point() else torch.float32
        return died.to(kind), survived.to(kind)


@dataclass(frozen=True, slots=True)
class _MinusLogLikelihood(DerivedLoss):
    """A mini-batch's mean, and its gradient in the outputs as autograd finds it."""

    intervals: _Intervals
    start: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        died, survived = self.intervals.seen(targets)
        logits = outputs + self.start
        return (died * softplus(-logits) + survived * softplus(logits)).sum(dim=1).mean()

    def output_gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return (m, K): the softplus's derivative is the sigmoid, as rounded as autograd's."""
        died, survived = (seen / len(targets) for seen in self.intervals.seen(targets))
        logits = outputs + self.start
        of_survival: Tensor = _through_softplus(survived, logits, 1, _LINEAR_ABOVE)
        return of_survival.sub_(_through_softplus(died, -logits, 1, _LINEAR_ABOVE))


def _chance_of_seen(predictions: Tensor, died: Tensor, survived: Tensor) -> Tensor:
    """Return the chance of the event in its interval, or of surviving those seen: (n,)."""
    ones = torch.ones_like(predictions[:, :1])
    curve = torch.cat([ones, predictions], dim=1)  # (n, K + 1), from 1 at the beginning
    last = survived.sum(dim=1, keepdim=True).long()
    alive = curve.gather(1, last)[:, 0]
    in_interval = ((curve[:, :-1] - curve[:, 1:]) * died).sum(dim=1)
    return torch.where(died.sum(dim=1) > 0, in_interval, alive)


def chance_of_being_followed(training: Targets) -> Callable[[Floats], Floats]:
    """Return a function of times (n,): Kaplan and Meier's estimate of follow-up beyond them."""
    from sksurv.nonparametric import CensoringDistributionEstimator, SurvivalFunctionEstimator

    known: Callable[[Floats], Floats]
    if training[:, 1].any():
        known = CensoringDistributionEstimator().fit(_as_survival(training)).predict_proba
        return known
    # That one refuses patients without an event, so the end of follow-up is the event.
    ended = np.column_stack([training[:, 0], np.ones(len(training))])
    known = SurvivalFunctionEstimator().fit(_as_survival(ended)).predict_proba
    return known


def _as_survival(targets: Targets) -> NDArray[np.void]:
    from sksurv.util import Surv

    structured: NDArray[np.void] = Surv.from_arrays(targets[:, 1] > 0, targets[:, 0])
    return structured
