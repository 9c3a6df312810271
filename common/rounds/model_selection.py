"""Chooses an arm's settings and number of rounds by trials on the user's training patients.

A trial is a study like any other: its arm has the candidate's settings, and a fold of the user's
training patients takes the place of the test part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from erosion.common.errors import HopelessError
from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.cross_fitting import folds_of
from erosion.common.study.sections import Fold
from erosion.common.study.study import Study

# Runs a trial's only arm for so many rounds, fewer where its rule stops it: the user's metrics of
# the parameters that each round started from.
RunTrial = Callable[[Study, int], Sequence[Metrics | None]]


@dataclass(frozen=True, slots=True)
class SelectedSettings:
    """What an arm is run with."""

    settings: Mapping[str, Any]  # in place of the arm's own
    rounds: int
    loss: float | None  # the task's, mean over the patients held out; None: nothing was left open
    tried: tuple[tuple[float, ...], ...] = ()
    # that loss by candidate and number of rounds, from 1; infinite where the user was away


def choose(study: Study, arm: str, run_trial: RunTrial) -> SelectedSettings:
    """Run an arm's trials and choose. Raises HopelessError where no trial could be measured."""
    if study.selection is None:
        return SelectedSettings({}, study.rounds, None)
    tried = []
    loss = study.task.verdict_metric
    for folds in trials(study, arm):
        # One round more than may be chosen: the last one shows what the one before it led to.
        curves = [run_trial(trial, study.rounds + 1) for trial in folds]
        tried.append(
            tuple(_mean_loss(curves, number, loss) for number in range(1, study.rounds + 1))
        )
    best, candidate, number = min(
        (loss, candidate, number)
        for candidate, losses in enumerate(tried)
        for number, loss in enumerate(losses, start=1)
    )
    if not isfinite(best):
        raise HopelessError(
            f"The settings of {arm} cannot be chosen: the user's site was away in every trial, or"
            " all training diverged. See the coordinator's log, or leave out [selection]."
        )
    return SelectedSettings(candidates(study, arm)[candidate], number, best, tuple(tried))


def chosen(study: Study, choices: Mapping[str, SelectedSettings]) -> Study:
    """The study in which nothing is left open any more."""
    if study.selection is None:
        return study
    arms = {arm: study.settings_of(arm, changed=choice.settings) for arm, choice in choices.items()}
    return Study.model_validate({**study.model_dump(), "arms": arms, "selection": None})


def folds_ahead(study: Study) -> Sequence[Fold]:
    """What is held out in turn: in trials, or for the figures; nothing where the study has none."""
    return folds_of(study) if study.selection is None else study.selection.trial_folds()


def trials(study: Study, arm: str) -> Iterator[list[Study]]:
    """For each candidate, the study of each fold."""
    assert study.selection is not None
    for settings in candidates(study, arm):
        yield [trial(study, arm, settings, fold) for fold in study.selection.trial_folds()]


def trial(study: Study, arm: str, settings: Mapping[str, Any], fold: Fold) -> Study:
    """The study of one fold, of that arm alone with a candidate's settings."""
    return Study.model_validate(
        {
            **study.model_dump(),
            "arms": {arm: study.settings_of(arm, changed=settings)},
            "evaluation": {**study.evaluation.model_dump(), "compare": None},
            "selection": None,
            "fold": fold,
        }
    )


def candidates(study: Study, arm: str) -> Sequence[Mapping[str, Any]]:
    """What is tried in place of the arm's own settings."""
    return (study.selection and study.selection.candidates.get(arm)) or ({},)


def _mean_loss(folds: Sequence[Sequence[Metrics | None]], number: int, loss: str) -> float:
    """Mean `loss` after so many rounds over all patients held out; infinite where one lacks."""
    measured = [_metrics_after(curve, number) for curve in folds]
    total, patients = 0.0, 0
    for metrics in measured:
        if metrics is None:
            return inf
        total += metrics[loss] * metrics.num_patients
        patients += metrics.num_patients
    return total / patients


def _metrics_after(curve: Sequence[Metrics | None], number: int) -> Metrics | None:
    """Of the parameters after so many rounds; a rule that stopped earlier left them there."""
    return curve[min(number, len(curve) - 1)] if curve else None
