"""Personalised collaborative learning for hospitals, on Flower.

The public Python interface is what `__all__` names; see docs/python.md. Every other module is
private: it may change in any version. Nothing is imported before it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import erosion_common  # noqa: F401 - it sets up gRPC before anything uses it

if TYPE_CHECKING:
    from erosion.interface.models import Model, load_model
    from erosion.interface.run import Run
    from erosion.interface.runs import load_study, read_run, simulate, testbed
    from erosion_common.errors import ErosionError
    from erosion_common.study.study import Study

__all__ = [
    "ErosionError",
    "Model",
    "Run",
    "Study",
    "load_model",
    "load_study",
    "read_run",
    "simulate",
    "testbed",
]

_HOMES = {
    "ErosionError": "erosion_common.errors",
    "Model": "erosion.interface.models",
    "Run": "erosion.interface.run",
    "Study": "erosion_common.study.study",
    "load_model": "erosion.interface.models",
    "load_study": "erosion.interface.runs",
    "read_run": "erosion.interface.runs",
    "simulate": "erosion.interface.runs",
    "testbed": "erosion.interface.runs",
}
_IMPORTED = {"Any", "TYPE_CHECKING", "erosion_common", "import_module"}  # not for users


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'erosion' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - _IMPORTED)
