"""Regression: a number that is measured, such as a length of stay or a score a year later."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from erosion_common.settings.names import ColumnName, Unit
from erosion_common.tasks.features import NumberFeature, Range
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.task import Floats, Loss, Targets, Task, means_of_patients, weighted_means

LARGEST_RESIDUAL = 4.0  # spreads; one patient far out must not outweigh all others in a verdict
FARTHEST = 1e6  # spreads; a prediction beyond is a model that diverged


class Regression(Task):
    """Predict a number. The model is fitted to (target - centre) / spread by squared error.

    `centre` and `spread` are what the study takes for the mean and the standard deviation of the
    target. They only have to be of the right size: they set the scale of the loss, so that a
    learning rate means the same in any unit. The study declares them, because hospitals must
    agree on them, and sums of their patients' outcomes would have to leave them otherwise. With
    `range`, a value outside is refused.
    """

    outcome: Literal["regression"] = Field(
        default="regression", description="What kind of thing is predicted: a number."
    )
    target: ColumnName = Field(  # column
        description="Column that holds the number."
    )
    unit: Unit = Field(default="", description="Unit of the target, for people.")
    range: Range | None = Field(
        default=None,
        description="Smallest and largest value allowed, both included; another one is refused.",
    )
    centre: float = Field(
        description="About the mean of the target, in its unit. It only has to be of the right "
        "size."
    )
    spread: float = Field(
        gt=0,
        description="About the standard deviation of the target, in its unit. It sets the scale "
        "of the loss.",
    )

    predicts: ClassVar[Literal["classes", "number", "times", "other"]] = "number"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "rmse",
            "RMSE",
            "in the target's unit",
            "lower",
            from_zero=True,
            in_target_unit=True,
            least=0.0,
        ),
        Metric(
            "mae",
            "MAE",
            "in the target's unit",
            "lower",
            from_zero=True,
            in_target_unit=True,
            least=0.0,
        ),
        Metric(
            "r2",
            "R²",
            "share of variance explained",
            "higher",
            remark="R² is 1 for perfect predictions, and 0 for naming the mean of the test"
            " patients.",
            most=1.0,
        ),
        Metric(
            "calibration_slope",
            "calibration slope",
            "observed per predicted",
            "near 1",
            "slope",
            remark="The calibration slope is that of the observed values on the predicted ones:"
            " below 1, predictions are too extreme; above, too timid.",
        ),
        Metric(
            "squared_error",
            "squared error",
            "spreads squared",
            "lower",
            "sq. error",
            from_zero=True,
            remark="The squared error is in squares of the study's spread, and one patient counts"
            f" at most {LARGEST_RESIDUAL:g} spreads.",
            least=0.0,
            most=LARGEST_RESIDUAL**2,
        ),
    )
    curves: ClassVar[tuple[str, ...]] = ("rmse", "squared_error")
    headline: ClassVar[tuple[str, ...]] = ("squared_error", "rmse")
    in_progress: ClassVar[tuple[str, ...]] = ("rmse", "squared_error")
    leak_metric: ClassVar[str] = "r2"
    verdict_metric: ClassVar[str] = "squared_error"
    group_word: ClassVar[str] = "in all"
    verdict_needs: ClassVar[str] = "there are at least {fewest} {tested}"
    unmeasurable_remedy: ClassVar[str] = (
        "Add patients, or check the target column and the study's spread."
    )
    patients_apart: ClassVar[bool] = True

    @property
    def effect_of_one(self) -> float:
        """What one of the model's output is in the unit of a coefficient."""
        return self.spread

    @property
    def target_columns(self) -> tuple[NumberFeature, ...]:
        return (NumberFeature(name=self.target, unit=self.unit, range=self.range),)

    def targets(self, columns: Floats) -> Floats:
        return columns[:, 0].astype(np.float64)

    def why_unmeasurable(self, targets: Targets) -> str:
        """Refuse equal targets, and a spread so small that nearly every error is capped."""
        if len(targets) < 2:
            return "fewer than two patients have a target"
        if np.ptp(targets) == 0:
            return f"all patients have the target {targets[0]:g}"
        apart = float(np.median(np.abs(targets - targets.mean()))) / self.spread
        if apart < LARGEST_RESIDUAL:
            return ""
        return (
            f"half of the patients are at least {LARGEST_RESIDUAL:g} spreads of {self.spread:g}"
            " from their mean, where errors are capped"
        )

    def groups(self, targets: Targets) -> dict[str, int]:
        return {}

    def described(self, targets: Targets) -> str:
        if not len(targets):
            return "none"
        return (
            f"{targets.min():g} to {targets.max():g} {self.unit}".rstrip()
            + f", mean {targets.mean():.4g}, deviation {targets.std():.4g}"
        )

    def strata(self, targets: Targets) -> NDArray[np.int64]:
        """Return low, middle and high, cut half a spread below and above the centre."""
        return np.digitize(self._standardised(targets), [-0.5, 0.5]).astype(np.int64)

    def targets_of_patients(self, targets: Targets, patients: NDArray[np.int64] | None) -> Targets:
        return targets if patients is None else means_of_patients(targets, patients)

    def smallest_group(self, targets: Targets) -> int:
        return len(targets)

    @property
    def num_outputs(self) -> int:
        return 1

    def training_loss(self, targets: Tensor) -> Loss:
        def squared_error(outputs: Tensor, batch: Tensor) -> Tensor:
            return mse_loss(outputs[:, 0], (batch - self.centre) / self.spread)

        return squared_error

    def base_rate_outputs(self, targets: Tensor) -> Tensor:
        return ((targets.double().mean() - self.centre) / self.spread).float().reshape(1)

    def predictions(self, outputs: Tensor) -> Tensor:
        return self.centre + self.spread * outputs

    def held_out_loss(self, predictions: Tensor, targets: Tensor) -> float:
        """Return mean squared error in spreads, nothing clipped."""
        squares = ((predictions[:, 0] - targets.double()) / self.spread).square()
        return float(squares.nan_to_num(nan=torch.inf).mean())

    def prediction_columns(self) -> list[str]:
        return ["predicted"]

    def prediction_cells(self, prediction: Sequence[float]) -> list[str]:
        return [repr(float(prediction[0]))]

    def usable(self, predictions: Floats) -> Floats:
        """Return the centre where the model gives no number, and nothing absurdly far from it."""
        far = FARTHEST * self.spread
        known = np.nan_to_num(predictions, nan=self.centre, posinf=np.inf, neginf=-np.inf)
        return np.clip(known, self.centre - far, self.centre + far)

    @property
    def largest_difference(self) -> float:
        """That of a residual of at most four spreads and none."""
        return LARGEST_RESIDUAL**2

    def patient_losses(self, predictions: Floats, targets: Targets) -> Floats:
        """Return squared error in spreads, of a residual of at most four.

        Squared: it is least for the mean, which the model is fitted to.
        """
        residuals = np.abs(predictions[:, 0] - targets) / self.spread
        losses: Floats = np.square(np.minimum(residuals, LARGEST_RESIDUAL))
        return losses

    def base_rate(self, training: Targets) -> Floats:
        return np.array([training.mean()])

    def figures(
        self, predictions: Floats, targets: Targets, weights: Floats, training: Targets
    ) -> dict[str, Floats]:
        predicted = predictions[:, 0]
        errors = predicted - targets
        # In spreads, so that no unit makes a variance look like rounding.
        x, y = self._standardised(predicted), self._standardised(targets)
        means = weighted_means(
            {
                "square": np.square(errors),
                "mae": np.abs(errors),
                "squared_error": self.patient_losses(predictions, targets),
            },
            weights,
        )
        return {
            "rmse": np.sqrt(means["square"]),
            "mae": means["mae"],
            "squared_error": means["squared_error"],
            "r2": 1 - _ratio(means["square"] / self.spread**2, _covariance(y, y, weights)),
            "calibration_slope": _ratio(_covariance(x, y, weights), _covariance(x, x, weights)),
        }

    def _standardised(self, targets: Targets) -> Floats:
        standardised: Floats = (targets - self.centre) / self.spread
        return standardised


def _covariance(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the covariance of x and y (n,), for every row of weights (resamples, n)."""
    x, y = x - x.mean(), y - y.mean()  # so that nothing large cancels below
    means = weighted_means({"x": x, "y": y, "xy": x * y}, weights)
    return means["xy"] - means["x"] * means["y"]


def _ratio(above: Floats, below: Floats) -> Floats:
    nothing = below <= 1e-12
    ratios: Floats = np.divide(above, below, out=np.full(len(below), np.nan), where=~nothing)
    return ratios
