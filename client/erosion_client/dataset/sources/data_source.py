"""The interface of every source of patients, and the site file's keys for each of them."""

import contextlib
import hashlib
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Literal, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from erosion_client.dataset.column_values import DecimalMark, Limit
from erosion_client.dataset.preparation import (
    Canonical,
    JoinedRows,
    TimeBetween,
    Unit,
    ValueMap,
    joined,
)
from erosion_client.dataset.text_table import TextTable
from erosion_client.finding import Finding, failed, ok, warning
from erosion_common.errors import DataError
from erosion_common.settings.base import Settings
from erosion_common.support.software import install_command
from erosion_common.tasks.inputs import ImageTask
from erosion_common.tasks.task import Targets

T = TypeVar("T")


class DataSource(Settings, ABC):
    """The location of a hospital's patients, and the map from its words to the study's.

    Each kind of source is a file in this package and a line in its registry (`sources/__init__`).
    """

    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Column of the study = column in the data, where they are called differently.",
    )
    values: dict[str, ValueMap] = Field(
        default_factory=dict,
        description='For a column of the study: value in the data = value in the study. `""` '
        "makes a value missing.",
    )
    patient: str | None = Field(
        default=None,
        min_length=1,
        description="Column in the data that identifies patients. Rows of one patient stay on "
        "one side of every split.",
    )

    def local_name(self, column: str) -> str:
        """Return the hospital's name of a study's column."""
        return self.columns.get(column, column)

    def beside(self, folder: Path) -> Self:
        """Return the same source with its relative paths resolved against `folder`."""
        paths = {key: folder / value.expanduser() for key, value in self if isinstance(value, Path)}
        return self.model_copy(update=paths)

    @abstractmethod
    def describe(self) -> str:
        """Return its kind and location, to open a message with: "Data file patients.csv"."""

    @abstractmethod
    def check(self) -> Iterator[Finding]:
        """Check that it can be reached and read, without reading the patients."""

    def revision(self) -> str | None:
        """Return a text that changes whenever the data do; None: changes are not detectable."""
        return None


class OnDisk(DataSource):
    """A source with all data in the files and folders that its fields name."""

    def describe(self) -> str:
        """Return the first file or folder."""
        return f"Data in {self._paths[0]}"

    def check(self) -> Iterator[Finding]:
        """Check that all exist and can be read."""
        yield from map(check_path, self._paths)

    def revision(self) -> str | None:
        """Return the revision of all files."""
        return revision_of(*self._paths)

    @property
    def _paths(self) -> list[Path]:
        return [value for _, value in self if isinstance(value, Path)]


