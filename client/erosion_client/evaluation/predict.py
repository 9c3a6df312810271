"""Applies a study's result to new patients: class probabilities from a run folder's model."""

import csv
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from erosion_client.dataset.preprocessing import (
    notes_of_cut,
    notes_of_unlike,
    table_inputs,
)
from erosion_client.dataset.sources.data_source import TableSource
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.dataset.study_columns import columns_of
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
from erosion_common.tasks.inputs import TabularTask

GIVE_SITE = "what is written under [data] is of a site file; give one with --site SITE.toml"


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A run's model, ready to predict."""

    card: ModelCard
    task: TabularTask
    network: nn.Module
    predictor: Predictor
    trained_on: TrainedOn | None = None  # None: not found where it would be kept


@dataclass(frozen=True, slots=True)
class Applied:
    """A model's predictions for a table."""

    predictions: NDArray[np.float64]  # (n, k): the task's prediction per patient
    rows: NDArray[np.int64]  # (n,) of the table, from 0; a patient left out has none
    num_rows: int  # of the table to its last patient, including those left out
    key_name: str  # column that identifies patients; "" where the source names none
    keys: Mapping[int, str]  # their identifiers, by row
    notes: tuple[str, ...]  # what was noticed, imputed, left out, clipped or unlike in training
    note_of_trained: str = ""  # that some of them were trained on; "": none, or unknown


def predict(
    run_folder: Path,
    data_path: Path | None,
    output: Path | None,
    *,
    source: TableSource | None = None,
    hospital: str | None = None,
    arm: str | None = None,
    weights: Path | None = None,
    site_folder: Path | None = None,
) -> None:
    """Write one line per patient: its key, where one is known, and the prediction.

    The patients are in the table file `data_path`, or without one where `source` (of a site file)
    has them; their columns are named as in the study, or as `source` maps them. They need no target
    column. `output` is a CSV file, or None for the standard output. `hospital`: theirs, where a
    site file names it. `arm`: another than the one that the run ended with. `weights`: the folder
    with the file that the model started from, where parts of it are frozen. `site_folder`: where
    the user's site keeps its state, which identifies patients that the model was trained on; else
    that of a testbed's site is used. A patient who lacks a value that the study drops patients for
    gets empty cells. Notes on reading, imputing, dropping and clipping, on a model made for another
    hospital, and on patients unlike those in training go to the standard error. Raises
    CheckpointError for the run folder, ModelError for its model's code or weights, and DataError
    for the data.
    """
    saved = load_saved_model(run_folder, arm, weights, site_folder)
    patients = _source(data_path, source)
    own = patients.path if isinstance(patients, TableFile) else None
    if output and own and output.is_file() and own.is_file() and output.samefile(own):
        raise DataError(f"{output} is the patients' own file. Give --output another name.")
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
    text = _as_csv(saved.task, applied)
    if output is None:
        sys.stdout.write(text)
    else:
        _write(output, text)


def _source(data_path: Path | None, source: TableSource | None) -> TableSource:
    """Return the site's source; where a file is given, that file with the site's names and maps."""
    if data_path is None:
        if source is None:
            raise DataError("No patients are named. Give a table file, or a site file with --site.")
        return source
    if source is None:
        return TableFile(path=data_path)
    if isinstance(source, TableFile):
        return source.model_copy(update={"path": data_path})
    shared = {key: getattr(source, key) for key in TableSource.model_fields}
    return TableFile(path=data_path, **shared)


def apply_model(saved: SavedModel, source: TableSource) -> Applied:
    """Predict for every patient of a table. Raises DataError for the table."""
    table = source.read(columns_of(saved.task, source, with_target=False))
    checked = check_table(table, saved.task, source, with_target=False)
    card, scaling = saved.card, saved.card.scaling
    inputs = table_inputs(saved.task, checked.rows, scaling, card.missing_means, card.cut)
    notes = checked.notes
    if scaling:
        notes += tuple(notes_of_unlike(saved.task, checked.rows, scaling))
        notes += tuple(notes_of_cut(saved.task, checked.rows, scaling, card.cut))
    rows = np.arange(table.num_rows) if table.positions is None else table.positions
    keys: dict[int, str] = {}
    if source.patient is not None:
        key = table.columns[source.patient]
        keys = {row: key.texts[k] for row, k in zip(rows.tolist(), key.codes.tolist(), strict=True)}
    return Applied(
        _predictions(saved, inputs),
        rows[checked.places],
        int(rows[-1]) + 1,
        source.patient or "",
        keys,
        notes,
        _note_of_trained(saved, checked.rows),
    )


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
    if not isinstance(card.task, TabularTask):
        raise CheckpointError(
            f"{run_folder} holds a model of images; predicting reads tables only."
        )
    network = saved_network(card, predictor, run_folder, weights)
    places = filter(None, (site_folder, testbed_site(run_folder, card.user)))
    known = (read_trained_on(run_folder_at(place, card.run)) for place in places)
    return SavedModel(card, card.task, network, predictor, next(filter(None, known), None))


def _predictions(saved: SavedModel, inputs: Tensor) -> NDArray[np.float64]:
    if not len(inputs):
        return np.empty((0, saved.task.num_outputs))
    predicted = predicted_by(saved.task, saved.network, saved.predictor, inputs)
    predictions: NDArray[np.float64] = predicted.numpy()
    if not np.isfinite(predictions).all():
        raise CheckpointError("The model's training diverged: it has no prediction to give.")
    return predictions


def _as_csv(task: TabularTask, applied: Applied) -> str:
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
    try:
        if output.exists() and not output.is_file():  # /dev/stdout, a pipe: not to be replaced
            output.write_text(text, encoding="utf-8")
        else:
            write_atomically(output, text)
    except OSError as problem:
        raise DataError(f"The predictions cannot be written to {output}: {problem}.") from None
