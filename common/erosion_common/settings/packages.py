"""Parts of somebody else's package: found by entry point, and known by the hash of its files.

A part is an entry point in `erosion.methods`, `.tasks`, `.models`, `.sources` or `.outputs`. A
study names the hash for the first three; nothing of the package is imported before its files have
that hash, and only as the site's limits allow (`allow_only`). The hash covers every file of the
entry point's own package, and not what that package imports from others.
"""

import hashlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from erosion_common.errors import ErosionError, ModelError, Refusal

if TYPE_CHECKING:
    from pydantic import ValidatorFunctionWrapHandler

logger = logging.getLogger("erosion.packages")

Kind = Literal["method", "task", "model", "source", "output"]

_loaded: dict[str, str] = {}  # package -> the hash that it had when this process imported it
_contents: dict[str, str] = {}  # file of these packages -> the hash of its content
_allowed: dict[Kind, Mapping[str, str]] = {}  # name -> hash; of a kind that is not here, all


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """An entry point, found and not imported."""

    kind: Kind
    name: str
    target: str  # "package.module:name"
    distribution: str  # "hospital-nets 1.0"
    sha256: str  # of the package's files
    contents: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # each file's hash, by its path

    @property
    def package(self) -> str:
        """What is imported, and hashed as a whole."""
        return self.target.partition(":")[0].partition(".")[0]


def group_of(kind: Kind) -> str:
    """Return the group of entry points."""
    return f"erosion.{kind}s"


def installed_names(kind: Kind) -> list[str]:
    """Return the names of all entry points of the kind."""
    return sorted({entry.name for entry in metadata.entry_points(group=group_of(kind))})


def installed_part(kind: Kind, name: str) -> InstalledPart:
    """Return the entry point of that name; raises ModelError for none, or more than one."""
    group = group_of(kind)
    found = {entry.value: entry for entry in metadata.entry_points(group=group, name=name)}
    if not found:
        known = ", ".join(installed_names(kind)) or "none"
        raise ModelError(
            f"No {kind} {name!r} is installed here (in {group}: {known})",
            remedy="Install the package that has it in this program's environment, or correct"
            " the name.",
        )
    if len(found) > 1:
        raise ModelError(
            f"The {kind} {name!r} is installed more than once here ({', '.join(sorted(found))})",
            remedy="Uninstall the others, so that it is clear which one is meant.",
        )
    return _described(kind, next(iter(found.values())))


def every_installed(kind: Kind) -> Iterator[InstalledPart | ModelError]:
    """Yield all entry points of the group, by name, or why one cannot be used."""
    for name in installed_names(kind):
        try:
            yield installed_part(kind, name)
        except ModelError as problem:
            yield problem


def allow_only(allowed: Mapping[Kind, Mapping[str, str]]) -> None:
    """From now on import parts of these kinds only by these names, with these hashes."""
    _allowed.clear()
    _allowed.update(allowed)


def problem_with_part(kind: Kind, name: str, sha256: str, allowed: Mapping[str, str]) -> str | None:
    """Return why a site that allows these names with these hashes does not run it, or None."""
    if allowed.get(name) == sha256:
        return None
    what, key = f"the installed {kind} {name!r} with the SHA-256 {sha256}", f"installed_{kind}s"
    if name in allowed:
        return f"{what}; limits.{key} allows it with {allowed[name]} only"
    return f"{what}; limits.{key} allows {', '.join(allowed) or 'none'}"


