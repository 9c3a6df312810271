"""Finds a folder's scans and their targets: class folders, or a table of labels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.checked_targets import checked_targets
from erosion.client.dataset.row_hashes import hash_of_text
from erosion.client.dataset.sources.data_source import (
    ImageSource,
    check_path,
    is_there,
    revision_of,
)
from erosion.client.dataset.sources.image_targets import (
    IS_MASK,
    SHOWN,
    beside_classes,
    class_folders,
    faults,
    is_mask,
    read_target,
)
from erosion.client.dataset.sources.table_file import TableFile
from erosion.client.finding import Finding
from erosion.common.errors import DataError
from erosion.common.support.software import install_command
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import Targets

FILE_COLUMN = "file"  # of a table of labels; [data.columns] can call it otherwise


@dataclass(frozen=True, slots=True)
class Scans:
    """What is to be read as one image each: a file, or the folder of a series."""

    paths: tuple[Path, ...]
    places: tuple[str, ...]  # (n,) how people find each, relative to the source's folder
    targets: Targets  # (n, ...) as the task has them
    said: tuple[int, ...]  # (n,) hashes of what is said of each: the class, or a row of the table
    notes: tuple[str, ...] = ()  # what was found out in reading the table


class ScanFolder(ImageSource):
    """A folder of scans: one folder of them per class, or a table that says what each shows."""

    if TYPE_CHECKING:  # fields of every such source, each beside the others of its own
        path: Path
        labels: Path | None

    def describe(self) -> str:
        """The folder."""
        return f"Data in {self.path}"

    def check(self) -> Iterator[Finding]:
        """The folder and the table are there and can be read."""
        yield check_path(self.path)
        if self.labels is not None:
            yield check_path(self.labels)

    def revision(self) -> str:
        """Of the folder and the table."""
        return revision_of(self.path, *([] if self.labels is None else [self.labels]))

    def require(self, package: str, extra: str) -> None:
        """Raise DataError, with the command that installs it, where a package is missing."""
        if find_spec(package) is None:
            raise DataError(
                f"{self.describe()} is read with {package}, which is not installed. Run:"
                f" {install_command(extra)}"
            )

    def scans(self, task: ImageTask, scans_in: Callable[[Path], list[Path]]) -> Scans:
        """The scans with their targets; raises DataError with every problem.

        Without a table of labels, `path` holds one folder per class, and `scans_in` lists the scans
        below each. With one, its column `file` names each scan, relative to `path`.
        """
        root = self.path
        if not is_there(root) or not root.is_dir():
            raise DataError(
                f"There is no folder {root}. Check the path (data.path in a site file)."
            )
        if self.labels is not None:
            return _in_table(self, root, self.labels, task, scans_in)
        found = [
            (scan, code, hash_of_text(folder.name))
            for folder, code in class_folders(self, root, task)
            for scan in scans_in(folder)
        ]
        if not found:
            raise faults(
                root, ["it holds no scans; make one folder of them per class, or give data.labels"]
            )
        paths = tuple(scan for scan, _, _ in found)
        codes: NDArray[np.float64] = np.array([[code] for _, code, _ in found])
        places = tuple(str(path.relative_to(root)) for path in paths)
        if masks := [place for p, place in zip(paths, places, strict=True) if is_mask(p)]:
            raise faults(root, [f"{place} {IS_MASK}" for place in masks])
        return Scans(
            paths,
            places,
            checked_targets(task, codes),
            tuple(said for _, _, said in found),
            tuple(beside_classes(root)),
        )


def _in_table(
    source: ImageSource,
    root: Path,
    labels: Path,
    task: ImageTask,
    scans_in: Callable[[Path], list[Path]],
) -> Scans:
    file_column = source.local_name(FILE_COLUMN)
    local = [source.local_name(column.name) for column in task.target_columns]
    table = TableFile(path=labels).read([file_column, *local])
    absent = [name for name in (file_column, *local) if name not in table.columns]
    if absent:
        raise DataError(
            f"{table.origin} has no column {' and no column '.join(map(repr, absent))}; it has"
            f" {', '.join(table.header)}. Name them under [data.columns] as {FILE_COLUMN} and"
            f" {', '.join(column.name for column in task.target_columns)}."
        )
    names = table.columns[file_column]
    places = [names.texts[code] for code in names.codes.tolist()]
    problems = [
        f"{table.place(row)} names {place!r}, and there is no such file or folder"
        for row, place in enumerate(places)
        if not place or not (root / place).exists()
    ]
    read = [
        read_target([texts.texts[code] for code in texts.codes.tolist()], source, column)
        for column, texts in zip(
            task.target_columns, (table.columns[name] for name in local), strict=True
        )
    ]
    problems += [problem for target in read for problem in target.problems]
    if problems:
        raise faults(labels, problems)
    targets = checked_targets(task, np.stack([target.numbers for target in read], axis=1))
    paths = tuple(root / place for place in places)
    notes = [note for target in read for note in target.notes]
    # The folder of a scan is named, or one above it; beside them the table itself may lie.
    named = {path.absolute() for path in (*paths, labels)}
    others = [
        path
        for path in scans_in(root)
        if path != root and named.isdisjoint((path.absolute(), *path.absolute().parents))
    ]
    if others:
        some = ", ".join(str(path.relative_to(root)) for path in others[:SHOWN])
        more = ", ..." if len(others) > SHOWN else ""
        notes.append(f"{len(others)} scans are not in {labels.name}, and not read: {some}{more}")
    assert table.row_hashes is not None
    return Scans(paths, tuple(places), targets, tuple(table.row_hashes.tolist()), tuple(notes))
