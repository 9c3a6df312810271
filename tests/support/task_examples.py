"""An example of every task, which the contract tests look at, and patients of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from erosion_common.settings.packages import installed_part
from erosion_common.tasks import REGISTRY
from erosion_common.tasks.task import Targets, Task
from tests.support.tasks import read_task

NUM_PATIENTS = 40
EXAMPLES: dict[str, Mapping[str, Any]] = {
    "classification": {"target": "y", "classes": [0, 1, 2]},
    "regression": {"target": "y", "centre": 10, "spread": 4},
    "count": {"target": "y", "centre": 8, "spread": 4},
    "survival": {"target": {"time": "t", "event": "e"}, "cut_points": [5, 10, 20]},
}
for _name, _task in REGISTRY.items():  # of packages that are installed here
    if _name not in EXAMPLES:
        of_package = {"sha256": installed_part("task", _name).sha256}
        EXAMPLES[_name] = {**getattr(_task, "example"), **of_package}  # noqa: B009


def example(name: str) -> Task:
    return read_task({"kind": "tabular", "outcome": name, "features": ["x", "z"], **EXAMPLES[name]})


def patients(task: Task, seed: int = 0, count: int = NUM_PATIENTS) -> Targets:
    """Targets that differ, drawn within what the task's columns allow."""
    generator = np.random.default_rng(seed)
    columns = []
    for column in task.target_columns:
        codes = getattr(column, "codes", None)
        drawn = generator.uniform(0, 25, size=count)
        if codes is not None:
            drawn = generator.choice(sorted(set(codes.values())), size=count)
        columns.append(drawn)
    return task.targets(np.stack(columns, axis=1))
