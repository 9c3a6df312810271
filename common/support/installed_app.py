"""Finds a Flower app that is installed on this machine, by "package.module:app"."""

import importlib
from typing import TypeVar

from erosion.common.errors import ErosionError
from erosion.common.support.torchvision_fit import torchvision_problem

App = TypeVar("App")


def load_app(name: str, kind: type[App], error: type[ErosionError]) -> App:
    """The app of this `kind` (a ClientApp or a ServerApp) that `name` names. Raises `error`."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise error(f"--app {name}: write it as PACKAGE:APP, for example our_app.main:app.")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as problem:
        if said := torchvision_problem(problem):
            raise error(f"--app {name}: {said}") from None
        raise error(
            f"--app {name}: there is no module {problem.name!r} here. Install the app on this"
            " machine first; programs are never sent."
        ) from None
    except Exception as problem:  # noqa: BLE001 - the app's own, whatever it is
        if said := torchvision_problem(problem):
            raise error(f"--app {name}: {module} cannot be imported. {said}") from None
        raise error(
            f"--app {name}: {module} cannot be imported ({type(problem).__name__}: {problem})."
            " Correct the app, or install what it needs."
        ) from None
    if not isinstance(found, kind):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise error(
            f"--app {name}: {attribute} in {module} is {what}, expected a {kind.__name__}."
            " Name the variable that holds the app."
        )
    return found
