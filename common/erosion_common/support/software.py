"""What is installed here: this program, its extras, others' Flower apps, torch with torchvision."""

import importlib
import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from shlex import quote
from typing import TypeVar

from erosion_common.errors import ErosionError

OF_AN_EXTRA = re.compile(r"""(.+?)\s*;\s*extra == ["']([\w-]+)["']""")
DISTRIBUTIONS = ("erosion-common", "erosion-client", "erosion-server", "erosion-fl")


@cache
def software_version() -> str:
    """Return the installed version; "unknown" for a mere folder."""
    return _version("erosion-common") or "unknown"


def check_distributions() -> None:
    """Raise ErosionError where parts of the program are of different versions."""
    found = {name: version for name in DISTRIBUTIONS if (version := _version(name))}
    if len({*found.values()}) > 1:
        raise ErosionError(
            f"parts of different versions are installed: {', '.join(map(' '.join, found.items()))}",
            remedy="Install all of them from one release, or run `make install` in the checkout.",
        )


def install_command(extra: str) -> str:
    """Return the command that installs an extra's packages; of a mere folder, one for there."""
    packages = []
    for distribution in DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found = map(OF_AN_EXTRA.fullmatch, metadata.requires(distribution) or [])
            packages += [match[1] for match in found if match and match[2] == extra]
    others = [package for package in packages if not package.startswith("erosion-")]
    return " ".join(["pip install", *map(quote, others or [f".[{extra}]"])])


App = TypeVar("App")


def load_app(name: str, kind: type[App], error: type[ErosionError]) -> App:
    """Return the app of this `kind` (ClientApp or ServerApp) by its `name`. Raises `error`."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise error("write it as PACKAGE:APP, for example our_app.main:app.", where=f"--app {name}")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as problem:  # noqa: BLE001 - any error of the app
        said = torchvision_problem(problem)
        if isinstance(problem, ModuleNotFoundError) and not said:
            said = (
                f"there is no module {problem.name!r} here. Install the app on this machine first;"
                " programs are never sent."
            )
        said = said or (
            f"{module} cannot be imported ({type(problem).__name__}: {problem}). Correct the"
            " app, or install what it needs."
        )
        raise error(said, where=f"--app {name}") from None
    if not isinstance(found, kind):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise error(
            f"{attribute} in {module} is {what}, expected a {kind.__name__}",
            where=f"--app {name}",
            remedy="Name the variable that holds the app.",
        )
    return found


_INDEX = "https://download.pytorch.org/whl"


def torchvision_problem(problem: Exception) -> str:
    """Return what happened and the command that repairs torchvision; "" for other problems."""
    if "torchvision" not in f"{problem} {getattr(problem, 'name', '')}":
        return ""
    torch, torchvision = (_version(package) for package in ("torch", "torchvision"))
    release, _, build = torch.partition("+")
    index = f" --index-url {_INDEX}/{build}" if build else ""
    said = (
        "torchvision is not installed"
        if not torchvision
        else f"torchvision {torchvision} does not fit torch {torch} ({problem}): they are of other"
        " releases, or came from different indexes"
    )
    command = f"pip install --force-reinstall torch=={release} torchvision{index}"
    return f"{said}. Install both from one index: {command}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