def load_part(kind: Kind, name: str, sha256: str | None = None) -> Any:
    """Import the part of a package with that hash; None: any. Raises ModelError, Refusal."""
    found = installed_part(kind, name)
    if sha256 is not None and kind in _allowed:
        problem = problem_with_part(kind, name, sha256, _allowed[kind])
        if problem is not None:
            raise Refusal(f"This site does not run {problem}.")
    if sha256 is not None and found.sha256 != sha256:
        raise ModelError(
            f"The {kind} {name!r} that is installed here ({found.distribution}) has the"
            f" SHA-256 {found.sha256}, the study names {sha256}",
            remedy="Install the version that the study was written for (`erosion models` shows"
            " the hashes).",
        )
    if _loaded.setdefault(found.package, found.sha256) != found.sha256:
        raise ModelError(
            f"The package {found.package} was replaced while this program ran, which still has"
            " the old one in memory",
            remedy="Start the program again.",
        )
    _contents.update(found.contents)
    if _AS_HASHED not in sys.meta_path:
        sys.meta_path.insert(0, _AS_HASHED)
    try:
        return metadata.EntryPoint(name, found.target, group_of(kind)).load()
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - somebody else's code
        what = f"The {kind} {name!r} ({found.target}) cannot be imported"
        raise failed(what, problem) from None


class _AsHashed(MetaPathFinder):
    """Imports the modules of hashed packages from the source that was hashed.

    The hash does not cover what Python keeps of them compiled, which may be of other code: it is
    not read. Nor is a file that was replaced between the hash and the import.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in _loaded:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        place = spec.origin if spec and isinstance(spec.loader, SourceFileLoader) else None
        if spec and place is not None and place in _contents:
            spec.loader, spec.cached = _FromSource(name, place), None
        return spec


class _FromSource(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        if hashlib.sha256(content).hexdigest() != _contents[self.path]:
            raise ImportError(f"{self.path} was replaced once it was hashed", name=fullname)
        return self.source_to_code(content, self.path)


_AS_HASHED = _AsHashed()


def load_class(kind: Kind, name: str, sha256: str | None, base: Any) -> Any:
    """Return the same of a class that extends `base`."""
    found = load_part(kind, name, sha256)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ModelError(
            f"The {kind} {name!r} is no subclass of {base.__name__}", remedy="Make it one."
        )
    fields: Mapping[str, Any] = getattr(found, "model_fields", {})
    called = next((fields[tag].default for tag in _TAGS if tag in fields), name)
    if isinstance(called, str) and called != name:
        raise ModelError(
            f"The {kind} {name!r} is called {called!r} in its class",
            remedy="Give the entry point and the class one name in the package.",
        )
    return found


_TAGS = ("algorithm", "outcome", "source")  # by which a class of a part is named


def blamed(problem: BaseException) -> str:
    """Return which imported package raised it, and where; "" where none did."""
    for frame, line in reversed(list(traceback.walk_tb(problem.__traceback__))):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in _loaded:
            file = Path(frame.f_code.co_filename).name
            return f"The package {package} failed ({file}, line {line}, in {frame.f_code.co_name})"
    return ""


def loaded_packages() -> str:
    """Return the names of the packages that this process imported, for a message."""
    return ", ".join(sorted(_loaded))


@contextmanager
def faults_of_packages() -> Iterator[None]:
    """Raise ModelError for what a package's code raises; any other exception as it is."""
    try:
        yield
    except ErosionError:
        raise
    except (Exception, SystemExit) as problem:
        if not (where := blamed(problem)):
            raise
        logger.debug("%s", where, exc_info=True)
        raise failed(where, problem) from problem


def failed(what: str, problem: BaseException) -> ModelError:
    """Return the error for what somebody else's code raised."""
    reason = str(problem).strip().splitlines()
    words = f"{type(problem).__name__}: {reason[0][:300]}" if reason else type(problem).__name__
    return ModelError(words, where=what, remedy="Correct the package, or ask its author.")