class TableSource(DataSource):
    """A source of rows of patients; `rows` combines several rows of one."""

    decimal: DecimalMark | None = Field(
        default=None,
        description='Decimal mark in numbers, `"."` or `","`. Left out: worked out from the '
        "study's numbers, and reported.",
    )
    thousands: Literal[",", ".", "'", " "] | None = Field(
        default=None,
        description='Mark between groups of three digits: `","`, `"."`, `"\'"` or `" "`. Left '
        "out: there is none; it is never guessed, because 1,234 could be either number.",
    )
    units: dict[str, Unit] = Field(
        default_factory=dict,
        description="For a number of the study: the factor from the data's unit to the study's, "
        "or `{ factor = ..., offset = ... }`.",
    )
    limits: dict[str, Limit] = Field(
        default_factory=dict,
        description="For a number of the study: what is read of a value beyond a limit. "
        '`"half"`: half the limit of one below it (`<0.05`), and the limit of one above it '
        '(`>89`); `"limit"`: the limit of both. Left out: such a value is refused.',
    )
    derive: dict[str, TimeBetween] = Field(
        default_factory=dict,
        description="For a number of the study: the two dates that it is the time between.",
    )
    absent: tuple[str, ...] = Field(
        default=(),
        description="Features of the study that this hospital does not record. All its patients "
        "then lack them, and the study says what that means.",
    )
    missing: tuple[Canonical, ...] = Field(
        default=(),
        description='Values that mean “not known” in every column, such as `["-9", "n.d."]`. For '
        "a single column, `[data.values.COLUMN]`.",
    )
    rows: JoinedRows | None = Field(
        default=None,
        description="How several rows of a patient become one. Left out: every row stands for "
        "itself.",
    )

    @model_validator(mode="after")
    def _one_origin_each(self) -> Self:
        if self.thousands is not None and self.thousands == self.decimal:
            raise ValueError(f"thousands and decimal are both {self.decimal!r}; they must differ")
        for name in self.derive:
            if name in self.columns:
                raise ValueError(f"{name} is under columns and under derive; keep one of them")
        for name in self.absent:
            if name in self.columns or name in self.derive:
                raise ValueError(f"{name} is absent and also under columns or derive; keep one")
        if self.rows is not None and self.patient is None:
            raise ValueError("rows joins the rows of a patient; name its column as patient")
        return self

    @property
    def stated_decimal(self) -> DecimalMark | None:
        """The decimal mark that the site file gives, or that its `thousands` leaves; else None."""
        if self.decimal is None and self.thousands in (".", ","):
            return "," if self.thousands == "." else "."
        return self.decimal

    def value_map(self, column: str) -> ValueMap:
        """Return the meaning of the data's values for a column."""
        return self.values.get(column, {})

    def needed(self, column: str) -> tuple[str, ...]:
        """Return the columns in the data that a study's column is read from."""
        if column in self.absent:
            return ()
        if column in self.derive:
            return self.derive[column].columns
        return (self.local_name(column),)

    def read(
        self, wanted: Collection[str], codes: Mapping[str, Collection[str]] | None = None
    ) -> TextTable:
        """Read the wanted columns, by local names; with `rows` one row per patient. DataError.

        `codes`: the study's categories of a column, which are values whatever they are called.
        """
        if self.rows is None:
            return self._named(wanted)
        assert self.patient is not None
        needed = [self.patient, *filter(None, [self.rows.event_column])]
        meant = {local: each for name, each in self.values.items() for local in self.needed(name)}
        table = joined(
            self._named([*wanted, *needed]),
            self.rows,
            self.patient,
            decimal=self.stated_decimal,
            thousands=self.thousands or "",
            meant=meant,
            codes=codes or {},
        )
        return replace(table, columns={n: c for n, c in table.columns.items() if n in set(wanted)})

    def _named(self, wanted: Collection[str]) -> TextTable:
        """Return the table with "" for values that mean "not known", and one text of each key."""
        table = self.read_rows(wanted)
        if not isinstance(table, TextTable):  # of a package's source
            problem = f"`read_rows` gave back a {type(table).__name__}, no TextTable"
        elif lacking := sorted({*wanted} & {*table.header} - {*table.columns}):
            problem = f"`read_rows` gave back no column {lacking[0]!r}, which its header has"
        else:
            problem = "" if table.num_rows else "there are no patients"
        if problem:
            remedy = "Export patients, or correct the source's class (docs/extending.md)."
            raise DataError(problem, where=str(self.describe()), remedy=remedy)
        columns = dict(table.columns)
        if self.missing:
            columns = {name: column.without(self.missing) for name, column in columns.items()}
        if self.patient in columns:
            columns[self.patient] = columns[self.patient].as_keys()
        return replace(table, columns=columns)

    @abstractmethod
    def read_rows(self, wanted: Collection[str]) -> TextTable:
        """Read the wanted columns unchanged. Raises DataError where there is no table."""


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """The images of a hospital."""

    images: NDArray[np.uint8]  # (n, channels, height, width)
    targets: Targets  # (n, ...) from the task
    places: tuple[str, ...]  # (n,) people's names for each image
    patients: NDArray[np.int64] | None = None  # (n,) equal for images of one patient, where known
    notes: tuple[str, ...] = ()  # what was noticed while reading them
    is_test: NDArray[np.bool_] | None = None  # (n,) from the source; None: it does not say
    row_hashes: NDArray[np.uint64] | None = None  # (n,) of the stored pixels, and of
    # each image's metadata; None: unknown
    left_out: tuple[str, ...] = ()  # what is wrong with each file that is not among them


class ImageSource(DataSource):
    """A source of images with their classes."""

    # For damaged files; those that only need a setting are refused either way.
    unreadable: Literal["refuse", "leave out"] = Field(
        default="refuse",
        description='What becomes of files that are damaged or hold no image. `"refuse"`: the '
        'data are not accepted. `"leave out"`: they are left out, and named in `records`; '
        "`check` counts them, descriptions and reports say how many at most.",
    )

    @abstractmethod
    def read(self, task: ImageTask, *, with_target: bool = True) -> LabelledImages:
        """Read the images as the study wants them. Raises DataError with every problem.

        Without `with_target` only images and places are read, of new patients: there need not be
        any labels, folders of classes or names of patients, and `targets` says nothing.
        """


