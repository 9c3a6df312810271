"""Models that somebody installed here: entry points of the group `erosion.models`, by their hash.

Nothing of a package is imported before its files' hash is the expected one. What the hash covers is
the entry point's own package, every file of it; what that package imports from others is not.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from erosion.common.errors import ModelError

GROUP = "erosion.models"

_loaded: dict[str, str] = {}  # package -> the hash that it had when this process imported it


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """An entry point, found and not imported."""

    name: str
    target: str  # "package.module:factory"
    distribution: str  # "hospital-nets 1.0"
    sha256: str  # of the package's files

    @property
    def package(self) -> str:
        """What is imported, and hashed as a whole."""
        return self.target.partition(":")[0].partition(".")[0]


def installed_model(name: str) -> InstalledModel:
    """The entry point of that name; raises ModelError where there is none, or more than one."""
    found = {entry.value: entry for entry in metadata.entry_points(group=GROUP, name=name)}
    if not found:
        known = sorted({entry.name for entry in metadata.entry_points(group=GROUP)})
        raise ModelError(
            f"No model {name!r} is installed here (in {GROUP}: {', '.join(known) or 'none'})."
            " Install the package that has it in this program's environment, or correct"
            " model.entry_point."
        )
    if len(found) > 1:
        raise ModelError(
            f"The model {name!r} is installed more than once here ({', '.join(sorted(found))})."
            " Uninstall the others, so that it is clear which one is meant."
        )
    return _described(next(iter(found.values())))


def every_installed_model() -> Iterator[InstalledModel | ModelError]:
    """All entry points of the group, by name, or why one cannot be used."""
    for name in sorted({entry.name for entry in metadata.entry_points(group=GROUP)}):
        try:
            yield installed_model(name)
        except ModelError as problem:
            yield problem


def load_factory(name: str, sha256: str) -> Callable[..., Any]:
    """Import the entry point, whose package must have that hash; raises ModelError."""
    found = installed_model(name)
    if found.sha256 != sha256:
        raise ModelError(
            f"The model {name!r} that is installed here ({found.distribution}) has the SHA-256"
            f" {found.sha256}, the study names {sha256}. Install the version that the study was"
            " written for (`erosion models` shows the hashes)."
        )
    if _loaded.setdefault(found.package, sha256) != sha256:
        raise ModelError(
            f"The package {found.package} was replaced while this program ran, which still has the"
            " old one in memory. Start the program again."
        )
    entry = metadata.EntryPoint(name, found.target, GROUP)
    try:
        factory = entry.load()
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - somebody else's code
        raise failed(f"The model {name!r} ({found.target}) cannot be imported", problem) from None
    if not callable(factory):
        raise ModelError(
            f"The model {name!r} ({found.target}) is a {type(factory).__name__}; it must be a"
            " function or class that makes an nn.Module."
        )
    return factory  # type: ignore[no-any-return]


def failed(what: str, problem: BaseException) -> ModelError:
    """The error for whatever somebody else's code raised."""
    reason = str(problem).strip().splitlines()
    words = f"{type(problem).__name__}: {reason[0][:300]}" if reason else type(problem).__name__
    return ModelError(f"{what}: {words}. Correct the package, or ask its author.")


def _described(entry: metadata.EntryPoint) -> InstalledModel:
    if entry.pattern.match(entry.value) is None:
        raise ModelError(
            f"The model {entry.name!r} is declared as {entry.value!r}. Write it as"
            " package.module:factory in the package that declares it."
        )
    distribution = entry.dist
    name = f"{distribution.name} {distribution.version}" if distribution else "no distribution"
    package = entry.module.partition(".")[0]
    return InstalledModel(entry.name, entry.value, name, _hash_of(package, entry.name))


def _hash_of(package: str, name: str) -> str:
    """SHA-256 over the names and contents of a package's files; raises ModelError."""
    try:
        spec = importlib.util.find_spec(package)  # of a top-level name: imports nothing
    except (ImportError, ValueError):
        spec = None
    where = f"The package {package} of the model {name!r}"
    if spec is None or not spec.has_location or spec.origin is None:
        raise ModelError(
            f"{where} is not there, or has no __init__.py. Install it again, as a package of files."
        )
    origin = Path(spec.origin)
    root = origin.parent if spec.submodule_search_locations else origin
    files = sorted(_files(root)) if root.is_dir() else [root]
    digest = hashlib.sha256()
    try:
        for file in files:
            if file.is_symlink():
                raise ModelError(f"{where} holds a link ({file}). Replace it by what it points to.")
            if file.is_dir():
                continue
            place = file.relative_to(root.parent).as_posix()
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{place}\n{content}\n".encode())
    except OSError as problem:
        raise ModelError(f"{where} cannot be read ({problem}). Install it again.") from None
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """Everything below but hidden files and the interpreter's cache of compiled ones."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
