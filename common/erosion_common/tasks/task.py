"""A task: what is predicted for a patient, and how that is learned, measured and reported.

A study's task has two halves. The inputs (`inputs.py`: a table's columns, or images) say what a
model reads. The outcome (one file each in this folder) says what it predicts, and is all that the
rest of the program knows: a new outcome is a new subclass of `Task` and a line in the
registry.

Shapes: n patients; c target columns; `num_outputs` numbers from the model for each patient; k
numbers in a prediction.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_common.settings.base import Settings
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.metric import Metric

Floats = NDArray[np.float64]
Targets = NDArray[Any]  # (n,) or (n, c), what `Task.targets` makes of the target columns
Bounds = tuple[float, float]  # an interval's ends
Loss = Callable[[Tensor, Tensor], Tensor]  # outputs (m, num_outputs), targets (m, ...) -> ()


class DerivedLoss(ABC):
    """A `Loss` that knows its own gradient, which must be autograd's to the last bit."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of a mini-batch."""

    @abstractmethod
    def output_gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return it in outputs (m, k): (m, k). Called where autograd records nothing."""


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """A target column of codes."""

    name: str  # the study's name of the column
    codes: Mapping[str, float]  # canonical text in the column -> number
    wrong: str  # what is said of any other text, e.g. "not a value of the study's classes"


TargetColumn = NumberFeature | CodedColumn


class Task(Settings):
    """What is predicted. Every method is pure; tensors may lie on any device."""

    if TYPE_CHECKING:  # fields of the two halves, each with the one word that it stands for
        outcome: str
        kind: str  # of the inputs

    predicts: ClassVar[Literal["classes", "number", "times", "other"]] = "other"
    # what a prediction is: a chance of each of its `classes`, a number, or of being without the
    # event at each time
    metrics: ClassVar[tuple[Metric, ...]]  # in the order of tables
    curves: ClassVar[tuple[str, ...]]  # metrics that are drawn over the rounds
    headline: ClassVar[tuple[str, ...]]  # metrics in the verdict's sentence
    in_progress: ClassVar[tuple[str, ...]]  # metrics in a line of progress
    leak_metric: ClassVar[str] = ""  # by which a single column is compared with the models
    verdict_metric: ClassVar[str]  # the mean of `patient_losses`; less is better
    of_group: ClassVar[str] = "{}"  # who is in one of `groups`, e.g. "of the class {}"
    group_word: ClassVar[str]  # what `smallest_group` counts, e.g. "outside the commonest class"
    verdict_needs: ClassVar[str]  # e.g. "at least {fewest} {tested} had the event"
    unmeasurable_remedy: ClassVar[str]  # what to do about `why_unmeasurable`
    patients_apart: ClassVar[bool] = False  # a promise: the loss of a mini-batch is the mean of one
    # for each of its patients, which no other patient of the hospital has a part in

    def __init_subclass__(cls, **arguments: Any) -> None:
        """A class that trains otherwise has not promised what the one that it extends did."""
        super().__init_subclass__(**arguments)
        own = vars(cls)
        if own.keys() & {"training_loss", "targets"} and "patients_apart" not in own:
            cls.patients_apart = False

    @classmethod
    def metric(cls, name: str) -> Metric:
        """Return the metric of that name."""
        return next(metric for metric in cls.metrics if metric.name == name)

    @classmethod
    def shown(cls, names: Sequence[str]) -> list[Metric]:
        """Return the metrics of those names."""
        return [cls.metric(name) for name in names]

    @classmethod
    def of_patients(cls) -> list[Metric]:
        """Return the metrics that are the same for every model."""
        return [metric for metric in cls.metrics if metric.of_data]

    @classmethod
    def baseline(cls, metric: Metric) -> tuple[str, str]:
        """Return what a metric is compared with: its label, and which of the base rate's it is.

        With folds the base rate is another one in each, and has no accuracy of naming one class.
        """
        if metric.baseline:
            return cls.metric(metric.baseline).label, metric.baseline
        return "base rate", metric.name

    @classmethod
    def remark_on(
        cls, metrics: Mapping[str, Any], num_patients: int, groups: Mapping[str, int | None]
    ) -> str:
        """Return what people must know to read these patients' metrics; "" for nothing.

        `groups`: how many of them are of each; None: not disclosed.
        """
        return ""

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one patient's input."""

    # --- the target: reading, checking, splitting

    @property
    @abstractmethod
    def target_columns(self) -> tuple[TargetColumn, ...]:
        """The columns that hold the target."""

    @abstractmethod
    def targets(self, columns: Floats) -> Targets:
        """Return the models' targets of the target columns as numbers (n, c), none missing."""

    @abstractmethod
    def why_unmeasurable(self, targets: Targets) -> str:
        """Return why no model can be measured on a hospital's patients; "" where one can."""

    def doubt_about(self, targets: Targets) -> str:
        """Return a question about the hospital's targets, such as another unit; mostly ""."""
        return ""

    @abstractmethod
    def groups(self, targets: Targets) -> dict[str, int]:
        """Return how many patients there are of each group that people count; empty where none are.

        Every group is named, also where there is no patient.
        """

    @property
    def group_names(self) -> frozenset[str]:
        """What `groups` counts."""
        nobody = self.targets(np.empty((0, len(self.target_columns))))
        return frozenset(self.groups(nobody))

    def described(self, targets: Targets) -> str:
        """Return the targets of a hospital in a few words, for its own people."""
        return ", ".join(f"{name} {count}" for name, count in self.groups(targets).items())

    @abstractmethod
    def strata(self, targets: Targets) -> NDArray[np.int64]:
        """Return the strata in which a test part is drawn separately: (n,)."""

    def update_parts(self, targets: Targets) -> NDArray[np.int64]:
        """Return the groups that parts of an update sum over, where all are predicted alike: (n,).

        Who moves every output alike is in one. A model with one output has no parts.
        """
        if self.num_outputs == 1:
            return np.zeros(len(targets), dtype=np.int64)
        return self.strata(targets)

    def targets_of_patients(self, targets: Targets, patients: NDArray[np.int64] | None) -> Targets:
        """Return each patient's target of its rows' (n, ...): the largest in the last stratum.

        `patients`: (n,) equal for rows of one patient; None: each row is of another.
        """
        if patients is None:
            return targets
        order = np.lexsort((*targets.reshape(len(targets), -1).T, self.strata(targets), patients))
        last = order[np.append(np.diff(patients[order]) > 0, True)]
        found: Targets = targets[last]
        return found

    def predictions_of_patients(
        self, predictions: Floats, patients: NDArray[np.int64] | None
    ) -> Floats:
        """Return each patient's prediction, in the same order: the mean of its rows' (n, k)."""
        return predictions if patients is None else means_of_patients(predictions, patients)

    @property
    def largest_difference(self) -> float:
        """The most by which two arms' `patient_losses` of one patient can differ.

        Where there is no limit, a study with `evaluation.strict` claims nothing.
        """
        return inf

    @abstractmethod
    def smallest_group(self, targets: Targets) -> int:
        """Return how many patients the smallest group has that a verdict needs."""

    # --- learning

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Numbers that the model gives for a patient."""

    @abstractmethod
    def training_loss(self, targets: Tensor) -> Loss:
        """Return the loss that a hospital with these training patients minimises."""

    def why_not_apart(self) -> str:
        """Return what in the loss of one patient depends on the hospital's others; "" for nothing.

        Differential privacy, which cuts the gradient of each patient, and the training of several
        hospitals as a stack need that there is nothing.
        """
        if self.patients_apart:
            return ""
        return (
            f"outcome = {self.outcome!r} does not say that the loss of one patient is apart from"
            " that of the hospital's others (patients_apart in its class)"
        )

    @property
    def shifted_by(self) -> str:
        """What of the training moves predictions off the base rate on purpose; "" for nothing."""
        return ""

    @abstractmethod
    def base_rate_outputs(self, targets: Tensor) -> Tensor:
        """Return the best outputs for these patients that are alike for all: (num_outputs,).

        An output bias that stays at a hospital starts there.
        """

    # --- predicting

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return outputs (n, num_outputs) float64 as predictions (n, k).

        A mean of several models' predictions is a prediction, too: so ensembles predict.
        """

    @abstractmethod
    def held_out_loss(self, predictions: Tensor, targets: Tensor) -> float:
        """Return the mean loss to choose between models by; infinite where one diverged."""

    @abstractmethod
    def prediction_columns(self) -> list[str]:
        """Return headings of what `erosion predict` writes for each patient."""

    @abstractmethod
    def prediction_cells(self, prediction: Sequence[float]) -> list[str]:
        """Return one patient's prediction (k,) under those headings, in all digits."""

    def outcome_columns(self) -> list[str]:
        """Return the headings of a patient's outcome, next to its prediction."""
        names = [column.name for column in self.target_columns]
        return ["outcome"] if len(names) == 1 else [f"outcome_{name}" for name in names]

    def outcome_cells(self, target: Targets) -> list[str]:
        """Return one patient's target, () or (c,), under those headings."""
        values = np.reshape(target, -1).tolist()
        return [repr(value).removesuffix(".0") for value in values]

    # --- measuring

    @abstractmethod
    def usable(self, predictions: Floats) -> Floats:
        """Return the same (n, k), with NaN replaced by a prediction that knows nothing."""

    @abstractmethod
    def patient_losses(self, predictions: Floats, targets: Targets) -> Floats:
        """Return the verdict's loss: one bounded value for each patient, (n,). Less is better."""

    @abstractmethod
    def base_rate(self, training: Targets) -> Floats:
        """Return the reference: what predicts best for everyone alike in a training part, (k,)."""

    @abstractmethod
    def figures(
        self, predictions: Floats, targets: Targets, weights: Floats, training: Targets
    ) -> dict[str, Floats]:
        """Return every metric by row of weights (resamples, n): (resamples,), NaN if undefined.

        A weight says how often the patient counts. `training` are the targets of the user's
        training part.
        """

    def score_intervals(
        self, predictions: Floats, targets: Targets, training: Targets
    ) -> dict[str, Bounds]:
        """Return 95 % intervals of metrics that depend on a few errors, without undefined ones.

        Those of the bootstrap are widened to them. A metric without any limit has none.
        """
        return {}

    def why_not_here(self) -> str:
        """Return what a user's site lacks for measuring, and the remedy; "" for nothing."""
        return ""


def weighted_means(per_patient: Mapping[str, Floats], weights: Floats) -> dict[str, Floats]:
    """Return the weighted means of metrics by patient (n,), for weights (resamples, n)."""
    total = weights.sum(axis=1)
    return {name: weights @ values / total for name, values in per_patient.items()}


def means_of_patients(values: Floats, patients: NDArray[np.int64]) -> Floats:
    """Return each patient's mean of its rows' values (n, ...), by patient number (n,), ascending.

    The value of a patient's only row stays as it is, to the last bit.
    """
    _, places, counts = np.unique(patients, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, places, values)
    return sums / counts.reshape(-1, *(1,) * (values.ndim - 1))


def as_tensor(targets: Targets) -> Tensor:
    """Return targets as local training takes them: whole numbers stay whole, others are float32."""
    tensor = torch.from_numpy(targets)
    return tensor.float() if tensor.is_floating_point() else tensor
