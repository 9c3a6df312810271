"""Applies a study's result to new patients, in a table or as images."""

import csv
import io
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from erosion_client.dataset.load import image_source, table_source
from erosion_client.dataset.preprocessing import (
    image_inputs,
    notes_of_cut,
    notes_of_unlike,
    table_inputs,
)
from erosion_client.dataset.sources.data_source import (
    DataSource,
    ImageSource,
    TableSource,
    unchanged,
)
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.dataset.study_columns import codes_of, columns_of
from erosion_client.dataset.table_contract import check_table
from erosion_client.evaluation.held_out import (
    TrainedOn,
    read_trained_on,
    run_folder_at,
    testbed_site,
)
from erosion_common.errors import CheckpointError, DataError
from erosion_common.formats.model_card import ModelCard, read_model, saved_network
from erosion_common.learning.finished import Predictor, predicted_by
from erosion_common.support.files import write_atomically
from erosion_common.support.text import harmless
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.task import Task

PIXELS_AT_ONCE = 2**26  # values of images, as floats
GIVE_SITE = "what is written under [data] is of a site file; give one with --site SITE.toml"


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A run's model, ready to predict."""

    card: ModelCard
    network: nn.Module
    predictor: Predictor
    trained_on: TrainedOn | None = None  # None: not found where it would be kept

    @property
    def task(self) -> TabularTask:
        """The task of a model of tables. Raises CheckpointError for one of images."""
        if isinstance(self.card.task, TabularTask):
            return self.card.task
        raise CheckpointError(
            f"The model of {self.card.study} is of images, which are no columns of a frame",
            remedy="Use `erosion predict`.",
        )


@dataclass(frozen=True, slots=True)
class Applied:
    """A model's predictions for a table, or for images, which are rows likewise."""

    predictions: NDArray[np.float64]  # (n, k): the task's prediction per row
    rows: NDArray[np.int64]  # (n,) of the table, from 0; a patient left out has none
    num_rows: int  # of the table to its last patient, including those left out
    key_name: str  # column that identifies patients, or "image"; "" where the source names none
    keys: Mapping[int, str]  # their identifiers, by row
    notes: tuple[str, ...]  # what was noticed, imputed, left out, clipped or unlike in training
    note_of_trained: str = ""  # that some of them were trained on; "": none, or unknown


def predict(
    run_folder: Path,
    data_path: Path | None,
    output: Path | None,
    *,
    source: DataSource | None = None,
    hospital: str | None = None,
    arm: str | None = None,
    weights: Path | None = None,
    site_folder: Path | None = None,
) -> None:
    """Write one line per patient, or image: its key, where one is known, and the prediction.

    The patients are in the table file `data_path`, or without one where `source` (of a site file)
    has them; their columns are named as in the study, or as `source` maps them. They need no target
    column. Of images `data_path` is a folder, an .npz, one image, or a table that names them, and
    `source` says how they are read. `output` is a CSV file, or None for the standard output.
    `hospital`: theirs, where a site file names it. `arm`: another than the one that the run ended
    with. `weights`: the folder with the file that the model started from, where parts of it are
    frozen. `site_folder`: where the user's site keeps its state, which identifies patients that the
    model was trained on; else that of a testbed's site is used. A patient who lacks a value that
    the study drops patients for gets empty cells. Notes on reading, imputing, dropping and
    clipping, on a model made for another hospital, and on patients unlike those in training go to
    the standard error. Raises CheckpointError for the run folder, ModelError for its model's code
    or weights, DataError for the data, and OSError for the output.
    """
    if data_path is None and source is None:
        raise DataError(
            "No patients are named",
            remedy="Give a table file, a folder of images, or a site file with --site.",
        )
    saved = load_saved_model(run_folder, arm, weights, site_folder)
    find = _table if isinstance(saved.card.task, TabularTask) else _images
    patients = find(data_path, source)
    own: Path | None = getattr(patients, "path", None)
    if output and own and output.is_file() and own.is_file() and output.samefile(own):
        raise DataError(f"{output} is the patients' own file", remedy="Give --output another name.")
    try:
        applied = apply_model(saved, patients)
    except DataError as problem:
        if source is not None or not (data_path and data_path.exists()):
            raise
        raise DataError(f"{problem}\n  ({GIVE_SITE})") from None
    if hospital not in (None, saved.card.user):
        print(
            f"Noted: this model was made for {saved.card.user}; its predictions for {hospital}'s"
            " patients were not measured",
            file=sys.stderr,
        )
    for note in (applied.note_of_trained, *applied.notes):
        if note:
            print(f"Noted: {note}", file=sys.stderr)
    if source is None and any("[data" in note for note in applied.notes):
        print(f"Noted: {GIVE_SITE}", file=sys.stderr)
    text = _as_csv(saved.card.task, applied)
    if output is None:
        sys.stdout.write(text)
    else:
        _write(output, text)


