"""A model of one's own: a Python package that every site has installed by itself."""

import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from erosion.common.errors import ModelError
from erosion.common.learning.networks import ModelBase
from erosion.common.learning.trainable import check_trainable
from erosion.common.settings.names import Sha256

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


Option = bool | int | float | str
Options = dict[str, Option | list[Option]]


class Installed(ModelBase):
    """A model that a package installed at each site makes: any `nn.Module`.

    The package declares an entry point in the group `erosion.models`. It names a function, or a
    class, that is called with `input_shape`, `num_outputs` and the study's `options`, and gives the
    module. A site runs it only if its `limits.installed_models` allow this name with this hash.
    """

    runs_installed_code: ClassVar[bool] = True
    has_free_shapes: ClassVar[bool] = False
    is_tried_out: ClassVar[bool] = True

    name: Literal["installed"] = "installed"
    entry_point: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9][\w.-]*$",
        description="Name of the entry point, in the group `erosion.models`, of a package that "
        "is installed at every site.",
    )
    sha256: Sha256 = Field(description="Of the package's files, as `erosion models` prints it.")
    options: Options = Field(default_factory=dict, description="Keyword arguments of the factory.")

    def check_task(self, input_shape: Sequence[int]) -> None:
        """What it can take, only its own code knows."""

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """What the factory makes. Raises ModelError, whatever the factory does."""
        what = f"The model {self.described()}"
        factory = load_factory(self.entry_point, self.sha256)
        arguments: dict[str, Any] = {
            **self.options,
            "input_shape": tuple(input_shape),
            "num_outputs": num_outputs,
        }
        try:
            signature(factory).bind(**arguments)
        except (TypeError, ValueError) as problem:
            raise failed(f"{what} does not take {', '.join(arguments)}", problem) from None
        try:
            model = factory(**arguments)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - somebody else's code
            raise failed(f"{what} could not be made", problem) from None
        return check_trainable(model, what)

    def described(self) -> str:
        """By its entry point."""
        return repr(self.entry_point)
