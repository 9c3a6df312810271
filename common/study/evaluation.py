"""The [evaluation] section of a study file: how the models are measured."""

from collections.abc import Collection
from typing import Literal

from pydantic import Field, field_validator

from erosion.common.settings.base import Settings
from erosion.common.settings.names import ColumnName
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
