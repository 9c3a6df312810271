"""The choices that a study may leave open: an arm's settings, and the round to stop after."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from erosion.common.settings.base import Settings
from erosion.common.settings.names import Name


class Fold(Settings):
    """One of several equal parts of the user's patients, class by class.

    Without a `cut` they are parts of the training patients, to choose settings by; with one, of all
    patients, to be predicted by models that never saw them. Each cut is another one.
    """

    number: int = Field(ge=0, lt=100)  # from 0
    of: int = Field(ge=2, le=100)
    cut: int | None = Field(default=None, ge=1, le=20)


def fewest_held_out(folds: Sequence[Fold], num_patients: int) -> int:
    """The patients of the smallest of these folds; see `split_patients`."""
    return min(len(range(fold.number, num_patients, fold.of)) for fold in folds)


def folds_key(folds: Sequence[Fold]) -> str:
    """Where the study file says how many they are."""
    return "selection.folds" if folds[0].cut is None else "evaluation.folds"


class Selection(Settings):
    """How each arm's settings and number of rounds are chosen, inside the user's training part.

    Every candidate runs once for each fold, without the fold's patients; chosen are the candidate
    and the number of rounds with the least mean log loss for them. Then the arm runs once more,
    with all training patients. The test part is not touched.
    """

    method: Literal["cross_validation", "validation"] = "cross_validation"
    folds: int = Field(default=5, ge=2, le=100)  # "validation" holds out the first of them alone
    candidates: dict[Name, tuple[dict[str, Any], ...]] = Field(default_factory=dict)
    # arm -> settings to try, each in place of some of the arm's own; without any, only the number
    # of rounds is chosen

    def trial_folds(self) -> tuple[Fold, ...]:
        """The folds that are held out in turn."""
        count = self.folds if self.method == "cross_validation" else 1
        return tuple(Fold(number=number, of=self.folds) for number in range(count))
