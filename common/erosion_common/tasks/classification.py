"""Classification: which of two or more classes a patient is of."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy

from erosion_common.settings.base import Settings
from erosion_common.settings.names import Code, ColumnName, canonical
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
    Floats,
    Loss,
    Targets,
    Task,
    weighted_means,
)

MOST_SHOWN = 20  # classes in a message
MOST_CLASSES = 1000
COMMONEST = "commonest class"


class ClassLabel(Settings):
    """One class of the target, and the values of the target column that mean it."""

    name: ColumnName = Field(description="What the class is called in reports.")
    values: tuple[Code, ...] = Field(
        min_length=1, description="Values of the target column that mean this class."
    )


def _class_from_name(value: Any) -> Any:
    """Expand `"benign"` to `{name = "benign", values = ["benign"]}`."""
    if isinstance(value, str | int | float):
        return {"name": canonical(value), "values": [canonical(value)]}
    return value


def _distinct_classes(classes: tuple[ClassLabel, ...]) -> tuple[ClassLabel, ...]:
    names = [label.name for label in classes]
    values = [value for label in classes for value in label.values]
    for words in (names, values):
        twice = sorted(word for word, times in Counter(words).items() if times > 1)
        if twice:
            raise ValueError(f"{', '.join(twice)} is given twice; it can mean one class only")
    return classes


Class = Annotated[
    ClassLabel,
    BeforeValidator(_class_from_name, json_schema_input_type=str | int | float | ClassLabel),
]
Classes = Annotated[
    tuple[Class, ...],
    Field(min_length=2, max_length=MOST_CLASSES),
    AfterValidator(_distinct_classes),
]


ClassWeights = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(max_length=MOST_CLASSES)]


class Classification(Task):
    """Predict a patient's class. The last class is the positive one.

    `class_weights` says how much a patient counts in the loss of local training: "none" (each
    alike), "balanced" (each class alike at every hospital: n / (classes present x patients of the
    class)), or one number for each class. Weights serve rare outcomes, and make predicted
    probabilities of rare classes too high: metrics and the verdict are never weighted.
    """

    outcome: Literal["classification"] = Field(
        default="classification", description="What kind of thing is predicted: a class."
    )
    target: ColumnName = Field(  # column
        description="Column that holds the class."
    )
    classes: Classes = Field(
        description="Two or more classes, the positive one last. A name is short for `{ name = "
        "..., values = [...] }`. With three or more, none that hardly anybody has: an update can "
        "tell the record of a patient who is alone in one."
    )
    class_weights: Literal["none", "balanced"] | ClassWeights = Field(
        default="none",
        description='What a patient counts in training. `"none"`: all alike. `"balanced"`: each '
        "class alike at every hospital. A list: one weight for each class.",
    )

    predicts: ClassVar[Literal["classes", "number", "times", "other"]] = "classes"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric(
            "accuracy",
            "accuracy",
            "share of patients",
            "higher",
            baseline="majority_accuracy",
            least=0.0,
            most=1.0,
        ),
        Metric(
            "majority_accuracy",
            COMMONEST,
            "share of patients",
            "higher",
            "majority",
            remark="“Commonest class” is the accuracy of always naming that of the training"
            " patients: a model below it is of no use.",
            of_data=True,
            least=0.0,
            most=1.0,
        ),
        Metric(
            "auroc",
            "AUROC",
            "chance of ranking a pair rightly",
            "higher",
            remark="With more than two classes AUROC is the mean over the classes present, each"
            " against the rest.",
            least=0.0,
            most=1.0,
            by_chance=0.5,
        ),
        Metric(
            "brier",
            "Brier score",
            "squared distance",
            "lower",
            "Brier",
            from_zero=True,
            remark="The Brier score of two classes is the mean squared distance of the positive"
            " class's probability from 0 or 1; with more classes it is the sum over all of them"
            " (Brier 1950), from 0 to 2.",
            least=0.0,
            most=2.0,
        ),
        Metric(
            "log_loss",
            "log loss",
            "nats per patient",
            "lower",
            from_zero=True,
            caption="It also counts how sure a model was of a wrong answer.",
            least=0.0,
            most=LARGEST_LOG_LOSS,
        ),
    )
    curves: ClassVar[tuple[str, ...]] = ("accuracy", "log_loss")
    headline: ClassVar[tuple[str, ...]] = ("log_loss", "accuracy")
    in_progress: ClassVar[tuple[str, ...]] = ("accuracy", "log_loss")
    leak_metric: ClassVar[str] = "auroc"
    verdict_metric: ClassVar[str] = "log_loss"
    of_group: ClassVar[str] = "of the class {}"
    group_word: ClassVar[str] = "outside the commonest class"
    verdict_needs: ClassVar[str] = "at least {fewest} {tested} are not of the commonest class"
    unmeasurable_remedy: ClassVar[str] = (
        "Add patients of another class, or check the target column and [data.values]."
    )
    patients_apart: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        weights = self.class_weights
        if isinstance(weights, tuple) and len(weights) != len(self.classes):
            raise ValueError(
                f"class_weights has {len(weights)} numbers for {len(self.classes)} classes; give"
                ' one for each class, or "balanced"'
            )
        return self

    @property
    def target_columns(self) -> tuple[CodedColumn, ...]:
        codes = {
            value: float(index)
            for index, label in enumerate(self.classes)
            for value in label.values
        }
        some = ", ".join(list(codes)[:MOST_SHOWN]) + (", ..." if len(codes) > MOST_SHOWN else "")
        return (CodedColumn(self.target, codes, f"not a value of the study's classes ({some})"),)

    @classmethod
    def remark_on(
        cls, metrics: Mapping[str, Any], num_patients: int, groups: Mapping[str, int | None]
    ) -> str:
        """Return a remark if the training part's commonest class is not that of those measured."""
        share = metrics.get("majority_accuracy")  # may be absent
        largest = max((count for count in groups.values() if count is not None), default=0)
        is_commonest = share is None or round(share * num_patients) >= largest
        return "" if is_commonest else "Of the patients measured another class is the commonest."

    def targets(self, columns: Floats) -> NDArray[np.int64]:
        """Return index of each patient's class: (n,)."""
        return columns[:, 0].astype(np.int64)

    def why_unmeasurable(self, targets: Targets) -> str:
        """Refuse a test part without patients of two classes."""
        counts = np.bincount(targets, minlength=len(self.classes))
        if np.count_nonzero(counts) == 1:
            name = self.classes[int(counts.argmax())].name
            return f"all patients are of the class {name!r}"
        return "" if counts.max() > 1 else "no class has two patients"

    def groups(self, targets: Targets) -> dict[str, int]:
        counts = np.bincount(targets, minlength=len(self.classes)).tolist()
        return dict(zip((label.name for label in self.classes), counts, strict=True))

    def strata(self, targets: Targets) -> NDArray[np.int64]:
        return targets

    def smallest_group(self, targets: Targets) -> int:
        """Return patients outside the commonest class: of two classes, those of the rarer one.

        Of many classes some are nearly always rare.
        """
        counts = np.bincount(targets)
        return int(counts.sum() - counts.max(initial=0))

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def training_loss(self, targets: Tensor) -> Loss:
        """Return the mean log loss, weighted by class where the study says so."""
        if self.class_weights == "none":
            return cross_entropy
        weights = self._weights(targets)

        def weighted(outputs: Tensor, batch: Tensor) -> Tensor:
            return (cross_entropy(outputs, batch, reduction="none") * weights[batch]).mean()

        return weighted

    def why_not_apart(self) -> str:
        """Refuse balanced weights: they depend on the classes of all patients."""
        if self.class_weights != "balanced":
            return super().why_not_apart()
        return (
            'class_weights = "balanced" depends on all patients of a hospital; give a list of'
            " numbers, one for each class"
        )

    @property
    def shifted_by(self) -> str:
        """The weights, unless they are all the same."""
        weights = self.class_weights
        is_none = weights == "none" or (isinstance(weights, tuple) and len(set(weights)) == 1)
        return "" if is_none else "class weights"

    def _weights(self, targets: Tensor) -> Tensor:
        """Return the weight of a patient of each class: (classes,)."""
        if isinstance(self.class_weights, tuple):
            return torch.tensor(self.class_weights, device=targets.device)
        counts = torch.bincount(targets, minlength=len(self.classes)).float()
        # Where a class is absent no patient asks for its weight.
        return len(targets) / (torch.count_nonzero(counts) * counts.clamp(min=1))

    def base_rate_outputs(self, targets: Tensor) -> Tensor:
        """Return how common each class is, as logits with mean 0: (classes,) float32.

        Hospitals differ more in prevalence than in anything else.
        """
        num_classes = len(self.classes)
        counts = torch.bincount(targets, minlength=num_classes).double()
        logits = torch.log((counts + 1) / (len(targets) + num_classes))
        return (logits - logits.mean()).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return class probabilities: (n, classes)."""
        return outputs.softmax(dim=1)

    def held_out_loss(self, predictions: Tensor, targets: Tensor) -> float:
        """Return mean log loss, nothing clipped."""
        of_truth = predictions.gather(1, targets[:, None])
        return float(-of_truth.nan_to_num(nan=0.0).log().mean())

    def prediction_columns(self) -> list[str]:
        return [*(f"probability_{label.name}" for label in self.classes), "predicted"]

    def prediction_cells(self, prediction: Sequence[float]) -> list[str]:
        """Return them in all their digits: patients are ranked by the last ones."""
        likeliest = self.classes[int(np.argmax(prediction))].name
        return [*(repr(float(value)) for value in prediction), likeliest]

    def outcome_cells(self, target: Targets) -> list[str]:
        return [self.classes[int(target)].name]

    def usable(self, predictions: Floats) -> Floats:
        """Return every class as equally likely where outputs overflowed."""
        return np.where(np.isnan(predictions), 1 / predictions.shape[1], predictions)

    @property
    def largest_difference(self) -> float:
        return LARGEST_LOG_LOSS_DIFFERENCE

    def patient_losses(self, predictions: Floats, targets: Targets) -> Floats:
        """Return -log of the probability of each patient's class, clipped to [0.01, 0.99]."""
        return log_losses(predictions[np.arange(len(targets)), targets])

    def base_rate(self, training: Targets) -> Floats:
        shares: Floats = np.bincount(training, minlength=len(self.classes)) / len(training)
        return shares

    def figures(
        self, predictions: Floats, targets: Targets, weights: Floats, training: Targets
    ) -> dict[str, Floats]:
        majority = _in_majority(targets, training)
        per_patient = {**self._per_patient(predictions, targets), "majority_accuracy": majority}
        means = weighted_means(per_patient, weights)
        return {**means, "auroc": _auroc(predictions, targets, weights)}

    def score_intervals(
        self, predictions: Floats, targets: Targets, training: Targets
    ) -> dict[str, Bounds]:
        """Return intervals, as if each patient could be of the likeliest of the other classes.

        With more than two classes, AUROC's is that of the commonest against all others.
        """
        rest = predictions.copy()
        rest[np.arange(len(targets)), targets] = -1
        seen = self._per_patient(predictions, targets)
        other = self._per_patient(predictions, rest.argmax(axis=1))
        found = {name: of_mean(seen[name], other[name]) for name in seen}
        majority = _in_majority(targets, training)
        found["majority_accuracy"] = of_mean(majority, 1 - majority)
        (area,) = _auroc(predictions, targets, np.ones((1, len(targets))))
        if isfinite(area) and np.ptp(predictions, axis=0).any():  # of one for everyone it is 1/2
            fewer = max(1, self.smallest_group(targets))
            found["auroc"] = of_ranking(area, fewer, max(1, len(targets) - fewer))
        return found

    def _per_patient(self, predictions: Floats, targets: Targets) -> dict[str, Floats]:
        truth = np.eye(predictions.shape[1])[targets]
        squares = np.square(predictions - truth)
        return {
            "accuracy": (predictions.argmax(axis=1) == targets).astype(np.float64),
            "brier": squares[:, 1] if predictions.shape[1] == 2 else squares.sum(axis=1),
            "log_loss": self.patient_losses(predictions, targets),
        }


