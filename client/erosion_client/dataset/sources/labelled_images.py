"""Images with their labels: class folders or a table of labels, and 8-bit pixels of a size."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import AfterValidator, Field
from torch.nn.functional import interpolate

from erosion_client.dataset.column_values import (
    PLAIN_MARKS,
    Fault,
    NumberMarks,
    column_parser,
    found_decimal,
    groups_by_point,
    toml_key,
)
from erosion_client.dataset.single_column import to_be_asked_about
from erosion_client.dataset.sources.data_source import (
    DataSource,
    ImageSource,
    LabelledImages,
    OnDisk,
    entries_of,
    is_there,
    lacks_package,
    not_there,
)
from erosion_client.dataset.sources.file_content import reason_of, suffix_of
from erosion_client.dataset.sources.table_file import SUFFIXES, TableFile
from erosion_client.dataset.task_checks import checked_targets
from erosion_client.dataset.text_table import hash_of_text, key_of
from erosion_common.errors import DataError
from erosion_common.settings.names import canonical
from erosion_common.support.text import printable, some
from erosion_common.tasks.inputs import ImageTask
from erosion_common.tasks.task import CodedColumn, TargetColumn, Targets

Resize = Literal["refuse", "stretch", "pad"]  # "pad": keep the proportions, add black margins
MAX_DECODED_BYTES = 8 * 2**30  # a small archive can unpack to any size
NOT_SQUARE = 0.01  # relative, of the sides of a pixel


class UnusableImageError(Exception):
    """What is wrong with one image, and the remedy; `is_damaged`: nothing in it can be seen."""

    def __init__(self, wrong: str, *, is_damaged: bool = False) -> None:
        super().__init__(wrong)
        self.wrong, self.is_damaged = wrong, is_damaged


def cannot_be_read(problem: Exception, what: str = "") -> UnusableImageError:
    """Return the error for a file that a library cannot read."""
    wrong = f"{what}cannot be read ({reason_of(problem)}); export it again"
    return UnusableImageError(wrong, is_damaged=True)


def _checked_window(value: tuple[float, float]) -> tuple[float, float]:
    if value[1] <= 0:
        raise ValueError("write it as [centre, width], with a width of more than 0")
    return value


Window = Annotated[tuple[float, float], AfterValidator(_checked_window)]  # (centre, width)


def windowed(values: NDArray[np.float64], window: Window) -> NDArray[np.uint8]:
    """Map measured values to grey levels: black at the window's lower end, white at the upper."""
    centre, width = window
    with np.errstate(over="ignore"):  # in a window of width 0 everything is black or white
        grey = (values - (centre - width / 2)) / width * 255
    return np.clip(np.round(grey), 0, 255).astype(np.uint8)


def are_square(down: float, across: float) -> bool:
    """Return whether a pixel's sides are equal, or not both known."""
    known = min(down, across) > 0
    return not known or abs(down - across) <= NOT_SQUARE * max(down, across)


def distorted(sides: str) -> str:
    """Return the problem with pixels of unequal sides."""
    return (
        f"has pixels that are not square ({sides}), and would be shown distorted; resample it, or"
        ' write resize = "stretch" under [data]'
    )


def check_size(size: tuple[int, int], task: ImageTask) -> None:
    """Raise UnusableImageError for an image of another (width, height) than the study wants."""
    if task.is_of_volumes:
        raise UnusableImageError(
            "is an image, and the study wants volumes: give NIfTI, or DICOM series as volumes"
        )
    _, height, width = task.shape
    if size != (width, height):
        raise UnusableImageError(
            f"has {size[0]} x {size[1]} pixels; the study wants {width} x {height}: resize it, or"
            ' write resize = "stretch" or "pad" under [data]'
        )


