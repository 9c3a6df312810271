"""The coordinator's requests and the hospitals' answers.

These are plain values without Flower: the simulator passes them by hand, `wire` turns them into
Flower records. Everything that leaves a hospital is a field of a *Reply* in this file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, log2
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from erosion_common.learning.finished import Finished, Predictor
from erosion_common.protocol.compression import Packed, sent_arrays, unpacked
from erosion_common.protocol.performance import Estimate, Performance
from erosion_common.sealed.phases import Hello
from erosion_common.sealed.roster import received_hash
from erosion_common.settings.base import PlainValues, Settings
from erosion_common.settings.names import LARGEST_COUNT as LARGEST_COUNT
from erosion_common.settings.names import LARGEST_FIGURE as LARGEST_FIGURE
from erosion_common.settings.names import Count, Figure, Said, Version
from erosion_common.study.study import Study

MOST_COLUMNS = 100_000  # encoded ones; their sums and means travel in a header

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class Range(NamedTuple):
    """Between which two numbers, both included, a figure lies."""

    low: float
    high: float


def count_range(reported: int, cell: int) -> Range:
    """Return the range of a count disclosed as `told`: 0 below a cell, else a multiple of it."""
    if reported == 0:
        return Range(0, max(0, cell - 1))
    return Range(max(cell, reported - cell + 1), reported + max(0, cell - 1))


def relative_step(count: int, cell: int) -> float:
    """Return cell / n as a power of two, at most 1: the steps of n patients' figures."""
    return min(1.0, 2.0 ** ceil(log2(cell / count))) if min(count, cell) > 0 else 1.0


class ColumnSummary(Settings):
    """One column over the training patients: each counts once, with its mean or commonest value."""

    name: Said
    kind: Literal["number", "category", "outcome", "time"]  # "time": until an outcome
    count: Count  # who have a value, to a multiple of the site's smallest cell
    missing: Count  # who have none in any row, likewise
    mean: Figure | None = None  # of a number; far values are moved to a fence before
    deviation: float | None = Field(default=None, ge=0, le=LARGEST_FIGURE)
    quantiles: tuple[Figure | None, ...] = Field(default=(), max_length=len(QUANTILES))
    # of QUANTILES: means of the cell of values around; None: too few beyond it
    shares: dict[str, Count] = {}  # noqa: RUF012 - patients by category; 0 for fewer than a cell.
    # `count` is their sum

    def count_range(self, cell: int) -> Range:
        """Return the range of the number of patients who have a value."""
        low, high = count_range(self.count, cell)
        hidden = sum(reported == 0 for reported in self.shares.values())
        if self.shares and self.count == 0:
            low, high = 0, 0
        return Range(low, high + hidden * max(0, cell - 1))

    def share_range(self, category: str, cell: int) -> Range:
        """Return the range of a category's share of the patients who have a value."""
        low, high = count_range(self.shares[category], cell)
        others = [
            count_range(reported, cell)
            for name, reported in self.shares.items()
            if name != category
        ]
        fewest, most = sum(r.low for r in others), sum(r.high for r in others)
        return Range(low / (low + most) if low else 0.0, high / (high + fewest) if high else 0.0)

    def off_by(self, cell: int) -> float:
        """Return how far the mean and the quantiles can be off by rounding."""
        return (self.deviation or 0.0) * relative_step(self.count, cell)

    def deviation_range(self, cell: int) -> Range:
        """Return the range of the deviation, which leaves as a power of two."""
        factor, deviation = 2 ** relative_step(self.count, cell), self.deviation or 0.0
        return Range(deviation / factor, deviation * factor)


class Summary(Settings):
    """The training patients of a hospital, as it reports them before any training."""

    min_cell: Count  # nothing here is about fewer patients
    num_samples: Count  # rows or images, to a multiple of the cell
    num_patients: Count  # likewise
    num_unreadable: Count = 0  # files left out because nobody can read them, rounded up likewise
    num_recorded: Count = 0  # rows or images in its data, test patients' included
    num_incomplete: Count = 0  # patients with rows left out, because a value is missing
    num_repeated: Count = 0  # patients with rows that equal an earlier one
    columns: Annotated[tuple[ColumnSummary, ...], Field(max_length=MOST_COLUMNS, fail_fast=True)]


