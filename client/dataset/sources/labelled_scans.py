"""Finds a folder's scans and their targets: class folders, or a table of labels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.sources.data_source import ImageSource
from erosion.client.dataset.sources.image_targets import class_folders, faults, target_numbers
from erosion.client.dataset.sources.table_file import TableFile
from erosion.common.errors import DataError
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import Targets

FILE_COLUMN = "file"  # of a table of labels; [data.columns] can call it otherwise


@dataclass(frozen=True, slots=True)
class Scans:
    """What is to be read as one image each: a file, or the folder of a series."""

    paths: tuple[Path, ...]
    places: tuple[str, ...]  # (n,) how people find each, relative to the source's folder
    targets: Targets  # (n, ...) as the task has them


def find_scans(
    source: ImageSource,
    root: Path,
    labels: Path | None,
    task: ImageTask,
    scans_in: Callable[[Path], list[Path]],
) -> Scans:
    """The scans below `root` with their targets; raises DataError with every problem.

    Without a table of labels, `root` holds one folder per class, and `scans_in` lists the scans
    below each. With one, its column `file` names each scan, relative to `root`.
    """
    if not root.is_dir():
        raise DataError(f"There is no folder {root}. Check data.path in the site file.")
    if labels is not None:
        return _in_table(source, root, labels, task)
    found = [
        (scan, code)
        for folder, code in class_folders(source, root, task)
        for scan in scans_in(folder)
    ]
    if not found:
        raise faults(
            root, ["it holds no scans; make one folder of them per class, or give data.labels"]
        )
    paths = tuple(scan for scan, _ in found)
    codes: NDArray[np.float64] = np.array([[code] for _, code in found])
    return Scans(paths, tuple(str(p.relative_to(root)) for p in paths), task.targets(codes))


def _in_table(source: ImageSource, root: Path, labels: Path, task: ImageTask) -> Scans:
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
    numbers = []
    for column, name in zip(task.target_columns, local, strict=True):
        texts = table.columns[name]
        values, unknown = target_numbers(
            [texts.texts[code] for code in texts.codes.tolist()], source, column
        )
        numbers.append(values)
        problems += unknown
    if problems:
        raise faults(labels, problems)
    targets = task.targets(np.stack(numbers, axis=1))
    return Scans(tuple(root / place for place in places), tuple(places), targets)
