"""The user's held-out predictions: collected over the folds, and written for its own people.

They stay at the hospital: only figures over all of the patients leave. Each run has a folder with

* `predictions.csv`: for each arm, each patient's prediction by a model that never saw it;
* `trained_on.json`: salted, truncated hashes of the rows that the models were trained on, which
identify a table that holds some of them. No patient can be read from it.
"""

import csv
import hashlib
import io
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.training.kept_state import ACROSS_FOLDS, KeptState, Moment, StateKey
from erosion_common.errors import CheckpointError, NotReady, Refusal
from erosion_common.formats.json_file import read_json, write_json
from erosion_common.learning.local_work import Tensors
from erosion_common.rounds.selection import folds_of
from erosion_common.settings.base import Settings
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from erosion_common.support.files import make_private_folder, write_private, written_at
from erosion_common.support.text import file_name_of, harmless
from erosion_common.tasks.task import Floats

BASE_RATE = "(base rate)"  # in place of an arm: no arm's name has brackets
BETTER = "(better reference)"
PERMUTED, EFFECTS = "(permuted losses)", "(effects)"


class FoldPredictions:
    """What is kept of the folds of one run; `dataset` is always of the current data."""

    def __init__(self, kept: KeptState, study: Study, run: str) -> None:
        """`study`: with a fold or without, which makes no difference: all folds are together."""
        self._kept, self._folds = kept, folds_of(study)
        whole = study.whole.digest
        self._candidates = () if study.comparison is None else study.comparison[1]
        self._place = StateKey(whole, ACROSS_FOLDS, run, whole)

    def keep(
        self,
        fold: Fold,
        dataset: LocalDataset,
        predictions: Mapping[str, Floats],
        better: str | None = None,
        explained: "Explained | None" = None,
    ) -> None:
        """Keep each arm's and reference's predictions (n, k) of the fold's patients.

        `better`: which of the references predicts better, according to the fold's training part.
        Raises Refusal for a fold that the study does not have.
        """
        moment = Moment(self._number_of(fold))
        before = self._kept.before(self._place, moment)
        after = {**before, **_tensors(fold, dataset, predictions)}
        for name, values in (explained or Explained()).parts():
            after[_name(fold, name)] = torch.from_numpy(values.copy())
        if better is not None:
            after[_name(fold, BETTER)] = torch.tensor(self._candidates.index(better))
        self._kept.keep(self._place, moment, before=before, after=after)

    def better(self) -> list[str]:
        """Return which reference predicts better, fold by fold; empty where none is chosen."""
        kept = self._all_kept()
        names = [_name(fold, BETTER) for fold in self._folds]
        return [self._candidates[int(kept[name])] for name in names if name in kept]

    def gathered(self, arms: Sequence[str], dataset: LocalDataset) -> dict[str, Floats]:
        """Return each arm's held-out predictions of every patient, (cuts, n, k).

        They include, as BASE_RATE, those by the base rate of the training patients. Raises Refusal
        where a fold's are missing or of other patients.
        """
        kept, base_rate = self._all_kept(), dataset.study.task.base_rate
        for fold in self._folds:
            if _name(fold, "patients") not in kept:
                raise Refusal(
                    "The predictions of some folds are not here any more, because this site has"
                    " lost what it keeps (compute.state in the site file)",
                    remedy="Start a new run.",
                )
            if not torch.equal(kept[_name(fold, "of")], dataset.fingerprint):
                raise Refusal(
                    "This site's data have changed since the run began, so the folds' predictions"
                    " are of other patients",
                    remedy="Start a new run.",
                )
            patients = kept[_name(fold, "patients")]
            others = np.delete(dataset.outcomes, patients.numpy(), axis=0)
            rates = torch.from_numpy(np.tile(base_rate(others), (len(patients), 1)))
            kept = {**kept, _name(fold, BASE_RATE): rates}
        names, num_patients = (*arms, BASE_RATE), len(dataset.outcomes)
        return {name: self._of_patients(kept, name, num_patients) for name in names}

    def explained(self, dataset: LocalDataset) -> "Explained":
        """Return the same of all folds: losses of every patient, effects of each cut's folds."""
        kept = self._all_kept()
        losses: Floats | None = None
        if all(_name(fold, PERMUTED) in kept for fold in self._folds if fold.number == 0):
            losses = self._of_patients(kept, PERMUTED, len(dataset.outcomes))
        effects: list[list[Floats]] = []
        for fold in self._folds:
            if fold.number == 0:
                effects.append([])
            if (found := kept.get(_name(fold, EFFECTS))) is not None:
                effects[-1].append(found.numpy())
        has_effects = all(len(cut) > 1 for cut in effects)
        return Explained(losses, None, [np.stack(cut) for cut in effects] if has_effects else ())

    def places(self, dataset: LocalDataset) -> NDArray[np.int64]:
        """Return every patient's fold in each cut, (cuts, n), from 1; after `gathered`."""
        kept = self._all_kept()
        cuts: list[NDArray[np.int64]] = []
        for fold in self._folds:
            if fold.number == 0:
                cuts.append(np.zeros(len(dataset.outcomes), dtype=np.int64))
            cuts[-1][kept[_name(fold, "patients")].numpy()] = fold.number + 1
        return np.stack(cuts)

    def _all_kept(self) -> Tensors:
        return self._kept.before(self._place, Moment(len(self._folds) + 1))

    def _of_patients(self, kept: Tensors, what: str, num_patients: int) -> Floats:
        """Return what is kept of the folds' patients, together: (cuts, n, columns)."""
        cuts: list[Floats] = []
        for fold in self._folds:
            part = kept.get(_name(fold, what))
            if fold.number == 0:
                width = 0 if part is None else part.shape[1]
                cuts.append(np.full((num_patients, width), np.nan))
            if part is not None:
                cuts[-1][kept[_name(fold, "patients")].numpy()] = part.numpy()
        return np.stack(cuts)

    def _number_of(self, fold: Fold) -> int:
        if fold not in self._folds:
            raise Refusal(
                f"The request is of fold {fold.number} of {fold.of} in cut {fold.cut}, which is"
                " none of the study's (evaluation.folds, evaluation.repeats)."
            )
        return self._folds.index(fold) + 1


