"""Sections of a study file: how models are measured, chosen, and who must be there."""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from erosion_common.protocol.compression import Compression
from erosion_common.settings.base import Settings
from erosion_common.settings.names import ColumnName, HospitalName, Name
from erosion_common.tasks import AnyTask
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.inputs import TabularTask

LocalReference = Literal["ridge", "boosted_trees"]
REFERENCES: tuple[LocalReference, ...] = ("ridge", "boosted_trees")
Threshold = Annotated[float, Field(gt=0, lt=1)]
BEST_LOCAL = "best_local"  # in each fold the reference that its training part preferred
MOST_COLUMNS = 500  # of a table, where a study has references without naming any: seconds


class Evaluation(Settings):
    """How the user's hospital measures the models, on patients that no model was trained on."""

    test_share: float = Field(
        default=0.3,
        gt=0,
        lt=1,
        description="Share of the user's patients that no model is trained on. With `folds` it "
        "has no meaning.",
    )
    split_column: ColumnName | None = Field(
        default=None,
        description="Column of the table that says `train` or `test` for each patient, in place "
        "of `test_share`. Nobody trains on any hospital's `test`.",
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        le=20,
        description="Left out: a test part is set aside, see `test_share`. Given: the user's "
        "patients are cut into this many folds, each is predicted by runs of every arm without "
        "it, and the final models are trained on all patients. That takes this many times as "
        "many rounds, and those of the final models.",
    )
    repeats: int = Field(
        default=1,
        ge=1,
        le=20,
        description="With `folds`: how many different cuts are made. The rounds of the folds are "
        "multiplied by it, and the report says how far the p-value moves from one cut to "
        "another.",
    )
    bootstrap: int = Field(
        default=1000,
        ge=100,
        le=100_000,
        description="Resamples of the test patients for the 95 % intervals.",
    )
    strict: bool = Field(
        default=False,
        description="Whether a difference is claimed only if it would still be claimed after one "
        "more patient with the largest possible error of the better arm. There are far fewer "
        "claims, and hardly a false one because of rare patients who are not among those tested; "
        "see [evaluation](evaluation.md).",
    )
    references: tuple[LocalReference, ...] | None = Field(
        default=None,
        description="Tuned models of the user's training patients alone, which its site fits and "
        'measures on the same patients as every arm: `"ridge"`, a linear model, and '
        '`"boosted_trees"`; see [evaluation](evaluation.md#what-collaborating-has-to-beat). Left '
        "out: both for a table of up to 500 columns, none for images. `[]`: none.",
    )
    compare: tuple[str, str] | None = Field(
        default=None,
        description="The one comparison that the verdict is about: `[arm, reference]`, the "
        "latter another arm or one of `references`. Left out: the first arm that is not local "
        "training, with the one of local training and `references` that predicts best inside the "
        "user's training part.",
    )

    thresholds: Annotated[tuple[Threshold, ...], Field(max_length=20)] = Field(
        default=(0.1, 0.2, 0.3, 0.5),
        description="Predicted risks from which somebody might act. The report says what each "
        "would do: alerts, sensitivity, predictive values, net benefit.",
    )
    subgroups: dict[ColumnName, Annotated[tuple[float, ...], Field(max_length=9)]] = Field(
        default_factory=dict,
        max_length=8,
        description="Features by which the report looks at groups of patients: `sex = []` by "
        "category, `age = [50, 65]` by number, cut at these values. Groups of few patients are "
        "left out. Not with more than two classes.",
    )

    @field_validator("thresholds")
    @classmethod
    def _distinct_thresholds(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(set(value)))

    def references_for(self, task: AnyTask) -> tuple[LocalReference, ...]:
        """Return the local references of a study of this task."""
        if self.references is not None:
            return self.references
        is_table = isinstance(task, TabularTask)
        return REFERENCES if is_table and task.input_shape[0] <= MOST_COLUMNS else ()

    def problem_with(self, task: AnyTask, arms: Collection[str], *, selects: bool) -> str | None:
        """Return why the study cannot be evaluated so, or None; `selects`: settings are chosen."""
        return (
            self._problem_with_folds(selects=selects)
            or self._problem_with_split(task)
            or self._problem_with_references(task, arms)
            or self._problem_with_subgroups(task)
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
                "evaluation.folds: settings would have to be chosen again in every fold, which this"
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
        if len(set(self.references or ())) < len(self.references or ()):
            return "evaluation.references: name each reference once"
        for name in (*self.references_for(task), BEST_LOCAL):
            if name in arms:
                return (
                    f"arms.{name}: the figures call a local reference so (evaluation.references);"
                    " give the arm another name"
                )
        return None

    def _problem_with_subgroups(self, task: AnyTask) -> str | None:
        features = {feature.name: feature for feature in getattr(task, "features", ())}
        if self.subgroups and len(getattr(task, "classes", ())) > 2:
            return "evaluation.subgroups needs a task with at most two classes; remove it"
        for name, cuts in self.subgroups.items():
            if (feature := features.get(name)) is None:
                return f"evaluation.subgroups: {name!r} is none of the features"
            if list(cuts) != sorted(set(cuts)):
                return f"evaluation.subgroups: {name}: write cut points in ascending order"
            if isinstance(feature, NumberFeature) and not cuts:
                return f"evaluation.subgroups: {name!r} is a number; say where it is cut: [50, 65]"
            if cuts and not isinstance(feature, NumberFeature):
                return f"evaluation.subgroups: {name!r} has categories; write {name} = []"
        return None

    def _problem_with_comparison(
        self, arms: Collection[str], references: Collection[str]
    ) -> str | None:
        if self.compare is None:
            return None
        arm, reference = self.compare
        if arm not in arms:
            return f"evaluation.compare names the arm {arm!r}; the arms are {', '.join(arms)}"
        if reference not in (others := [name for name in (*arms, *references) if name != arm]):
            return (
                f"evaluation.compare names the reference {reference!r}; there are"
                f" {', '.join(others)}"
            )
        return None


class Validation(Settings):
    """Who measures the final model on its own patients, other than the user."""

    hospitals: Annotated[tuple[HospitalName, ...], Field(max_length=10_000)] = Field(
        default=(),
        description="Further hospitals, not among the study's `hospitals`: they train nothing and "
        "only measure, when the run ends or later (`erosion validate`).",
    )


class Fold(Settings):
    """One of several equal parts of the user's patients, class by class.

    Without a `cut` they are parts of the training patients, to choose settings by; with one, of all
    patients, to be predicted by models that never saw them. Each cut is another one.
    """

    number: int = Field(ge=0, lt=100, description="Which part is held out, from 0.")
    of: int = Field(ge=2, le=100, description="Number of parts.")
    cut: int | None = Field(
        default=None,
        ge=1,
        le=20,
        description="In a cross-fitted evaluation: which cut into parts, from 1.",
    )


def fewest_held_out(folds: Sequence[Fold], num_patients: int) -> int:
    """Return the patients of the smallest of these folds; see `split_patients`."""
    return min(len(range(fold.number, num_patients, fold.of)) for fold in folds)


def folds_key(folds: Sequence[Fold]) -> str:
    """Return the study file's key for their number."""
    return "selection.folds" if folds[0].cut is None else "evaluation.folds"


class Selection(Settings):
    """How each arm's settings and number of rounds are chosen, inside the user's training part.

    Every candidate runs once for each fold, without the fold's patients; chosen are the candidate
    and the number of rounds with the least mean log loss for them. Then the arm runs once more,
    with all training patients. The test part is not touched.
    """

    method: Literal["cross_validation", "validation"] = Field(
        default="cross_validation",
        description='`"cross_validation"`: every part is held out in turn. `"validation"`: only '
        "the first.",
    )
    folds: int = Field(
        default=5,
        ge=2,
        le=100,
        description="Number of equal parts of the user's training patients, each of at least "
        "`limits.min_cell` of them.",
    )
    candidates: dict[Name, tuple[dict[str, Any], ...]] = Field(
        default_factory=dict,
        description="By arm, a list of settings to try, each in place of some of the arm's own. "
        "Without any, only the number of rounds is chosen.",
    )

    def trial_folds(self) -> tuple[Fold, ...]:
        """Return the folds that are held out in turn."""
        count = self.folds if self.method == "cross_validation" else 1
        return tuple(Fold(number=number, of=self.folds) for number in range(count))


class Federation(Settings):
    """Who must be there, and how long anyone waits."""

    round_deadline_seconds: float = Field(
        default=120.0,
        gt=0,
        le=86_400,
        description="Seconds that a round waits for its answers. A hospital that is late counts "
        "as absent in it; after three times in a row it is left out of some rounds.",
    )
    join_deadline_seconds: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="Seconds after which a study that may begin without some of its hospitals "
        "does so; the others' absence is reported from then on. It begins at once when all are "
        "there. A hospital that is connected but has not described its patients by then is "
        "named, because its data source may hang; it may still do so later.",
    )
    quorum: int = Field(
        default=2,
        ge=1,
        description="Fewest updates of a round, the user's own included, if all hospitals are "
        "asked; if a method asks fewer, the same number may be missing. A round with fewer is "
        "skipped.",
    )
    start: Literal["all", "quorum"] = Field(
        default="all",
        description='Hospitals to wait for before the first round. `"all"`: every hospital '
        "but those that decline, or that are connected and have not described their patients by "
        'the join deadline, so that all arms are compared on the same ones. `"quorum"`: at the '
        "deadline it begins with those that are there.",
    )
    join: Literal["at_start", "any_time"] = Field(
        default="at_start",
        description='`"at_start"`: a hospital that is not there at the first round stays out of '
        'every arm; one that was there may always come back. `"any_time"`: one that comes later '
        "takes part from then on, so arms are compared on different hospitals, and the report "
        "says so.",
    )
    max_update_norm: float | None = Field(
        default=None,
        gt=0,
        description="A longer update is rejected. Left out: only one that is out of all "
        "proportion to the others'.",
    )
    longest_wait_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after which the run ends where the user or the quorum is missing, "
        'or, with `start = "all"`, any hospital before the first round, but not before '
        "`join_deadline_seconds` have passed. Left out: it waits without end.",
    )
    max_skipped_rounds: int = Field(
        default=3,
        ge=1,
        description="Rounds skipped in a row after which the run stops. It can be resumed.",
    )
    compression: Compression = Field(
        default="none",
        description="Of parameters and updates, for slow lines: 2 bytes a number or 1 in place "
        "of 4; the figures are then no longer exactly those without.",
    )
    stop_on_misfit: bool = Field(
        default=False,
        description="Ends before the first round where a hospital's figures of its columns do "
        "not fit the others'.",
    )
    sealed: bool = Field(
        default=False,
        description="Nobody, not even the coordinator, sees a single hospital's update; see "
        "[sealed rounds](sealed-rounds.md).",
    )
