"""Whether each patient's result is independent of the other patients."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from erosion.common.errors import Refusal
from erosion.common.tasks.task import Floats, Targets, Task

TRIED = 64  # patients at most, evenly from the first to the last
_ROUNDING = 1e-6  # relative to the largest value; sums of one row may be rounded differently


def is_apart(of: Callable[[slice], object], together: NDArray[np.generic]) -> bool:
    """Return whether `of`, applied to some patients, agrees with `together` (n, ...), of all."""
    num_patients = len(together)
    places = np.linspace(0, num_patients - 1, min(TRIED, num_patients)).astype(int).tolist()
    known = np.abs(together[np.isfinite(together)])
    largest = float(known.max()) if known.size else 0.0
    for place in places:
        here = slice(place, place + 1)
        alone, among = np.asarray(of(here)), together[here]
        if alone.shape != among.shape or not np.allclose(
            alone, among, rtol=0.0, atol=_ROUNDING * largest, equal_nan=True
        ):
            return False
    return True


def checked_targets(task: Task, columns: Floats) -> Targets:
    """Return `task.targets` of columns (n, c): (n, ...). Raises Refusal without their values."""
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
