"""The [evaluation] section of a study file: how the models are measured."""

from collections.abc import Collection

from pydantic import Field, field_validator

from erosion.common.settings.base import Settings
from erosion.common.settings.names import ColumnName
from erosion.common.tasks import AnyTask
from erosion.common.tasks.inputs import TabularTask


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
    compare: tuple[str, str] | None = None  # the one declared comparison (arm, reference arm);
    # None: the first arm that is not local training, with local training

    @field_validator("compare")
    @classmethod
    def _different(cls, value: tuple[str, str] | None) -> tuple[str, str] | None:
        if value is not None and value[0] == value[1]:
            raise ValueError("name two different arms")
        return value

    def problem_with(self, task: AnyTask, arms: Collection[str], *, selects: bool) -> str | None:
        """Why a study of these arms cannot be evaluated so, or None.

        `selects`: it leaves settings to be chosen.
        """
        return (
            self._problem_with_folds(selects=selects)
            or self._problem_with_split(task)
            or self._problem_with_comparison(arms)
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

    def _problem_with_comparison(self, arms: Collection[str]) -> str | None:
        for arm in self.compare or ():
            if arm not in arms:
                return f"evaluation.compare names the arm {arm!r}; the arms are {', '.join(arms)}"
        return None