class SummaryReply(Summary):
    """A hospital describes its patients."""

    hospital: Said
    software: Version


SIGNIFICANCE = 0.02  # of a comparison on a test part; docs/evaluation.md says what it assumes
CROSS_FITTED_SIGNIFICANCE = 0.005  # of one on cross-fitted predictions: the models share patients
FEWEST_OF_A_CLASS = 5  # test patients; with fewer the test is not to be trusted

MOST_SECONDS = 1e9  # of one answer; those of a round's answers are added up
MOST_LOSS = 1e30  # what stands for a loss that is infinite
MOST_METRICS, LONGEST_METRIC = 64, 100  # of one model; characters of a name
_METRIC_NAME = re.compile(rf"[a-z][a-z0-9_]{{,{LONGEST_METRIC - 1}}}")

# A release speaks its own protocol and that of the release before, so that hospitals upgrade one
# after another. A message that only a later one understands says so in its header; all others say
# the oldest.
PROTOCOL = 1  # raised when a message changes its meaning, or a new one needs a name
OLDEST_PROTOCOL = 1


def significance_of(study: Study) -> float:
    """Return the largest p-value at which the study's comparison claims a difference."""
    return SIGNIFICANCE if study.evaluation.folds is None else CROSS_FITTED_SIGNIFICANCE


Counts = Annotated[tuple[Count, ...], Field(max_length=MOST_COLUMNS, fail_fast=True)]
Numbers = Annotated[tuple[float, ...], Field(max_length=MOST_COLUMNS, fail_fast=True)]


class FeatureSums(Settings):
    """Per encoded column: what pooled means and deviations are made of, missing values left out.

    A site makes them of rounded figures over at least its smallest cell of patients.
    """

    count: Counts
    total: Numbers
    squares: Numbers


class Scaling(Settings):
    """Per encoded column: x becomes (x - mean) / deviation; a category column keeps 0 and 1.

    A deviation of exactly 1 says of a number that none was found. Numbers are cut: `scaling.Cut`.
    """

    mean: Numbers
    deviation: Numbers


class ModelShape(Settings):
    """What a site's model is like where it was made by code or files of the site's own."""

    num_parameters: Count  # that are trained and travel
    digest: str = Field(max_length=64)  # of their names and shapes


class DescribeReply(Settings):
    """A hospital introduces itself: name, training samples, and its share of the scaling."""

    hospital: Said
    num_samples: Count  # training rows or images, patients with privacy; a multiple of the cell
    sums: FeatureSums | None = None  # only where the study is scaled by them
    software: Version  # version of this program at the site
    model: ModelShape | None = None  # only where the study's model is not one of the program's own
    summary: Summary | None = None  # of its columns; None: it gives none for this study


class Metrics(Settings):
    """A model's metrics on the user's test patients; in JSON by name, with `num_patients`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)  # None where it is undefined

    num_patients: Count  # test patients, each with one prediction

    @model_validator(mode="after")
    def _few(self) -> Self:
        """Check their number and the lengths of their names."""
        names = self.__pydantic_extra__
        if len(names) > MOST_METRICS or not all(map(_METRIC_NAME.fullmatch, names)):
            raise ValueError(
                f"at most {MOST_METRICS} metrics, with names of at most {LONGEST_METRIC} small"
                " letters, digits and _"
            )
        if any(value is not None and abs(value) > LARGEST_FIGURE for value in names.values()):
            raise ValueError(f"a metric beyond {LARGEST_FIGURE:g}")
        return self

    def get(self, name: str) -> float | None:
        """Return the metric of that name; None where it is undefined or was not measured."""
        return self.__pydantic_extra__.get(name)

    def __getitem__(self, name: str) -> float:
        """Return the metric of that name, which is a number; raises KeyError."""
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value


class Interval(Settings):
    """A 95 % interval."""

    low: Figure
    high: Figure


class FinalMetrics(Metrics):
    """Metrics with their intervals."""

    intervals: dict[str, Interval]  # by metric name


Conclusion = Literal["better", "worse", "no clear difference", "too few patients"]


def conclude(
    mean_difference: float, p_value: float, smallest_class: int, level: float
) -> Conclusion:
    """Return the conclusion of a comparison's figures; site and coordinator both compute it."""
    if smallest_class < FEWEST_OF_A_CLASS:
        return "too few patients"
    if p_value > level:
        return "no clear difference"
    return "better" if mean_difference < 0 else "worse"