def revision_of(*paths: Path) -> str:
    """Return the sizes and times of files and of all files below folders, as one text."""
    content = hashlib.sha256()
    for path in paths:
        is_folder = os.access(path, os.F_OK) and path.is_dir()
        for file in files_below(path) if is_folder else [path]:
            try:
                found = file.stat()
            except OSError:  # reading reports what is wrong with it
                continue
            stamp = (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            # Of a folder's file that nobody has open, some network file systems change the number.
            number = 0 if is_folder else found.st_ino
            content.update(repr((str(file), stamp, number)).encode())
    return content.hexdigest()


@contextlib.contextmanager
def unchanged(source: DataSource, revision: Callable[[], str | None]) -> Iterator[None]:
    """Check that the source does not change within the block. Raises DataError if it does."""
    before = revision()
    yield
    if revision() != before:
        raise DataError(
            f"{source.describe()} was changed while it was read, so patients may be missing",
            remedy="Try again once the export into it has ended.",
        )


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted by path; also in linked folders."""
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for name, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        place = Path(name).stat()
        if (place.st_dev, place.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((place.st_dev, place.st_ino))
        folders.sort()
        found += (Path(name) / file for file in files)
    return sorted(found)


def entries_of(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name. Raises DataError where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as problem:
        _refuse(problem)


def is_there(path: Path) -> bool:
    """Return whether a path exists. Raises DataError where that is not visible."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as problem:
        raise DataError(
            f"{path} cannot be used: {problem.strerror}",
            remedy="Check data.path in the site file, and let this account enter its folder.",
        ) from None
    return True


def not_there(what: str, path: Path) -> DataError:
    """Return the error of a path that does not exist; `what` it should be."""
    return DataError(
        f"There is no {what} {path}", remedy="Check the path (data.path in a site file)."
    )


def lacks_package(origin: str, package: str, extra: str) -> DataError:
    """Return the error of data that cannot be read here, with the command that changes that."""
    return DataError(
        f"{origin} is read with {package}, which is not installed",
        remedy=f"Run: {install_command(extra)}",
    )


def _refuse(problem: OSError) -> NoReturn:
    raise DataError(
        f"The folder {problem.filename} cannot be read: {problem.strerror}",
        remedy="Let this account read it, or move it away.",
    ) from None


def check_path(path: Path) -> Finding:
    """Check that a file or folder exists, and who may read it."""
    what = "data"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return failed(what, f"there is nothing at {path}", "check data.path in the site file")
    except OSError as problem:
        return failed(
            what,
            f"{path}: {problem.strerror}",
            "check data.path in the site file, and let this account enter its folder",
        )
    if not os.access(path, os.R_OK):
        return failed(
            what, f"{path} cannot be read by this account", f"run: chmod u+r {quote(str(path))}"
        )
    if stat.S_IMODE(mode) & 0o007:
        return warning(
            what, f"every account of this machine may read {path}", f"chmod o= {quote(str(path))}"
        )
    return ok(what, f"{path} can be read")


def within(seconds: float, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Return the result of `work`; raises TimeoutError after `seconds`, after calling `cancel`.

    A driver that cannot be cancelled stays in its daemon thread, which does not prevent the exit.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - raised again in the thread that waits
            done.set_exception(problem)

    threading.Thread(target=run, name="database", daemon=True).start()
    wait([done], seconds)
    if not done.done():
        with contextlib.suppress(Exception):  # the work may end now, and close its connection
            cancel()
        raise TimeoutError
    return done.result()


def check_query(origin: str, header: Sequence[str], num_rows: int = 1, most: int = 1) -> None:
    """Raise DataError for a query that gives a column twice, no rows or more than `most`."""
    if twice := sorted({name for name in header if header.count(name) > 1}):
        said = f"gives the column {', '.join(map(repr, twice))} more than once"
        raise DataError(f"{origin} {said}", remedy="Name each with AS.")
    if num_rows > most:
        remedy = "Narrow the query, or raise max_rows under [data]."
        raise DataError(f"{origin} gives more than {most:,} rows", remedy=remedy)
    if num_rows == 0:
        remedy = "Check data.query, and that this account may see the patients."
        raise DataError(f"{origin} gives no rows", remedy=remedy)