@dataclass(frozen=True, slots=True)
class Explained:
    """What the shown arm's model uses, as measured where it was evaluated."""

    permuted_losses: Floats | None = None  # (n, features) of a part, (cuts, n, features) of folds
    effects: Floats | None = None  # (q,) of a linear model
    effects_in_folds: Sequence[Floats] = ()  # (folds, q) of each cut

    def parts(self) -> Iterator[tuple[str, Floats]]:
        """Yield what a fold keeps."""
        for name, values in ((PERMUTED, self.permuted_losses), (EFFECTS, self.effects)):
            if values is not None:
                yield name, values


def _tensors(fold: Fold, dataset: LocalDataset, predictions: Mapping[str, Floats]) -> Tensors:
    arms = {_name(fold, arm): torch.from_numpy(p.copy()) for arm, p in predictions.items()}
    return arms | {
        _name(fold, "patients"): torch.from_numpy(np.unique(dataset.test_patients)),
        _name(fold, "of"): dataset.fingerprint,
    }


def _name(fold: Fold, what: str) -> str:
    return f"{fold.cut}/{fold.number}/{what}"


RUNS, PREDICTIONS, TRAINED_ON = "runs", "predictions.csv", "trained_on.json"
MOST_RUNS = 100  # that are kept; the oldest are removed first
HASH_BYTES = 5  # too few to reveal what was hashed, and enough that rows seldom agree by chance


class TrainedOn(Settings):
    """`trained_on.json`."""

    format: Literal[1] = 1
    salt: str  # hexadecimal
    hashes: frozenset[str]

    def knows(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which rows (n, features) the models were trained on, or on equal ones: (n,)."""
        salt = bytes.fromhex(self.salt)
        return np.array([each in self.hashes for each in _hashes(rows, salt)], dtype=bool)


def run_folder_at(site_folder: Path, run: str) -> Path:
    """Return a run's folder, below the folder that the site keeps its state in."""
    return site_folder / RUNS / file_name_of(run)


def testbed_site(run_folder: Path, user: str) -> Path:
    """Return where the user's site keeps its state in a run of `erosion testbed`."""
    within = run_folder.resolve()
    whole = within.parent.parent if within.parent.name == "users" else within
    return whole / "testbed" / user / "state" / user


def write_held_out(
    folder: Path,
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    folds: NDArray[np.int64] | None,
) -> None:
    """Write both files to the run's `folder`. Raises NotReady.

    `predictions`: of each arm, (n, k) or (cuts, n, k), one per patient; `folds`: each patient's
    fold in each cut, (cuts, n), from 1; None: they are of a test part.
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
        raise NotReady(
            f"the held-out predictions cannot be written ({problem.strerror})",
            where=str(folder),
            remedy="Make room, or make the folder writable (compute.state); the site then"
            " continues.",
        ) from None


def read_trained_on(folder: Path) -> TrainedOn | None:
    """Read the hashes of a run's training patients; None where they are not kept there.

    Raises CheckpointError.
    """
    path, remedy = folder / TRAINED_ON, "Delete it; predicting then does not say who is in it."
    try:
        return read_json(path, TrainedOn, version=1, error=CheckpointError, remedy=remedy)
    except FileNotFoundError:
        return None


def _table(
    dataset: LocalDataset, predictions: Mapping[str, Floats], folds: NDArray[np.int64] | None
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
    """Yield a short hash of each row's values; equal values have equal hashes everywhere."""
    stable = np.where(np.isnan(rows), np.nan, rows + 0.0).astype("<f8")
    for row in stable:
        yield hashlib.sha256(salt + row.tobytes()).digest()[:HASH_BYTES].hex()


def _prune(folder: Path) -> None:
    runs = sorted(folder.iterdir(), key=written_at)
    for path in runs[:-MOST_RUNS]:
        shutil.rmtree(path, ignore_errors=True)
