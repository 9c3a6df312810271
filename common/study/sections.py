"""Sections of a study file: how models are measured, chosen, and who must be there."""

from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from erosion.common.compression.codec import Compression
from erosion.common.settings.base import Settings
from erosion.common.settings.names import ColumnName, Name
from erosion.common.tasks import AnyTask
from erosion.common.tasks.inputs import TabularTask

LocalReference = Literal["ridge", "boosted_trees"]
REFERENCES: tuple[LocalReference, ...] = ("ridge", "boosted_trees")
BEST_LOCAL = "best_local"  # in each fold the reference that its training part preferred
MOST_COLUMNS = 500  # of a table whose study has references without naming any: seconds


class Evaluation(Settings):
    """How the user's hospital measures the models, on patients that no model was trained on."""

    test_share: float = Field(default=0.3, gt=0, lt=1)  # of the user's patients
    split_column: ColumnName | None = None  # of the table, with "train" or
    # "test" for each patient, in place of test_share; nobody trains on any hospital's "test"
    folds: int | None = Field(default=None, ge=2, le=20)  # in place of test_share: the user's
    # patients are cut into so many folds, and each is predicted by runs of every arm without it
    repeats: int = Field(default=1, ge=1, le=20)  # with so many different cuts into folds
    bootstrap: int = Field(default=1000, ge=100, le=100_000)  # resamples for the intervals
    strict: bool = False  # no difference is claimed that one patient more could have undone
    references: tuple[LocalReference, ...] | None = None  # tuned models of the user's training
    # patients alone, fitted at its site; None: all of them for a table, none for images
    compare: tuple[str, str] | None = None  # the one declared comparison (arm, its reference);
    # None: the first arm that is not local training, with the better of that and the references

    @field_validator("compare")
    @classmethod
    def _different(cls, value: tuple[str, str] | None) -> tuple[str, str] | None:
        if value is not None and value[0] == value[1]:
            raise ValueError("name two different arms")
        return value

    @field_validator("references")
    @classmethod
    def _distinct(
        cls, value: tuple[LocalReference, ...] | None
    ) -> tuple[LocalReference, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("name each reference once")
        return value

    def references_for(self, task: AnyTask) -> tuple[LocalReference, ...]:
        """The local references of a study of this task."""
        if self.references is not None:
            return self.references
        is_table = isinstance(task, TabularTask)
        return REFERENCES if is_table and task.input_shape[0] <= MOST_COLUMNS else ()

    def problem_with(self, task: AnyTask, arms: Collection[str], *, selects: bool) -> str | None:
        """Why a study of these arms cannot be evaluated so, or None.

        `selects`: it leaves settings to be chosen.
        """
        return (
            self._problem_with_folds(selects=selects)
            or self._problem_with_split(task)
            or self._problem_with_references(task, arms)
            or self._problem_with_comparison(arms, self.references_for(task))
        )

    def _problem_with_folds(self, *, selects: bool) -> str | None:
        if self.folds is None:
            if self.repeats > 1:
                return "evaluation.repeats is of evaluation.folds; give both, or neither"
            return None
        if self.split_column is not None:
            return (
                "evaluation.folds: all of the user's patients are predicted in turn, so none is"
                " declared a test patient; leave out split_column, or leave out folds"
            )
        if selects:
            return (
                "evaluation.folds: settings would have to be chosen anew in every fold, which this"
                " program does not do; leave out [selection], or leave out folds"
            )
        return None

    def _problem_with_split(self, task: AnyTask) -> str | None:
        column = self.split_column
        if column is None:
            return None
        if self.test_share != Evaluation.model_fields["test_share"].default:
            return (
                "evaluation.test_share and evaluation.split_column both say who is tested; keep one"
                " of them"
            )
        if not isinstance(task, TabularTask):
            return "evaluation.split_column is a column of a table; leave it out"
        if column in (c.name for c in (*task.features, *task.target_columns)):
            return (
                f"evaluation.split_column = {column!r} is a feature or a target, too; a column has"
                " one role"
            )
        return None

    def _problem_with_references(self, task: AnyTask, arms: Collection[str]) -> str | None:
        if self.references and not isinstance(task, TabularTask):
            return "evaluation.references are models of a table's columns; leave them out"
        for name in (*self.references_for(task), BEST_LOCAL):
            if name in arms:
                return (
                    f"arms.{name}: the figures call a local reference so (evaluation.references);"
                    " give the arm another name"
                )
        return None

    def _problem_with_comparison(
        self, arms: Collection[str], references: Collection[str]
    ) -> str | None:
        if self.compare is None:
            return None
        arm, reference = self.compare
        if arm not in arms:
            return f"evaluation.compare names the arm {arm!r}; the arms are {', '.join(arms)}"
        if reference not in (*arms, *references):
            return (
                f"evaluation.compare names the reference {reference!r}; there are"
                f" {', '.join([*arms, *references])}"
            )
        return None


class Fold(Settings):
    """One of several equal parts of the user's patients, class by class.

    Without a `cut` they are parts of the training patients, to choose settings by; with one, of all
    patients, to be predicted by models that never saw them. Each cut is another one.
    """

    number: int = Field(ge=0, lt=100)  # from 0
    of: int = Field(ge=2, le=100)
    cut: int | None = Field(default=None, ge=1, le=20)


def fewest_held_out(folds: Sequence[Fold], num_patients: int) -> int:
    """The patients of the smallest of these folds; see `split_patients`."""
    return min(len(range(fold.number, num_patients, fold.of)) for fold in folds)


def folds_key(folds: Sequence[Fold]) -> str:
    """Where the study file says how many they are."""
    return "selection.folds" if folds[0].cut is None else "evaluation.folds"


class Selection(Settings):
    """How each arm's settings and number of rounds are chosen, inside the user's training part.

    Every candidate runs once for each fold, without the fold's patients; chosen are the candidate
    and the number of rounds with the least mean log loss for them. Then the arm runs once more,
    with all training patients. The test part is not touched.
    """

    method: Literal["cross_validation", "validation"] = "cross_validation"
    folds: int = Field(default=5, ge=2, le=100)  # "validation" holds out the first of them alone
    candidates: dict[Name, tuple[dict[str, Any], ...]] = Field(default_factory=dict)
    # arm -> settings to try, each in place of some of the arm's own; without any, only the number
    # of rounds is chosen

    def trial_folds(self) -> tuple[Fold, ...]:
        """The folds that are held out in turn."""
        count = self.folds if self.method == "cross_validation" else 1
        return tuple(Fold(number=number, of=self.folds) for number in range(count))


class Federation(Settings):
    """Who must be there, and how long anyone waits."""

    round_deadline_seconds: float = Field(default=120.0, gt=0, le=86_400)
    join_deadline_seconds: float = Field(default=60.0, gt=0, le=86_400)
    quorum: int = Field(default=2, ge=1)  # usable updates of a round, the user's own included
    start: Literal["all", "quorum"] = "all"  # whom the study waits for before its first round
    join: Literal["at_start", "any_time"] = "at_start"  # "any_time": who comes later takes part
    # from then on, so arms are compared on different hospitals; who was there may always come back
    max_update_norm: float | None = Field(default=None, gt=0)  # a larger update is rejected
    longest_wait_seconds: float | None = Field(default=None, gt=0)  # for the user or the quorum,
    # then the run stops, to be resumed; None: it waits for as long as that takes
    max_skipped_rounds: int = Field(default=3, ge=1)  # in a row, with all there that are needed;
    # then the run stops
    compression: Compression = "none"  # of parameters and updates, for slow lines: 2 bytes a number
    # or 1 in place of 4; the figures are then no longer exactly those without
    stop_on_misfit: bool = False  # ends before the first round where a hospital's figures of its
    # columns do not fit the others'
    sealed: bool = False  # nobody sees a single update; see `sealing`