NEAR = 3.0  # p-values within this factor of the level are near it; docs/evaluation.md says why


class Comparison(Settings):
    """The declared comparison of two arms on the same test patients, by the task's loss."""

    arm: Said
    reference: Said
    num_patients: Count
    smallest_class: Count  # test patients outside the commonest class, or what else
    # the task needs; where they or the others are fewer than the site's smallest cell, only whether
    # they are enough
    mean_difference: Figure  # loss of `arm` minus that of `reference`; below 0: `arm` is better
    p_value: float = Field(ge=0, le=1)
    # two-sided paired sign-flip test; if strict, not below that of one patient more
    conclusion: Conclusion
    level: float = SIGNIFICANCE  # a difference is claimed at p-values up to this
    strict: bool = False  # whether that is one who speaks against the difference as much as can be
    p_by_cut: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=20)
    # of each cut into folds alone; nothing where there is but one
    flips: Count = 0  # sign patterns drawn, by which p is estimated; 0: of all patterns, exactly
    chosen: dict[str, Count] = Field(default_factory=dict)
    # where the reference is the better one of several: in how many training parts (one, or each
    # fold's) each of them predicted best; nothing where the study names the reference

    @property
    def p_band(self) -> tuple[float, float]:
        """Where p lies by the luck of the sign patterns drawn, with a chance of 95 %."""
        if not self.flips:
            return self.p_value, self.p_value
        half = 1.96 * (self.p_value * (1 - self.p_value) / self.flips) ** 0.5
        return max(1 / (1 + self.flips), self.p_value - half), min(1.0, self.p_value + half)

    @property
    def is_near(self) -> bool:
        """Whether training in another order of patients could well turn the finding round."""
        if self.smallest_class < FEWEST_OF_A_CLASS:
            return False
        is_claimed = self.p_value <= self.level
        if any((p <= self.level) != is_claimed for p in self.p_by_cut):
            return True
        low, high = self.p_band
        near = not self.p_by_cut and self.level / NEAR <= self.p_value <= self.level * NEAR
        return near or low <= self.level < high


class TrainReply(Settings):
    """The header of a trained update; the update itself travels with it as one float32 array."""

    hospital: Said
    arm: Said
    round: Count
    step: Said = "train"
    num_samples: Count
    samples_seen: Count
    seconds: float = Field(ge=0, le=MOST_SECONDS)  # of local work
    metrics: Metrics | None = None  # the user's, of the parameters that it received
    own_loss: float | None = None  # the user's mean loss of the same on its training part
    sealed: Hello | None = None  # of a sealed round, in place of the update
    noise_multiplier: float | None = None  # of the update, where it has noise for privacy
    steps: Count | None = None
    # mini-batches, where hospitals take different numbers of them and the arm compares updates as
    # of equally many


class StepReply(Settings):
    """The header of an answer that brings no update; its tensors travel with it."""

    hospital: Said
    arm: Said
    round: Count
    step: Said
    seconds: float = Field(ge=0, le=MOST_SECONDS)  # of local work
    values: PlainValues = Field(default_factory=dict, max_length=64)  # the method's, small


class BestColumn(Settings):
    """The column that predicts best alone, measured as the models are."""

    name: str
    measure: Figure  # AUROC, R² or concordance


class FinishFigures(Settings):
    """How far a finish at the user's site follows the others' model."""

    slope: Estimate  # what their outputs count for: 1 as they are, below 0 turned round
    share_alone: float = Field(ge=0, le=1)  # of the models that ignore them