def _in_majority(targets: Targets, training: Targets) -> Floats:
    found: Floats = (targets == int(np.bincount(training).argmax())).astype(np.float64)
    return found


def _auroc(probabilities: Floats, labels: Targets, weights: Floats) -> Floats:
    """Return the area under the ROC curve: of two classes the last, else the one-vs-rest mean.

    The mean is over the classes that are present. Undefined where fewer than two are.
    """
    num_classes = probabilities.shape[1]
    classes = [1] if num_classes == 2 else range(num_classes)
    areas = np.stack([binary_auroc(probabilities[:, c], labels == c, weights) for c in classes])
    defined = ~np.isnan(areas)
    total = np.where(defined, areas, 0.0).sum(axis=0)
    count = defined.sum(axis=0)
    means: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return means


def binary_auroc(scores: Floats, positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return the chance that a positive patient scores above a negative one, ties counting half.

    weights (resamples, n) -> (resamples,), NaN where one side has no weight.
    """
    order = np.argsort(scores, kind="stable")
    ranked, is_positive = scores[order], positive[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    sorted_weights = weights[:, order]
    positives = np.add.reduceat(sorted_weights * is_positive, starts, axis=1)  # per distinct score
    negatives = np.add.reduceat(sorted_weights * ~is_positive, starts, axis=1)
    below = np.cumsum(negatives, axis=1) - negatives
    wins = (positives * (below + 0.5 * negatives)).sum(axis=1)
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    areas: Floats = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return areas
