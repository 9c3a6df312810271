"""The registry: one line for each outcome that a study's task can have."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, create_model

from erosion.common.tasks.classification import Classification
from erosion.common.tasks.inputs import ImageTask, TabularTask
from erosion.common.tasks.regression import Regression
from erosion.common.tasks.survival import Survival
from erosion.common.tasks.task import Task

OUTCOMES: tuple[type[Task], ...] = (
    Classification,
    Regression,
    Survival,
)  # fmt: skip

REGISTRY: Mapping[str, type[Task]] = {
    outcome.model_fields["outcome"].default: outcome for outcome in OUTCOMES
}
DEFAULT = "classification"  # of a task that names no outcome


def _task(inputs: type[Task], outcome: type[Task]) -> type[Task]:
    """The two halves as one table of a study file."""
    name = inputs.__name__.removesuffix("Task") + outcome.__name__
    fields: dict[str, Any] = {}
    if inputs is ImageTask and outcome.model_fields["target"].annotation is str:
        fields["target"] = (str, "labels")  # what the array is called beside the images
    made = create_model(name, __base__=(inputs, outcome), __doc__=outcome.__doc__, **fields)
    globals()[name] = made  # where pickle looks for it
    return made


def _of_outcome(inputs: type[Task]) -> Any:
    """A task with these inputs: told apart by its outcome."""
    union = reduce(or_, (_task(inputs, outcome) for outcome in OUTCOMES))
    return Annotated[union, Field(discriminator="outcome")] if len(OUTCOMES) > 1 else union


def _with_outcome(value: Any) -> Any:
    """A task that names no outcome is a classification."""
    if isinstance(value, Mapping) and "outcome" not in value:
        return {**value, "outcome": DEFAULT}
    return value


if TYPE_CHECKING:
    AnyTask = Task
else:
    AnyTask = Annotated[
        _of_outcome(TabularTask) | _of_outcome(ImageTask), Field(discriminator="kind")
    ]
    AnyTask = Annotated[AnyTask, BeforeValidator(_with_outcome)]