def _table(data_path: Path | None, source: DataSource | None) -> TableSource:
    """Return the site's source; where a file is given, that file with the site's names and maps."""
    if source is None:
        assert data_path is not None
        return TableFile(path=data_path)
    source = table_source(source)
    if data_path is None:
        return source
    if isinstance(source, TableFile):
        return source.model_copy(update={"path": data_path})
    shared = {key: getattr(source, key) for key in TableSource.model_fields}
    return TableFile(path=data_path, **shared)


def _images(data_path: Path | None, source: DataSource | None) -> ImageSource:
    """Return the site's source; where a path is given, its images, read as the site reads its."""
    if source is None:
        assert data_path is not None
        return ImageFiles(path=data_path)
    source = image_source(source)
    if data_path is None:
        return source
    if "path" not in (keys := type(source).model_fields):
        raise DataError(
            f"{source.describe()} is no file or folder", remedy=f"Leave {data_path} out."
        )
    others = {"path": data_path, "labels": None}
    return source.model_copy(update={key: others[key] for key in others if key in keys})


def apply_model(saved: SavedModel, source: TableSource | ImageSource) -> Applied:
    """Predict for every patient of a table, or every image. Raises DataError for the data."""
    if isinstance(source, ImageSource):
        return _applied_to_images(saved, source)
    wanted = columns_of(saved.task, source, with_target=False)
    table = source.read(wanted, codes_of(saved.task, source))
    checked = check_table(table, saved.task, source, with_target=False)
    card, scaling = saved.card, saved.card.scaling
    inputs = table_inputs(saved.task, checked.rows, scaling, card.missing_means, card.cut)
    notes = checked.notes
    if scaling:
        notes += tuple(notes_of_unlike(saved.task, checked.rows, scaling))
        notes += tuple(notes_of_cut(saved.task, checked.rows, scaling, card.cut))
    rows, keys = table.positions, dict[int, str]()
    if source.patient is not None:
        key = table.columns[source.patient]
        keys = {row: key.texts[k] for row, k in zip(rows.tolist(), key.codes.tolist(), strict=True)}
    return Applied(
        _predictions(saved, [inputs]),
        rows[checked.places],
        int(rows[-1]) + 1,
        source.patient or "",
        keys,
        notes,
        _note_of_trained(saved, checked.rows),
    )


def _applied_to_images(saved: SavedModel, source: ImageSource) -> Applied:
    task = saved.card.task
    assert isinstance(task, ImageTask)
    with unchanged(source, source.revision):
        found = source.read(task, with_target=False)
    num = len(found.images)
    at_once = max(1, PIXELS_AT_ONCE // prod(task.shape))
    parts = (found.images[start : start + at_once] for start in range(0, num, at_once))
    predictions = _predictions(saved, (image_inputs(task, part) for part in parts))
    keys = dict(enumerate(found.places))
    return Applied(predictions, np.arange(num), num, "image", keys, found.notes)


def _note_of_trained(saved: SavedModel, rows: NDArray[np.float64]) -> str:
    known = 0 if saved.trained_on is None else int(saved.trained_on.knows(rows).sum())
    if not known:
        return ""
    return (
        f"the model was trained on {known} of these {len(rows)} rows, or on rows with the same"
        " values: how well it predicts them says little about new patients (the run's held-out"
        " predictions do)"
    )


def load_saved_model(
    run_folder: Path,
    arm: str | None = None,
    weights: Path | None = None,
    site_folder: Path | None = None,
) -> SavedModel:
    """Load the model of `arm`, or of the run's last arm; `site_folder` as of `predict`.

    Raises CheckpointError, and ModelError where its code or its weights are missing.
    """
    card, predictor = read_model(run_folder, arm)
    network = saved_network(card, predictor, run_folder, weights)
    places = filter(None, (site_folder, testbed_site(run_folder, card.user)))
    known = (read_trained_on(run_folder_at(place, card.run)) for place in places)
    return SavedModel(card, network, predictor, next(filter(None, known), None))


def _predictions(saved: SavedModel, parts: Iterable[Tensor]) -> NDArray[np.float64]:
    task = saved.card.task
    found = [
        predicted_by(task, saved.network, saved.predictor, part).numpy()
        for part in parts
        if len(part)
    ]
    predictions = np.concatenate([np.empty((0, task.num_outputs)), *found])
    if not np.isfinite(predictions).all():
        raise CheckpointError("The model's training diverged: it has no prediction to give.")
    return predictions


def _as_csv(task: Task, applied: Applied) -> str:
    """Return one line per row of the file, so that columns can be pasted next to the patients."""
    columns = task.prediction_columns()
    by_row = dict(zip(applied.rows.tolist(), applied.predictions.tolist(), strict=True))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heading = [applied.key_name, *columns] if applied.key_name else columns
    writer.writerow(map(harmless, heading))
    for row in range(applied.num_rows):
        values = by_row.get(row)
        cells = [""] * len(columns) if values is None else task.prediction_cells(values)
        line = [applied.keys.get(row, ""), *cells] if applied.key_name else cells
        writer.writerow(map(harmless, line))
    return text.getvalue()


def _write(output: Path, text: str) -> None:
    if output.exists() and not output.is_file():  # /dev/stdout, a pipe: not to be replaced
        output.write_text(text, encoding="utf-8")
    else:
        write_atomically(output, text)
