"""The targets of images: values in arrays or tables, or the names of class folders."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.column_values import (
    PLAIN_MARKS,
    Fault,
    NumberMarks,
    target_parser,
    toml_key,
)
from erosion.client.dataset.decimal_mark import found_decimal, groups_by_point
from erosion.client.dataset.isolated_values import to_be_asked_about
from erosion.client.dataset.sources.data_source import DataSource, entries_of
from erosion.common.errors import DataError
from erosion.common.settings.names import canonical
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import CodedColumn, TargetColumn

SHOWN = 5  # examples of each problem
MASK = re.compile(
    r"((^|[_\-. )])(d?seg|aseg|segmentations?|labels?|labelmap|ground_?truth)|mask)[_\-. ]?\d*$",
    re.I,
)  # how names of files end that hold no image
IS_MASK = "is a mask or a segmentation by its name, and no image; move it to another folder"
MISSING = "missing"  # what is wrong with a target that nobody knows


def target_names(task: ImageTask) -> str:
    """What the task's target columns are called, in words."""
    return " and ".join(column.name for column in task.target_columns)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """One target of every image, as numbers."""

    numbers: NDArray[np.float64]  # (n,) NaN where it is faulty
    problems: tuple[str, ...]
    notes: tuple[str, ...]  # what may be meant otherwise


def read_target(values: Sequence[str], source: DataSource, column: TargetColumn) -> ReadTarget:
    """One target column from its texts (n,)."""
    distinct, inverse = np.unique(np.array(values, dtype=str), return_inverse=True)
    texts: list[str] = distinct.tolist()
    is_number = not isinstance(column, CodedColumn)
    marks = NumberMarks(found_decimal(texts) if is_number else ".")
    parsed = _parsed(texts, source, column, marks)
    missing = [text for text, number in parsed.items() if number == MISSING]
    faulty = [text for text, n in parsed.items() if isinstance(n, str) and text not in missing]
    problems: list[str] = []
    notes: list[str] = []
    if missing:
        times = int(np.isin(inverse, [texts.index(text) for text in missing]).sum())
        problems.append(f"{column.name} is missing for {times} images; leave them out")
    if faulty:
        wrong = "usable" if is_number else "of the study's classes"
        reason = f" ({parsed[faulty[0]]})" if is_number else ""
        problems.append(
            f"{column.name} {', '.join(map(repr, faulty[:SHOWN]))} are not {wrong}{reason}; map"
            f" them under [data.values.{toml_key(column.name)}]"
        )
    if is_number and groups_by_point(texts):
        problems.append(
            f"{column.name}: such as 980 and 1.250 stand side by side, so the point seems to group"
            " thousands; write the numbers without it"
        )
    if marks.decimal == ",":
        notes.append(f"{column.name} is written 1,5 (found out)")
    known = {text: number for text, number in parsed.items() if not isinstance(number, str)}
    if is_number and (codes := to_be_asked_about(known)):
        notes.append(
            f"{column.name} {', '.join(map(repr, codes))} is taken for a measurement, and lies far"
            " from all others; if it stands for “not known”, leave those images out"
        )
    numbers = np.array([known.get(text, np.nan) for text in texts])
    return ReadTarget(numbers[inverse], tuple(problems), tuple(notes))


def class_folders(source: DataSource, root: Path, task: ImageTask) -> list[tuple[Path, float]]:
    """The folders in `root` and the class that each holds; raises DataError with every problem."""
    column = task.target_columns[0]
    if len(task.target_columns) > 1 or not isinstance(column, CodedColumn):
        raise faults(
            root,
            [
                "folders of images hold a class each, and the study predicts"
                f" {target_names(task)}; give an .npz file, or a table of labels, with those"
            ],
        )
    folders = [f for f in entries_of(root) if f.is_dir() and not f.name.startswith(".")]
    codes = _parsed([folder.name for folder in folders], source, column)
    problems = [
        f"folder {folder.name!r} is not of the study's classes; rename it, or map it under"
        f" [data.values.{column.name}]"
        for folder in folders
        if isinstance(codes[folder.name], str)
    ]
    if problems:
        raise faults(root, problems)
    return [(folder, float(codes[folder.name])) for folder in folders]


class FaultyImagesError(DataError):
    """The problems of a file or folder of images, of which the message has the first."""

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def is_mask(file: Path) -> bool:
    """Whether a file's name says that it holds a mask or a segmentation, and no image."""
    return MASK.search(file.name.split(".")[0]) is not None


def beside_classes(root: Path) -> Iterator[str]:
    """A note of files that lie beside the folders of the classes, and are not read."""
    files = [f.name for f in entries_of(root) if not f.is_dir() and not f.name.startswith(".")]
    yield from not_read(root, files)


def not_read(root: Path, names: Sequence[str]) -> Iterator[str]:
    """A note of files below `root` that may be meant and are not read."""
    if names:
        some = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        many = "1 file" if len(names) == 1 else f"{len(names)} files"
        yield f"{many} in {root} {'is' if len(names) == 1 else 'are'} not read: {some}"


def faults(path: Path, problems: Sequence[str]) -> FaultyImagesError:
    """The error about a file or folder of images, with the first of its problems."""
    shown = list(problems[: 2 * SHOWN])
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more problems")
    message = f"Data in {path}:\n" + "\n".join(f"  {problem}" for problem in shown)
    return FaultyImagesError(message, problems)


def _parsed(
    texts: Sequence[str],
    source: DataSource,
    column: TargetColumn,
    marks: NumberMarks = PLAIN_MARKS,
) -> Mapping[str, float | str]:
    """The number that each text means, or what is wrong with it."""
    parse = target_parser(column, marks)
    meant = source.values.get(column.name, {})
    found: dict[str, float | str] = {}
    for text in texts:
        value = parse(meant.get(canonical(text), text))
        if isinstance(value, Fault):
            found[text] = value.wrong
        else:
            found[text] = MISSING if np.isnan(value) else value
    return found