def fitted(image: Image.Image, task: ImageTask, resize: Resize) -> NDArray[np.uint8]:
    """Return an image as the study wants it: (c, h, w). Raises UnusableImageError."""
    if resize == "refuse" or task.is_of_volumes:
        check_size(image.size, task)
    channels, height, width = task.shape
    if image.size != (width, height):
        image = _resized(image, (width, height), keep_proportions=resize == "pad")
    found: NDArray[np.uint8] = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return found[None] if channels == 1 else np.moveaxis(found, 2, 0)


def _resized(image: Image.Image, size: tuple[int, int], *, keep_proportions: bool) -> Image.Image:
    if not keep_proportions:
        return image.resize(size, Image.Resampling.BILINEAR)
    scale = min(size[0] / image.size[0], size[1] / image.size[1])
    inner = (max(round(image.size[0] * scale), 1), max(round(image.size[1] * scale), 1))
    canvas = Image.new(image.mode, size)
    place = ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2)
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), place)
    return canvas


def fitted_volume(volume: NDArray[np.uint8], task: ImageTask, resize: Resize) -> NDArray[np.uint8]:
    """Return a volume (d, h, w) as the study wants it: (1, d, h, w). Raises UnusableImageError."""
    wanted = task.shape[1:]
    if len(wanted) != 3:
        raise UnusableImageError(
            "is a volume, and the study wants images: name a plane of it, or let task.shape be"
            " [1, depth, height, width]"
        )
    if volume.shape == wanted:
        return volume[None]
    if resize == "refuse":
        raise UnusableImageError(
            f"has {_times(volume.shape)} voxels; the study wants {_times(wanted)} (depth, height,"
            ' width): resample it, or write resize = "stretch" or "pad" under [data]'
        )
    inner = wanted
    if resize == "pad":
        scale = min(w / size for w, size in zip(wanted, volume.shape, strict=True))
        inner = tuple(
            min(max(round(size * scale), 1), w)
            for w, size in zip(wanted, volume.shape, strict=True)
        )
    values = torch.from_numpy(np.ascontiguousarray(volume)).float()[None, None]
    scaled = interpolate(values, size=inner, mode="trilinear", align_corners=False)
    canvas = np.zeros(wanted, dtype=np.uint8)
    z, y, x = ((w - size) // 2 for w, size in zip(wanted, inner, strict=True))
    depth, height, width = inner
    grey = scaled[0, 0].round().clamp(0, 255).to(torch.uint8).numpy()
    canvas[z : z + depth, y : y + height, x : x + width] = grey
    return canvas[None]


def _times(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths))


def check_decoded(path: Path, num_bytes: int) -> None:
    """Refuse images that would fill the memory. Raises DataError."""
    if num_bytes > MAX_DECODED_BYTES:
        raise DataError(
            f"{path} unpacks to {num_bytes / 2**30:.1f} GiB, more than the"
            f" {MAX_DECODED_BYTES // 2**30} GiB that are read",
            remedy="Give fewer or smaller images.",
        )


SHOWN = 5  # examples of each problem
FILE_COLUMN = "file"  # of a table of labels; [data.columns] can rename it
MASK = re.compile(
    r"((^|[_\-. )])(d?seg|aseg|segmentations?|labels?|labelmap|ground_?truth)|mask)[_\-. ]?\d*$",
    re.I,
)  # endings of files without an image
MISSING = "missing"  # the problem of an unknown target


def target_names(task: ImageTask) -> str:
    """Return the task's target columns, in words."""
    return " and ".join(column.name for column in task.target_columns)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """One target of every image, as numbers."""

    numbers: NDArray[np.float64]  # (n,) NaN where it is faulty
    problems: tuple[str, ...]
    notes: tuple[str, ...]  # possible other meanings


def read_target(values: Sequence[str], source: DataSource, column: TargetColumn) -> ReadTarget:
    """Read one target column from its texts (n,)."""
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
        notes.append(f"{column.name} is written 1,5 (detected)")
    known = {text: number for text, number in parsed.items() if not isinstance(number, str)}
    if is_number and (codes := to_be_asked_about(known)):
        notes.append(
            f"{column.name}: read as measurements, though far from all others:"
            f" {', '.join(map(repr, codes))}; leave images out for which they mean “not known”"
        )
    numbers = np.array([known.get(text, np.nan) for text in texts])
    return ReadTarget(numbers[inverse], tuple(problems), tuple(notes))


