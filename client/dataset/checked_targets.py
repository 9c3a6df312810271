"""What a task makes of the target columns, checked: one target for each patient, of it alone.

A target that is made of all patients, such as a rank or a distance from their mean, would carry the
test part into training, and one patient's record into all others' gradients.
"""

import numpy as np

from erosion.client.dataset.apart import is_apart
from erosion.common.errors import Refusal
from erosion.common.tasks.task import Floats, Targets, Task


def checked_targets(task: Task, columns: Floats) -> Targets:
    """`task.targets` of columns (n, c): (n, ...). Raises Refusal, without a patient's value."""
    found = task.targets(columns)
    problem = ""
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        problem = f"it is a {_kind(found)}; it must be an array of numbers"
    elif found.shape[:1] != (len(columns),):
        problem = "it has another length than the columns; one target for each patient is needed"
    elif not np.isfinite(found).all():
        problem = "it has values that are not finite"
    elif not is_apart(lambda part: task.targets(columns[part]), found):
        problem = "a patient's target depends on the other patients; it must be of that one alone"
    if problem:
        raise Refusal(
            f"The task {task.outcome!r} makes targets that cannot be used: {problem}."
            " Correct `targets` in the task's class (docs/extending.md)."
        )
    return found


def _kind(value: object) -> str:
    dtype = getattr(value, "dtype", "")
    return f"{type(value).__name__} of {dtype}" if dtype else type(value).__name__
