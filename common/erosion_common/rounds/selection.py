"""Trials that choose an arm's settings, and the folds of a cross-fitted evaluation.

Both are studies in which a fold of the user's patients is held out: a trial has one arm with a
candidate's settings; for each fold every arm's run is repeated, and its models predict the patients
that they never saw. The final models are trained on all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Annotated, Any

from pydantic import Field

from erosion_common.errors import HopelessError
from erosion_common.protocol.messages import Metrics
from erosion_common.settings.base import MOST_ITEMS
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study

# The user's metrics by arm and round, from round 1, of the parameters that each round started from.
Curve = Sequence[Metrics | None]
Curves = Mapping[str, Curve]

# Runs a trial's only arm for at most that number of rounds.
RunTrial = Callable[[Study, int], Curve]


_Losses = Annotated[tuple[float, ...], Field(max_length=MOST_ITEMS)]


@dataclass(frozen=True, slots=True)
class SelectedSettings:
    """What an arm is run with."""

    settings: Mapping[str, Any]  # in place of the arm's own
    rounds: Annotated[int, Field(ge=1)]
    loss: float | None  # the task's, mean over the patients held out; None: nothing was left open
    tried: Annotated[tuple[_Losses, ...], Field(exclude=True, max_length=MOST_ITEMS)] = ()
    # by candidate and number of rounds, from 1; infinite where the user was away; in no file


def choose(study: Study, arm: str, run_trial: RunTrial) -> SelectedSettings:
    """Runs an arm's trials and chooses. Raises HopelessError if no trial could be measured."""
    if study.selection is None:
        return SelectedSettings({}, study.rounds, None)
    loss, tried, all_rounds = study.task.verdict_metric, [], study.arms[arm].ends_by_itself
    for folds in trials(study, arm):
        # One round more than may be chosen: the last one shows what the one before it led to.
        curves = [run_trial(trial, study.rounds + 1) for trial in folds]
        tried.append(tuple(_mean_loss(curves, n, loss) for n in range(1, study.rounds + 1)))
    best, candidate, number = min(
        (loss, candidate, number)
        for candidate, losses in enumerate(tried)
        for number, loss in enumerate(losses, start=1)
        if number == study.rounds or not all_rounds
    )
    if not isfinite(best):
        raise HopelessError(
            f"The settings of {arm} cannot be chosen: the user's site was away in every trial,"
            " or all training diverged",
            remedy="See the coordinator's log, or leave out [selection].",
        )
    return SelectedSettings(candidates(study, arm)[candidate], number, best, tuple(tried))


def chosen(study: Study, choices: Mapping[str, SelectedSettings]) -> Study:
    """Returns the study with the choices in place of what it leaves open."""
    if study.selection is None:
        return study
    arms = {arm: study.settings_of(arm, changed=choice.settings) for arm, choice in choices.items()}
    return Study.model_validate({**study.model_dump(), "arms": arms, "selection": None})


def trials(study: Study, arm: str) -> Iterator[list[Study]]:
    """Yields for each candidate the study of each fold."""
    assert study.selection is not None
    for settings in candidates(study, arm):
        yield [trial(study, arm, settings, fold) for fold in study.selection.trial_folds()]


def trial(study: Study, arm: str, settings: Mapping[str, Any], fold: Fold) -> Study:
    """Returns the study of one fold, of that arm alone with a candidate's settings."""
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
    """Returns what is tried in place of the arm's own settings."""
    return (study.selection and study.selection.candidates.get(arm)) or ({},)


def folds_of(study: Study) -> list[Fold]:
    """Returns what is held out in turn, one cut after another; nothing if there is a test part."""
    count = study.evaluation.folds
    if count is None:
        return []
    return [
        Fold(number=number, of=count, cut=cut)
        for cut in range(1, study.evaluation.repeats + 1)
        for number in range(count)
    ]


def folds_ahead(study: Study) -> Sequence[Fold]:
    """Returns what is held out in turn: in trials, or for the figures."""
    return folds_of(study) if study.selection is None else study.selection.trial_folds()


def fold_studies(study: Study) -> list[Study]:
    """Returns the study without each fold's patients."""
    return [study.model_copy(update={"fold": fold}) for fold in folds_of(study)]


def studies_ahead(study: Study) -> list[Study]:
    """Returns the studies that are run before the study itself, in turn: its trials, or folds."""
    if study.selection is None:
        return fold_studies(study)
    return [part for arm in study.arms for folds in trials(study, arm) for part in folds]


def mean_curves(
    folds: Sequence[Curves], rounds: Mapping[str, int], repeats: int
) -> dict[str, list[Metrics | None]]:
    """Returns the mean over all held-out patients, by arm and round; None where a fold has none.

    Each is held out once in each of `repeats` cuts.
    """
    return {
        arm: [
            _mean([_after(curves[arm], number) for curves in folds], repeats)
            for number in range(count)
        ]
        for arm, count in rounds.items()
    }


def _after(curve: Curve, number: int) -> Metrics | None:
    """Returns the metrics after `number` rounds; a rule that stopped earlier left them there."""
    return curve[min(number, len(curve) - 1)] if curve else None


def _mean(measured: Curve, repeats: int) -> Metrics | None:
    found = [metrics for metrics in measured if metrics is not None]
    if not found or len(found) < len(measured):
        return None
    patients = sum(metrics.num_patients for metrics in found) // repeats
    values: dict[str, float | None] = {}
    for name in found[0].model_dump(exclude={"num_patients"}):
        known = [(v, m.num_patients) for m in found if (v := m.get(name)) is not None]
        total = sum(count for _, count in known)
        complete = len(known) == len(found)
        values[name] = sum(v * n for v, n in known) / total if complete else None
    return Metrics.model_validate({"num_patients": patients, **values})


def _mean_loss(folds: Sequence[Curve], number: int, loss: str) -> float:
    """Returns the mean over all patients held out; infinity if a fold has none."""
    total, patients = 0.0, 0
    for metrics in (_after(curve, number) for curve in folds):
        if metrics is None:
            return inf
        total += metrics[loss] * metrics.num_patients
        patients += metrics.num_patients
    return total / patients
