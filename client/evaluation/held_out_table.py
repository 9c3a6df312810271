"""What a run leaves at its user's own site: held-out predictions, and of whom the models are.

Both are for the hospital alone and never sent. Each run has a folder with

* `predictions.csv`: for each arm, each patient's prediction by a model that never saw it;
* `trained_on.json`: salted hashes of the rows that the models were trained on, cut short, by which
  a table is known that holds some of them. No patient can be read from it.
"""

import csv
import hashlib
import io
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.local_dataset import LocalDataset
from erosion.common.errors import CheckpointError, SiteError
from erosion.common.formats.json_file import read_json, write_json
from erosion.common.settings.base import Settings
from erosion.common.support.files import make_private_folder, write_private
from erosion.common.support.text import harmless
from erosion.common.tasks.task import Floats

RUNS, PREDICTIONS, TRAINED_ON = "runs", "predictions.csv", "trained_on.json"
MOST_RUNS = 100  # that are kept; the oldest go first
HASH_BYTES = 5  # too few to tell what was hashed, and enough that rows seldom agree by chance


class TrainedOn(Settings):
    """`trained_on.json`."""

    format: Literal[1] = 1
    salt: str  # hexadecimal
    hashes: frozenset[str]

    def knows(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these rows (n, features) the models were trained on, or on their like: (n,)."""
        salt = bytes.fromhex(self.salt)
        return np.array([each in self.hashes for each in _hashes(rows, salt)], dtype=bool)


def run_folder_at(site_folder: Path, run: str) -> Path:
    """Where a run's are, below the folder that the site keeps its state in."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", run)[:80].strip(".-")
    return site_folder / RUNS / f"{readable}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def testbed_site(run_folder: Path, user: str) -> Path:
    """Where the user's site keeps its state in a run of `erosion testbed`."""
    within = run_folder.resolve()
    whole = within.parent.parent if within.parent.name == "users" else within
    return whole / "testbed" / user / "state" / user


def write_held_out(
    folder: Path,
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    folds: NDArray[np.int64] | None,
) -> None:
    """Write both files to the run's `folder`. Raises SiteError.

    `predictions`: of each arm, (n, k) or (cuts, n, k), one for each patient; `folds`: in which fold
    of each cut a patient was, (cuts, n), from 1; None: they are of a test part.
    """
    try:
        make_private_folder(folder)
        write_private(folder / PREDICTIONS, _table(dataset, predictions, folds))
        if (rows := dataset.training_rows) is not None:
            salt = secrets.token_bytes(16)
            trained = TrainedOn(salt=salt.hex(), hashes=frozenset(_hashes(rows, salt)))
            write_json(folder / TRAINED_ON, trained, mode=0o600)
        _prune(folder.parent)
    except OSError as problem:
        raise SiteError(
            f"The held-out predictions cannot be written to {folder}: {problem}. Name a folder"
            " that can be written to: compute.state in the site file."
        ) from None


def read_trained_on(folder: Path) -> TrainedOn | None:
    """Whom a run's models were trained on; None where it is not kept there.

    Raises CheckpointError.
    """
    path, remedy = folder / TRAINED_ON, "Delete it: predicting then does not say who is in it."
    try:
        return read_json(path, TrainedOn, version=1, error=CheckpointError, remedy=remedy)
    except FileNotFoundError:
        return None


def _table(
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    folds: NDArray[np.int64] | None,
) -> str:
    task, patients = dataset.study.task, dataset.measured_patients
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    outcome = task.outcome_columns()
    heading = [patients.word, "cut", "fold", "arm", *task.prediction_columns(), *outcome]
    writer.writerow(map(harmless, heading))
    outcomes = [task.outcome_cells(target) for target in patients.outcomes]
    for arm, found in predictions.items():
        for cut, of_cut in enumerate(found if found.ndim == 3 else found[None]):
            numbers = [0] * len(of_cut) if folds is None else folds[cut].tolist()
            in_cut = 0 if folds is None else cut + 1
            for label, fold, prediction, cells in zip(
                patients.labels, numbers, of_cut.tolist(), outcomes, strict=True
            ):
                row = [label, in_cut, fold, arm, *task.prediction_cells(prediction), *cells]
                writer.writerow(map(harmless, row))
    return text.getvalue()


def _hashes(rows: NDArray[np.float64], salt: bytes) -> Iterator[str]:
    """A short hash of each row's values; equal values have equal hashes everywhere."""
    stable = np.where(np.isnan(rows), np.nan, rows + 0.0).astype("<f8")
    for row in stable:
        yield hashlib.sha256(salt + row.tobytes()).digest()[:HASH_BYTES].hex()


def _prune(folder: Path) -> None:
    """Let go of the oldest runs, so that the disk does not fill."""
    runs = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in runs[:-MOST_RUNS]:
        shutil.rmtree(path, ignore_errors=True)
