"""A count: how often something happens to a patient, such as admissions or exacerbations."""

from math import inf, log
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.task import Floats, Loss, Targets, weighted_means

MOST_OUTPUT = 20.0  # e^20 times the centre: a model that diverged
LARGEST_COUNT = 1e6


class _CountColumn(NumberFeature):
    whole: ClassVar[bool] = True


class Count(Regression):
    """Predict how often something happens. The model is fitted to the logarithm of the rate.

    The rate is `centre` times e to what the model gives, and the loss is Poisson's. All patients
    are followed equally long: a time of follow-up cannot be given. `centre` and `spread` are what
    the study takes for the mean and the standard deviation of the counts; they only have to be of
    the right size. The verdict is by the squared error, as for a number.
    """

    outcome: Literal["count"] = Field(  # type: ignore[assignment]  # instead of its base's
        default="count", description="What kind of thing is predicted: a count, in whole numbers."
    )
    centre: float = Field(
        gt=0,
        le=LARGEST_COUNT,
        description="About the mean of the counts, above 0. It only has to be of the right size.",
    )

    metrics: ClassVar[tuple[Metric, ...]] = (
        *Regression.metrics,
        Metric(
            "deviance",
            "deviance",
            "of a patient, Poisson's",
            "lower",
            from_zero=True,
            remark="The deviance is Poisson's, twice the log likelihood that a perfect prediction"
            " would have more; its mean is about 1 where counts scatter as Poisson's law says.",
            least=0.0,
        ),
    )
    curves: ClassVar[tuple[str, ...]] = ("deviance", "squared_error")
    patients_apart: ClassVar[bool] = True

    @property
    def effect_of_one(self) -> float:
        """That of the logarithm of the rate."""
        return 1.0

    @property
    def target_columns(self) -> tuple[NumberFeature, ...]:
        """The count, in one column; nothing below 0 is one, and no fraction."""
        low, high = self.range or (0.0, LARGEST_COUNT)
        return (_CountColumn(name=self.target, unit=self.unit, range=(max(0.0, low), high)),)

    def training_loss(self, targets: Tensor) -> Loss:
        def poisson(outputs: Tensor, batch: Tensor) -> Tensor:
            scores = outputs[:, 0].clamp(max=MOST_OUTPUT)
            return (scores.exp() - batch / self.centre * scores).mean()

        return poisson

    def base_rate_outputs(self, targets: Tensor) -> Tensor:
        mean = max(float(targets.double().mean()), 1e-6 * self.centre)
        return torch.tensor([log(mean / self.centre)])

    def predictions(self, outputs: Tensor) -> Tensor:
        return self.centre * outputs.clamp(max=MOST_OUTPUT).exp()

    def held_out_loss(self, predictions: Tensor, targets: Tensor) -> float:
        rates, counts = (each.double().cpu().numpy() for each in (predictions[:, 0], targets))
        return float(_deviances(rates, counts).mean()) if np.isfinite(rates).all() else inf

    def usable(self, predictions: Floats) -> Floats:
        """Return the centre where the model gives no number, and nothing below 0."""
        return np.clip(super().usable(predictions), 0.0, None)

    def figures(
        self, predictions: Floats, targets: Targets, weights: Floats, training: Targets
    ) -> dict[str, Floats]:
        deviances = {"deviance": _deviances(predictions[:, 0], targets)}
        return {
            **super().figures(predictions, targets, weights, training),
            **weighted_means(deviances, weights),
        }


def _deviances(rates: Floats, counts: Floats) -> Floats:
    """Return 2 (y log(y / mu) - y + mu) of each patient: (n,). A rate of 0 counts as very small."""
    rates = np.maximum(rates, 1e-9)
    logs = counts * np.log(np.where(counts > 0, counts / rates, 1.0))
    found: Floats = 2 * (logs - counts + rates)
    return found
