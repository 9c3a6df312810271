"""The registry: one line for each outcome that comes with the program; packages bring others."""

from collections.abc import Mapping
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, create_model

from erosion_common.settings.names import Sha256
from erosion_common.settings.packages import hash_in, load_class, open_union
from erosion_common.tasks.classification import Classification
from erosion_common.tasks.count import Count
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.survival import Survival
from erosion_common.tasks.task import Task

OUTCOMES: tuple[type[Task], ...] = (
    Classification,
    Regression,
    Count,
    Survival,
)  # fmt: skip

# By name; a package's is added when the first study that names it is read.
REGISTRY: dict[str, type[Task]] = {
    outcome.model_fields["outcome"].default: outcome for outcome in OUTCOMES
}
INPUTS: Mapping[str, Any] = {"tabular": TabularTask, "image": ImageTask}
DEFAULT = "classification"  # of a task that names no outcome


def _task(inputs: type[Task], outcome: type[Task], name: str = "", **fields: Any) -> type[Task]:
    name = name or inputs.__name__.removesuffix("Task") + outcome.__name__
    if inputs is ImageTask and outcome.model_fields["target"].annotation is str:
        said = "Name of what is predicted, for the labels of a site."
        fields["target"] = (str, Field(default="labels", description=said))
    made = create_model(name, __base__=(inputs, outcome), __doc__=outcome.__doc__, **fields)
    globals()[name] = made  # where pickle looks for it
    return made


def _of_outcome(inputs: type[Task]) -> Any:
    union = reduce(or_, (_task(inputs, outcome) for outcome in OUTCOMES))
    return Annotated[union, Field(discriminator="outcome")] if len(OUTCOMES) > 1 else union


def load_task(name: str, sha256: str | None) -> type[Task]:
    """Import a package's outcome and register it. Raises ModelError and Refusal."""
    return REGISTRY.setdefault(name, load_class("task", name, sha256, Task))


def _table_of(raw: Mapping[str, Any]) -> type[Task]:
    name, sha256 = str(raw["outcome"]), hash_in(raw, "task")
    if raw.get("kind") not in INPUTS:
        raise ValueError(f"kind = {raw.get('kind')!r}; it must be {' or '.join(map(repr, INPUTS))}")
    return _with_hash(INPUTS[raw["kind"]], sha256, load_task(name, sha256))


@lru_cache
def _with_hash(inputs: type[Task], sha256: str, outcome: type[Task]) -> type[Task]:
    of_package = (Sha256, Field(description="SHA-256 of the package's files."))
    return _task(inputs, outcome, name=f"{inputs.__name__}_{sha256}", sha256=of_package)


def _with_outcome(value: Any) -> Any:
    """Name classification where a task names no outcome."""
    if isinstance(value, Mapping) and "outcome" not in value:
        return {**value, "outcome": DEFAULT}
    return value


if TYPE_CHECKING:
    AnyTask = Task
else:
    AnyTask = Annotated[
        _of_outcome(TabularTask) | _of_outcome(ImageTask), Field(discriminator="kind")
    ]
    AnyTask = Annotated[
        AnyTask, *open_union("task", "outcome", REGISTRY, _table_of), BeforeValidator(_with_outcome)
    ]
