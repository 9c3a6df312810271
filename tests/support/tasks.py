"""Small tasks for tests."""

from typing import Any

from erosion.common.tasks import read_task
from erosion.common.tasks.inputs import ImageTask, TabularTask
from erosion.common.tasks.task import Task


def classes_of(number: int, **more: Any) -> Task:
    """A classification with classes 0, 1, ... of one feature."""
    raw = {"target": "y", "classes": list(range(number)), "features": ["x"], **more}
    return read_task({"kind": "tabular", **raw})


def tabular(**keys: Any) -> TabularTask:
    """A task on a table."""
    task = read_task({"kind": "tabular", **keys})
    assert isinstance(task, TabularTask)
    return task


def image(**keys: Any) -> ImageTask:
    """A task on images."""
    task = read_task({"kind": "image", **keys})
    assert isinstance(task, ImageTask)
    return task