class EvaluateReply(Settings):
    """The user's final figures: they leave the site, the patients' rows do not.

    Where a fold of a cross-fitted evaluation was predicted there are none yet, for any arm. Another
    hospital's are of one arm's model, with `class_counts` and `performance.models`, all rounded.
    """

    hospital: Said
    arms: dict[str, FinalMetrics]
    references: dict[str, FinalMetrics] = Field(default_factory=dict)  # the local ones, by name
    base_rate: FinalMetrics | None = (
        None  # of the training part's as everyone's prediction, or of each fold's as its patients'
    )
    finishes: dict[str, FinishFigures] = Field(default_factory=dict)  # by arm, of the final models
    comparison: Comparison | None
    scaling: Scaling | None  # what a new patient's columns must be scaled by
    own_scaling: Scaling | None = None  # the same for arms that ask nobody else, where it differs
    missing_means: Numbers | None = None
    # per encoded column, what replaces a missing value, where only patients show it: the mean of
    # a number that is not scaled, the indicators of the commonest category
    best_column: BestColumn | None = None  # of a table, where it can be measured
    class_counts: dict[str, Count | None]
    # test patients by class, or by what else the task counts; None: fewer than the site's smallest
    # cell, or what would give such a number away
    performance: Performance = Performance()  # curves, thresholds, groups and effects


def as_text(scaling: Scaling | None) -> str:
    """Return the same text on both sides for the same numbers to the last bit; "" for none."""
    return "" if scaling is None else scaling.model_dump_json()


@dataclass(frozen=True, eq=False)
class TrainRequest:
    """Take one step of a round, from `parameters`, by the study's rules."""

    study: Study
    arm: Said
    round: int  # from 1
    sent: Tensor | Packed | None  # the parameters (dim,); None where the step does without
    scaling: Scaling | None  # pooled, or the user's; None where the study has neither
    run: str = ""  # which run of the study; what a site keeps between rounds belongs to one
    enclosed: Mapping[str, Tensor] = field(default_factory=dict)  # the algorithm's, for the site
    step: Said = "train"
    exchange: int = 1  # the step's place in its round, from 1
    wants_update: bool = True  # the step's answer is a TrainResult; the coordinator's to know
    values: Mapping[str, Any] = field(default_factory=dict)  # the algorithm's, small, as JSON
    most_reply_bytes: int | None = None  # of an honest answer's arrays; the coordinator's to know

    @property
    def parameters(self) -> Tensor | None:
        """What the site starts from: (dim,) float32, a new tensor where it came compressed."""
        return None if self.sent is None else unpacked(self.sent)

    @cached_property
    def received(self) -> bytes:
        """Hash of all that the step is computed from, but for `values`: in one pass over it."""
        sent, enclosed = self.sent, self.enclosed
        if isinstance(sent, Packed):  # as it came: a sealed round's is never compressed
            enclosed = {**enclosed, **sent_arrays(sent)}
            sent = None
        return received_hash(sent, as_text(self.scaling), enclosed)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A train reply with its arrays."""

    header: TrainReply
    sent: Tensor | Packed  # the update
    attachments: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def delta(self) -> Tensor:
        """Parameters after minus before: (dim,) float32, likewise."""
        return unpacked(self.sent)


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step's reply with its arrays: float32, uint8, uint32 or int64, of any shape."""

    header: StepReply
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """Measure final parameters: all arms at the user's test patients, one at another's patients."""

    study: Study
    parameters: Mapping[str, Tensor]  # arm -> (dim,) float32; delivered also (m, dim), see below
    scaling: Scaling | None  # pooled, or the delivered model's
    run: str = ""
    enclosed: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # by arm
    most_reply_bytes: int | None = None  # of an honest answer's arrays; the coordinator's to know
    missing_means: tuple[float, ...] | None = None  # the delivered model's, as in EvaluateReply
    rounds: Mapping[str, int] = field(default_factory=dict)  # by arm, that it had; else the study's


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """An evaluate reply with its arrays."""

    header: EvaluateReply
    personal: Mapping[str, Tensor] = field(default_factory=dict)
    # arm -> what the user predicts with, where that is not what the coordinator has: (dim,), or
    # (m, dim) for the mean of m models. They are the user's own and reach its own coordinator only.
    # `layers_of(arm)` -> what a finish fitted, see `Finished.layers`

    def predictor(self, arm: str, parameters: Tensor) -> Predictor:
        """Return what the user predicts with where the arm ended with `parameters` (dim,)."""
        own, layers = self.personal.get(arm, parameters), self.personal.get(layers_of(arm))
        return own if layers is None else Finished(own, layers)


def layers_of(arm: str) -> str:
    """Return the name of an arm's fitted last layers: no arm's name has brackets."""
    return f"{arm} (finish)"
