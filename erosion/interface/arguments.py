"""Arguments of the public functions, and packages that were replaced while loaded."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from erosion_common.errors import ErosionError


def check(name: str, value: Any, wanted: str, *kinds: type) -> None:
    """Raise ErosionError unless the argument is of one of the kinds; True is no whole number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"a {type(value).__name__}"
        raise ErosionError(f"{name} = {shown}; it must be {wanted}.")


def check_path(name: str, value: Any, *, or_none: bool = False) -> None:
    """The same of a path."""
    kinds = (str, os.PathLike, type(None)) if or_none else (str, os.PathLike)
    check(name, value, "a path" + or_none * " or None", *kinds)
    try:
        Path("." if value is None else value).stat()
    except (OSError, ValueError) as problem:  # a ValueError: for a null character
        if isinstance(problem, ValueError) or problem.errno == errno.ENAMETOOLONG:
            check(name, value, "a path, not the content of a file")


PACKAGES = {  # modules that say their version, and what installs them
    "PIL": "pillow",
    "cryptography": "cryptography",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic_core",
    "safetensors": "safetensors",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
}


def replaced() -> list[str]:
    """Return each in words: "numpy (1.26.4 is loaded, 2.4.6 is installed)"."""
    found = []
    for module, package in PACKAGES.items():
        loaded = getattr(sys.modules.get(module), "__version__", None)
        if loaded is None:
            continue
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if installed != loaded:
            found.append(f"{package} ({loaded} is loaded, {installed} is installed)")
    return found


@contextmanager
def explaining_replaced() -> Iterator[None]:
    """Raise ImportError for what fails where packages were replaced: parts of both do not fit."""
    try:
        yield
    except ErosionError:
        raise
    except Exception as problem:
        if not (packages := replaced()):
            raise
        raise ImportError(
            "Packages were replaced while this program had them loaded:"
            f" {', '.join(packages)}. Restart the program, or the notebook's kernel, and run it"
            f" again. ({type(problem).__name__}: {problem})"
        ) from problem
