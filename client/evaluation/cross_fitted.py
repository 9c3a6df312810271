"""The user's predictions of its own patients, fold by fold, kept until every patient has one.

They stay at the site: what leaves are figures over all of the patients.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from erosion.client.dataset.local_dataset import LocalDataset
from erosion.client.training.kept_state import ACROSS_FOLDS, KeptState, Moment, StateKey
from erosion.common.errors import Refusal
from erosion.common.learning.local_work import Tensors
from erosion.common.rounds.selection import folds_of
from erosion.common.study.sections import Fold
from erosion.common.study.study import Study
from erosion.common.tasks.task import Floats

BASE_RATE = "(base rate)"  # in place of an arm, whose name has no brackets
BETTER = "(better reference)"


class FoldPredictions:
    """What is kept of the folds of one run; `dataset` is always of the data as they are now."""

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
    ) -> None:
        """Keep each arm's and reference's predictions (n, k) of the fold's patients.

        `better`: which of the references predicts better, as the fold's training part says.
        Raises Refusal for a fold that the study does not have.
        """
        moment = Moment(self._number_of(fold))
        before = self._kept.before(self._place, moment)
        after = {**before, **_tensors(fold, dataset, predictions)}
        if better is not None:
            after[_name(fold, BETTER)] = torch.tensor(self._candidates.index(better))
        self._kept.keep(self._place, moment, before=before, after=after)

    def better(self) -> list[str]:
        """Which of the references predicts better, fold by fold; empty where none is chosen."""
        kept = self._kept.before(self._place, Moment(len(self._folds) + 1))
        names = [_name(fold, BETTER) for fold in self._folds]
        return [self._candidates[int(kept[name])] for name in names if name in kept]

    def gathered(self, arms: Sequence[str], dataset: LocalDataset) -> dict[str, Floats]:
        """Each arm's predictions of every patient by models that never saw it, (cuts, n, k).

        Among them, as BASE_RATE, those by the base rate of the patients that these models saw.
        Raises Refusal where a fold's are missing or of other patients.
        """
        kept = self._kept.before(self._place, Moment(len(self._folds) + 1))
        every: dict[str, list[Floats]] = {arm: [] for arm in (*arms, BASE_RATE)}
        for fold in self._folds:
            if _name(fold, "patients") not in kept:
                raise Refusal(
                    "The predictions of some folds are not here any more, because this site has"
                    " lost what it keeps (compute.state in the site file). Start the run anew."
                )
            if not torch.equal(kept[_name(fold, "of")], _fingerprint(dataset)):
                raise Refusal(
                    "This site's data have changed since the run began, so the folds' predictions"
                    " are of other patients. Start the run anew."
                )
            patients = kept[_name(fold, "patients")].numpy()
            parts = {arm: kept[_name(fold, arm)].numpy() for arm in arms}
            others = np.delete(dataset.outcomes, patients, axis=0)
            parts[BASE_RATE] = np.tile(dataset.study.task.base_rate(others), (len(patients), 1))
            for arm, part in parts.items():
                cuts = every[arm]
                if fold.number == 0:
                    cuts.append(np.full((len(dataset.outcomes), part.shape[1]), np.nan))
                cuts[-1][patients] = part
        return {arm: np.stack(cuts) for arm, cuts in every.items()}

    def places(self, dataset: LocalDataset) -> NDArray[np.int64]:
        """In which fold of each cut every patient was, (cuts, n), from 1; after `gathered`."""
        kept = self._kept.before(self._place, Moment(len(self._folds) + 1))
        cuts: list[NDArray[np.int64]] = []
        for fold in self._folds:
            if fold.number == 0:
                cuts.append(np.zeros(len(dataset.outcomes), dtype=np.int64))
            cuts[-1][kept[_name(fold, "patients")].numpy()] = fold.number + 1
        return np.stack(cuts)

    def _number_of(self, fold: Fold) -> int:
        """The fold's place among all, from 1."""
        if fold not in self._folds:
            raise Refusal(
                f"The request is of fold {fold.number} of {fold.of} in cut {fold.cut}, which is"
                " none of the study's (evaluation.folds, evaluation.repeats)."
            )
        return self._folds.index(fold) + 1


def _tensors(fold: Fold, dataset: LocalDataset, predictions: Mapping[str, Floats]) -> Tensors:
    arms = {_name(fold, arm): torch.from_numpy(p.copy()) for arm, p in predictions.items()}
    return arms | {
        _name(fold, "patients"): torch.from_numpy(np.unique(dataset.test_patients)),
        _name(fold, "of"): _fingerprint(dataset),
    }


def _name(fold: Fold, what: str) -> str:
    return f"{fold.cut}/{fold.number}/{what}"


def _fingerprint(dataset: LocalDataset) -> torch.Tensor:
    digest = hashlib.sha256(dataset.fingerprint.encode()).digest()
    return torch.tensor(list(digest), dtype=torch.uint8)