def _parsed(
    texts: Sequence[str], source: DataSource, column: TargetColumn, marks: NumberMarks = PLAIN_MARKS
) -> Mapping[str, float | str]:
    """Return each text's number, or what is wrong with it."""
    parse = column_parser(column, marks)
    meant = source.values.get(column.name, {})
    found: dict[str, float | str] = {}
    for text in texts:
        value = parse(meant.get(canonical(text), text))
        if isinstance(value, Fault):
            found[text] = value.wrong
        else:
            found[text] = MISSING if np.isnan(value) else value
    return found


class FaultyImagesError(DataError):
    """The problems of a file or folder of images; the message has the first ones."""

    def __init__(self, message: str, problems: Sequence[str]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def faults(path: Path, problems: Sequence[str]) -> FaultyImagesError:
    """Return the error for a file or folder of images, with the first of its problems."""
    shown = list(problems[: 2 * SHOWN])
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more problems")
    message = f"Data in {path}:\n" + "\n".join(
        f"  {printable(problem, at_most=len(problem))}" for problem in shown
    )
    return FaultyImagesError(message, problems)


def not_read(root: Path, names: Sequence[str]) -> Iterator[str]:
    """Yield a note of files below `root` that may be intended as images and are not read."""
    if names:
        files_are = ("files", "are") if len(names) > 1 else ("file", "is")
        yield f"{len(names)} {files_are[0]} in {root} {files_are[1]} not read: {some(names)}"


@dataclass(frozen=True, slots=True)
class Scans:
    """What is read as one image each: a file, or the folder of a series."""

    root: Path
    paths: tuple[Path, ...]
    places: tuple[str, ...]  # (n,) people's name for each, relative to the root
    targets: Targets  # (n, ...) from the task
    said: tuple[int, ...]  # (n,) hashes of the labels of each: the class, or a row of the table
    notes: tuple[str, ...] = ()


def new_scans(
    source: ImageSource, path: Path, task: ImageTask, scans_in: Callable[[Path], list[Path]]
) -> Scans:
    """Return scans without targets: below a folder, in a table's column `file`, or one file.

    A table names them relative to its folder. Raises DataError.
    """
    if suffix_of(path) in SUFFIXES and path.is_file():
        return _scans_by_table(source, path.parent, path, task, scans_in, ())
    root, paths = (path, scans_in(path)) if path.is_dir() else (path.parent, [path])
    if not paths:
        raise faults(root, ["it holds no images"])
    places = _places(root, paths)
    return Scans(root, tuple(paths), places, np.zeros(len(paths)), (0,) * len(paths))


def _places(root: Path, paths: Sequence[Path]) -> tuple[str, ...]:
    """Return people's names for scans. Raises DataError for what is none by its name."""
    places = tuple(str(path.relative_to(root)) for path in paths)
    masks = [
        f"{place} is a mask or a segmentation by its name, and no image; move it to another folder"
        for path, place in zip(paths, places, strict=True)
        if MASK.search(path.name.split(".")[0])
    ]
    if masks:
        raise faults(root, masks)
    return places


def scans_by_class(
    source: DataSource, root: Path, task: ImageTask, scans_in: Callable[[Path], list[Path]]
) -> Scans:
    """Return the scans that `scans_in` lists in each class's folder. Raises DataError."""
    column = task.target_columns[0]
    if len(task.target_columns) > 1 or not isinstance(column, CodedColumn):
        problem = (
            f"folders of images hold a class each, and the study predicts {target_names(task)};"
            " give an .npz file, or a table of labels, with those"
        )
        raise faults(root, [problem])
    shown = [entry for entry in entries_of(root) if not entry.name.startswith(".")]
    folders = [entry for entry in shown if entry.is_dir()]
    codes = _parsed([folder.name for folder in folders], source, column)
    problems = [
        f"folder {folder.name!r} is not of the study's classes; rename it, or map it under"
        f" [data.values.{column.name}]"
        for folder in folders
        if isinstance(codes[folder.name], str)
    ]
    if problems:
        raise faults(root, problems)
    found = [(scan, folder.name) for folder in folders for scan in scans_in(folder)]
    if not found:
        problem = "it holds no images; make one folder of them per class"
        raise faults(root, [problem])
    paths = tuple(scan for scan, _ in found)
    places = _places(root, paths)
    return Scans(
        root,
        paths,
        places,
        checked_targets(task, np.array([[codes[name]] for _, name in found], dtype=np.float64)),
        tuple(hash_of_text(name) for _, name in found),
        tuple(not_read(root, [entry.name for entry in shown if not entry.is_dir()])),
    )


class ScanFolder(OnDisk, ImageSource):
    """A folder of scans: one folder of them per class, or a table of their labels."""

    path: Path = Field(description="A folder.")
    labels: Path | None = Field(
        default=None,
        description="A table with the column `file` and the study's targets. Left out: one "
        "folder per class.",
    )
    resize: Resize = Field(
        default="refuse",
        description='What becomes of an image of another size than the study\'s: `"refuse"`: the '
        'data are not accepted. `"stretch"`: it is brought to that size. `"pad"`: so, too, with '
        "its proportions kept, and black around it.",
    )

    def require(self, package: str, extra: str) -> None:
        """Raise DataError, with the command that installs it, where a package is missing."""
        if find_spec(package) is None:
            raise lacks_package(self.describe(), package, extra)

    def scans(
        self, task: ImageTask, scans_in: Callable[[Path], list[Path]], *, with_target: bool
    ) -> Scans:
        """Return the scans with their targets. Raises DataError with every problem.

        Without a table of labels, `path` holds one folder per class, and `scans_in` lists the scans
        below each. With one, its column `file` names each scan, relative to `path`.
        """
        root = self.path
        if not is_there(root) or (with_target and not root.is_dir()):
            raise not_there("folder", root)
        if self.labels is not None:
            wanted = task.target_columns if with_target else ()
            return _scans_by_table(self, root, self.labels, task, scans_in, wanted)
        if not with_target:
            return new_scans(self, root, task, scans_in)
        return scans_by_class(self, root, task, scans_in)


def _scans_by_table(
    source: ImageSource,
    root: Path,
    labels: Path,
    task: ImageTask,
    scans_in: Callable[[Path], list[Path]],
    wanted: Sequence[TargetColumn],
) -> Scans:
    """Return the scans that a table names, relative to the root, with the `wanted` targets.

    Raises DataError.
    """
    file_column = source.local_name(FILE_COLUMN)
    local = [source.local_name(column.name) for column in wanted]
    table = TableFile(path=labels).read([file_column, *local])
    absent = [name for name in (file_column, *local) if name not in table.columns]
    if absent:
        raise DataError(
            f"{table.origin} has no column {' and no column '.join(map(repr, absent))}; it has"
            f" {', '.join(table.header)}",
            remedy="Name them under [data.columns] as"
            f" {' and '.join([FILE_COLUMN, *(column.name for column in wanted)])}.",
        )
    names = table.columns[file_column]
    places = [names.texts[code] for code in names.codes.tolist()]
    problems = [
        f"{table.place(row)} names {place!r}, and there is no such file or folder"
        for row, place in enumerate(places)
        if not place or not (root / place).exists()
    ]
    paths = tuple(root / place for place in places)
    twice = [str(path) for path, times in Counter(paths).items() if times > 1]
    if twice and wanted:
        problems.append(f"{table.row_word}s name {some(twice)} more than once; keep one of each")
    read = [
        read_target([texts.texts[code] for code in texts.codes.tolist()], source, column)
        for column, texts in zip(wanted, (table.columns[name] for name in local), strict=True)
    ]
    problems += [problem for target in read for problem in target.problems]
    if problems:
        raise faults(labels, problems)
    targets: Targets = np.zeros(len(places))
    if read:
        targets = checked_targets(task, np.stack([target.numbers for target in read], axis=1))
    notes = [note for target in read for note in target.notes]
    # The folder of a scan is named, or one above it; the table itself may lie next to them.
    named = {path.absolute() for path in (*paths, labels)}
    others = [
        path
        for path in scans_in(root)
        if path != root and named.isdisjoint((path.absolute(), *path.absolute().parents))
    ]
    if others:
        named_others = some(str(path.relative_to(root)) for path in others)
        notes.append(f"{len(others)} scans are not in {labels.name}, and not read: {named_others}")
    said = tuple(table.row_hashes.tolist())
    return Scans(root, paths, tuple(places), targets, said, tuple(notes))


ReadOne = Callable[[Path, str, int], tuple[NDArray[np.uint8], int]]
# from a scan's path, its index, and the hash of its labels: the image and its row hash


def read_each(
    source: ImageSource,
    scans: Scans,
    task: ImageTask,
    read_one: ReadOne,
    problems_of_all: Callable[[], Sequence[str]] = tuple,
) -> LabelledImages:
    """Read every scan; damaged ones can be left out. Raises DataError with all problems."""
    num = len(scans.paths)
    check_decoded(scans.root, num * int(np.prod(task.shape)))
    images = np.zeros((num, *task.shape), dtype=np.uint8)
    hashes = np.zeros(num, dtype=np.uint64)
    problems: list[str] = []
    left_out: dict[int, str] = {}
    for index, (path, place) in enumerate(zip(scans.paths, scans.places, strict=True)):
        try:
            if not (path.is_file() or path.is_dir()):  # a pipe never ends, a link may be broken
                raise UnusableImageError("is no file that can be read; remove it", is_damaged=True)
            images[index], hashes[index] = read_one(path, place, scans.said[index])
        except UnusableImageError as problem:
            if problem.is_damaged and source.unreadable == "leave out":
                left_out[index] = f"{place} {problem.wrong}"
            else:
                problems.append(f"{place} {problem.wrong}")
    problems += problems_of_all()
    if problems or len(left_out) == num:
        raise faults(scans.root, problems or [*left_out.values()])
    kept = np.setdiff1d(np.arange(num), [*left_out])
    notes = scans.notes
    if left_out:
        notes += (
            f'{len(left_out)} files cannot be read and are left out (unreadable = "leave out"'
            f" under [data]): {some([*left_out.values()], mark='; ')}",
        )
    return LabelledImages(
        images[kept],
        scans.targets[kept],
        tuple(scans.places[index] for index in kept.tolist()),
        notes=notes,
        row_hashes=hashes[kept],
        left_out=tuple(left_out.values()),
    )


def _checked_pattern(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as problem:
        raise ValueError(f"it is no regular expression: {problem}") from None
    if groups != 1:
        raise ValueError('put one group ( ) around the patient, for example "^(.+?)_"')
    return value


PatientPattern = Annotated[str, AfterValidator(_checked_pattern)]


def patients_in_names(
    path: Path, pattern: str | None, places: Sequence[str]
) -> NDArray[np.int64] | None:
    """Return a patient number for each file's name. Raises DataError where a name has none."""
    if pattern is None:
        return None
    names = [Path(place).name for place in places]
    found = [re.search(pattern, name) for name in names]
    keys = ["" if match is None else key_of(match.group(1) or "") for match in found]
    unnamed = [name for name, key in zip(names, keys, strict=True) if not key]
    if unnamed:
        problem = (
            f"{len(unnamed)} names of files do not fit patient_pattern = {pattern!r}:"
            f" {', '.join(unnamed[:SHOWN])}; correct it"
        )
        raise faults(path, [problem])
    return np.unique(keys, return_inverse=True)[1]