def open_union(
    kind: Kind, tag: str, ours: Iterable[str], form_of: Callable[[Mapping[str, Any]], Any]
) -> tuple[Any, Any]:
    """Return validators for a union that takes packages' tables, too: unpack it in `Annotated`.

    A table with a key `tag` that is none of `ours` but an installed name of that kind is of the
    class that `form_of` makes for it.
    """
    # Not for `erosion --help`.
    from pydantic import BaseModel, SerializeAsAny, ValidationError, WrapValidator

    known = frozenset(ours)

    def validate(value: Any, handler: "ValidatorFunctionWrapHandler") -> Any:
        name = value.get(tag) if isinstance(value, Mapping) else getattr(value, tag, None)
        if not isinstance(name, str):
            return handler(value)
        is_of_package = isinstance(value, Mapping) and "sha256" in value
        if is_of_package and name in known:
            raise ValueError(
                f"sha256 names a part of a package, and {tag} = {name!r} comes with this program;"
                " leave sha256 out, or ask the package's author to rename the part"
            )
        if is_of_package:
            installed_part(kind, name)  # which says so where it is not installed here
        if name in known or name not in installed_names(kind):
            return handler(value)
        if isinstance(value, BaseModel):
            return value  # made by this validator
        form = form_of(value)
        if inspect.isabstract(form):
            raise ModelError(
                f"The {kind} {name!r} lacks {', '.join(sorted(form.__abstractmethods__))}",
                remedy="Correct the package, or ask its author.",
            )
        try:
            return form.model_validate(value)
        except ValidationError as problem:
            wrong = [e for e in problem.errors() if e["type"] == "extra_forbidden"]
            if not wrong or len(wrong[0]["loc"]) > 1:
                raise
            keys = ", ".join(sorted(form.model_fields))
            raise ValueError(
                f"the {kind} {name!r} of a package has no key {wrong[0]['loc'][0]!r:.80}; it knows"
                f" {keys}"
            ) from None

    return WrapValidator(validate), SerializeAsAny()  # type: ignore[type-arg]


def hash_in(raw: Mapping[str, Any], kind: Kind) -> str:
    """Return the hash that a study's table names; raises ValueError where there is none."""
    if not isinstance(raw.get("sha256"), str):
        raise ValueError(f"it is a {kind} of a package; add sha256 (`erosion models` prints it)")
    return str(raw["sha256"])


def _described(kind: Kind, entry: metadata.EntryPoint) -> InstalledPart:
    if entry.pattern.match(entry.value) is None:
        raise ModelError(
            f"The {kind} {entry.name!r} is declared as {entry.value!r}",
            remedy="Write it as package.module:name in the package that declares it.",
        )
    distribution = entry.dist
    name = f"{distribution.name} {distribution.version}" if distribution else "no distribution"
    package = entry.module.partition(".")[0]
    sha256, contents = _hash_of(package, f"{kind} {entry.name!r}")
    return InstalledPart(kind, entry.name, entry.value, name, sha256, contents)


def _hash_of(package: str, part: str) -> tuple[str, Mapping[str, str]]:
    try:
        spec = importlib.util.find_spec(package)  # of a top-level name: imports nothing
    except (ImportError, ValueError):
        spec = None
    where = f"The package {package} of the {part}"
    if spec is None or not spec.has_location or spec.origin is None:
        raise ModelError(
            f"{where} is not there, or has no __init__.py",
            remedy="Install it again, as a package of files.",
        )
    origin = Path(spec.origin)
    root = origin.parent if spec.submodule_search_locations else origin
    files = sorted(_files(root)) if root.is_dir() else [root]
    digest, contents = hashlib.sha256(), dict[str, str]()
    try:
        for file in files:
            if file.is_symlink():
                raise ModelError(
                    f"{where} holds a link ({file})", remedy="Replace it by what it points to."
                )
            if file.is_dir():
                continue
            place = file.relative_to(root.parent).as_posix()
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{place}\n{content}\n".encode())
            contents[str(file)] = content
    except OSError as problem:
        raise ModelError(
            f"{where} cannot be read ({problem})", remedy="Install it again."
        ) from None
    return digest.hexdigest(), contents


def _files(folder: Path) -> Iterator[Path]:
    """Yield everything below but hidden files and the interpreter's cache of compiled ones."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
