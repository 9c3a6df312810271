"""Small tasks for tests."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from erosion_common.tasks import AnyTask
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.task import Task


@cache
def _reader() -> TypeAdapter[Any]:
    """Made once: that takes longer than most of what a task is read for."""
    return TypeAdapter(AnyTask)


def read_task(raw: Mapping[str, Any]) -> Task:
    """The task that a table of a study file describes; raises pydantic's ValidationError."""
    task: Task = _reader().validate_python(raw)
    return task


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
