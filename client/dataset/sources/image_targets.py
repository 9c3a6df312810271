"""The targets of images: values in arrays or tables, or the names of class folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.column_values import Fault, target_parser
from erosion.client.dataset.sources.data_source import DataSource
from erosion.common.errors import DataError
from erosion.common.settings.codes import canonical
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import CodedColumn, TargetColumn

SHOWN = 5  # examples of each problem


def target_names(task: ImageTask) -> str:
    """What the task's target columns are called, in words."""
    return " and ".join(column.name for column in task.target_columns)


def target_numbers(
    values: Sequence[str], source: DataSource, column: TargetColumn
) -> tuple[NDArray[np.float64], list[str]]:
    """One target column (n,) as numbers, and what is wrong with its values."""
    distinct, inverse = np.unique(np.array(values, dtype=str), return_inverse=True)
    parsed = _parsed(distinct.tolist(), source, column)
    faulty = [text for text, number in parsed.items() if isinstance(number, str)]
    problems = []
    if faulty:
        wrong = "of the study's classes" if isinstance(column, CodedColumn) else "usable"
        reason = "" if isinstance(column, CodedColumn) else f" ({parsed[faulty[0]]})"
        problems.append(
            f"{column.name} {', '.join(map(repr, faulty[:SHOWN]))} are not {wrong}{reason}; map"
            f" them under [data.values.{column.name}]"
        )
    known = np.array([np.nan if isinstance(n, str) else n for n in parsed.values()])
    return known[inverse], problems


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
    folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
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


def faults(path: Path, problems: Sequence[str]) -> DataError:
    """The error about a file or folder of images, with the first of its problems."""
    shown = list(problems[: 2 * SHOWN])
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more problems")
    return DataError(f"Data in {path}:\n" + "\n".join(f"  {problem}" for problem in shown))


def _parsed(
    texts: Sequence[str], source: DataSource, column: TargetColumn
) -> Mapping[str, float | str]:
    """The number that each text means, or what is wrong with it."""
    parse = target_parser(column)
    meant = source.values.get(column.name, {})
    found: dict[str, float | str] = {}
    for text in texts:
        value = parse(meant.get(canonical(text), text))
        if isinstance(value, Fault):
            found[text] = value.wrong
        else:
            found[text] = "missing" if np.isnan(value) else value
    return found
