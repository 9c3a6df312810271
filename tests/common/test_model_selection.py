"""Choosing settings and rounds by trials."""

from collections.abc import Sequence
from typing import Any

import pytest

from erosion_common.algorithms.weight_erosion import WeightErosion
from erosion_common.errors import RunError
from erosion_common.protocol.messages import Metrics
from erosion_common.rounds.selection import choose, chosen
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from tests.support.refusals import refused
from tests.support.small_study import make_study


def study(**selection: Any) -> Study:
    return make_study(
        arms={"weight_erosion": {"size_penalty": 0.5}, "local": {}},
        selection={
            "folds": 2,
            "candidates": {"weight_erosion": [{"distance_penalty": p} for p in (0.1, 0.2)]},
            **selection,
        },
    )


def curve(*losses: float | None, patients: int = 10) -> list[Metrics | None]:
    """A trial whose user had these log losses after 0, 1, 2, ... rounds."""

    def metrics(loss: float) -> Metrics:
        return Metrics.model_validate({"num_patients": patients, "auroc": None, "log_loss": loss})

    return [metrics(loss) if loss is not None else None for loss in losses]


class Trials:
    """Answers each trial with what was prepared for it, and remembers the trials."""

    def __init__(self, *prepared: list[Metrics | None]) -> None:
        self.prepared, self.seen = iter(prepared), list[Study]()

    def __call__(self, trial: Study, num_rounds: int) -> Sequence[Metrics | None]:
        assert num_rounds == trial.rounds + 1
        self.seen.append(trial)
        return next(self.prepared)


def erosion_of(study: Study) -> WeightErosion:
    arm = study.arms["weight_erosion"]
    assert isinstance(arm, WeightErosion)
    return arm


def test_the_candidate_and_the_round_with_the_least_mean_loss_are_chosen() -> None:
    trials = Trials(
        curve(9.0, 0.5, 0.4, 0.6, patients=10),  # distance_penalty = 0.1, the first fold
        curve(9.0, 0.5, 0.7, 0.6, patients=30),
        curve(9.0, 0.6, 0.6, 0.2, patients=10),  # distance_penalty = 0.2
        curve(9.0, 0.6, 0.3, 0.6, patients=30),
    )
    choice = choose(study(), "weight_erosion", trials)
    # After two rounds: (10 * 0.4 + 30 * 0.7) / 40 and (10 * 0.6 + 30 * 0.3) / 40, the least of all.
    assert choice.tried[0] == pytest.approx((0.5, 0.625, 0.6))
    assert choice.tried[1] == pytest.approx((0.6, 0.375, 0.5))
    assert (choice.settings, choice.rounds) == ({"distance_penalty": 0.2}, 2)
    assert choice.loss == pytest.approx(0.375)


def test_each_trial_holds_out_one_fold_and_has_a_candidates_settings() -> None:
    trials = Trials(*[curve(1.0, 1.0, 1.0, 1.0)] * 4)
    choose(study(), "weight_erosion", trials)
    folds = [Fold(number=0, of=2), Fold(number=1, of=2)]
    assert [trial.fold for trial in trials.seen] == folds * 2
    penalties = [erosion_of(trial).distance_penalty for trial in trials.seen]
    assert penalties == [0.1, 0.1, 0.2, 0.2]
    for trial in trials.seen:
        assert list(trial.arms) == ["weight_erosion"]
        assert erosion_of(trial).size_penalty == 0.5
        assert trial.selection is None


def test_validation_holds_out_the_first_fold_alone() -> None:
    trials = Trials(curve(1.0, 0.3, 0.2, 0.4))
    choice = choose(study(method="validation", folds=4), "local", trials)
    assert [trial.fold for trial in trials.seen] == [Fold(number=0, of=4)]
    assert (choice.settings, choice.rounds) == ({}, 2)


def test_of_equals_the_first_candidate_and_the_fewest_rounds_are_taken() -> None:
    choice = choose(study(), "weight_erosion", Trials(*[curve(1.0, 0.5, 0.5, 0.5)] * 4))
    assert (choice.settings, choice.rounds) == ({"distance_penalty": 0.1}, 1)


def test_an_exact_regression_has_all_rounds_to_end_in() -> None:
    open_ = make_study(arms={"newton": {}}, selection={"folds": 2})
    trials = Trials(*[curve(1.0, 0.4, 0.5, 0.5)] * 2)
    assert choose(open_, "newton", trials).rounds == open_.rounds


def test_a_round_that_was_not_measured_in_every_fold_cannot_be_chosen() -> None:
    trials = Trials(curve(1.0, 0.1, 0.5, None), curve(1.0, None, 0.5, 0.1))
    assert choose(study(), "local", trials).rounds == 2
    with refused(RunError, "local"):
        choose(study(), "local", Trials(curve(), curve()))


def test_the_chosen_study_leaves_nothing_open() -> None:
    before = study()
    trials = Trials(*[curve(1.0, 0.5, 0.5, 0.5)] * 6)
    after = chosen(before, {arm: choose(before, arm, trials) for arm in before.arms})
    assert after.selection is None
    assert erosion_of(after).distance_penalty == 0.1
    assert after.arms["local"] == before.arms["local"]
    assert (after.rounds, after.evaluation) == (before.rounds, before.evaluation)
