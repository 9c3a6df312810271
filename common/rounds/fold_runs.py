"""The runs of a cross-fitted evaluation: every arm anew without each fold's patients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.arm_run import ArmRun
from erosion.common.rounds.cross_fitting import fold_studies, mean_curves
from erosion.common.rounds.records import RoundRecord, RunState
from erosion.common.rounds.surroundings import Surroundings
from erosion.common.study.study import Study

CROSS_FITTING = "cross-fitting"  # what the folds are shown as


@dataclass(frozen=True, slots=True)
class FoldRuns:
    """Each fold is a whole run; one that was interrupted begins anew."""

    surroundings: Surroundings
    rounds: Mapping[str, int]  # by arm
    first_of: Callable[[Study, str], ArmRun]  # an arm of a fold's study, before its first round
    predict: Callable[[Study, Mapping[str, RunState]], object]
    # has the user's site predict a fold's patients by every arm's final state

    def curves(self, study: Study) -> dict[str, list[Metrics | None]]:
        """Run every fold that is not finished yet; the metrics by arm and round.

        Empty where the study sets a test part aside.
        """
        where, every = self.surroundings, fold_studies(study)
        if not every:
            return {}
        finished = list(where.keeper.finished_folds())
        each = sum(self.rounds.values())
        what = f"{len(every)} folds, each a run of {len(self.rounds)} arms"
        where.listener.arm_started(CROSS_FITTING, len(every) * each, is_trial=True, title=what)
        for number, fold in enumerate(every[len(finished) :], start=len(finished)):
            played = number * each
            finals, curves = {}, {}
            for arm in self.rounds:
                finals[arm], curves[arm] = self._played(fold, arm, played)
                played += self.rounds[arm]
            self.predict(fold, finals)
            where.keeper.keep_fold(curves)
            finished.append(curves)
        return mean_curves(finished, self.rounds)

    def _played(self, fold: Study, arm: str, played: int) -> tuple[RunState, list[Metrics | None]]:
        """An arm without a fold's patients; `played` rounds of other folds and arms came before."""
        where = self.surroundings
        curve: list[Metrics | None] = []

        def note(record: RoundRecord) -> None:
            curve.append(record.user_metrics)
            where.keeper.keep_trial_round(record)
            # Weights and figures of one arm in one fold would say little among all the others.
            hospitals = {
                name: replace(entry, weight_before=None, weight_after=None)
                for name, entry in record.hospitals.items()
            }
            number = played + record.round
            shown = replace(record, round=number, hospitals=hospitals, user_metrics=None)
            where.listener.round_finished(shown, is_trial=True)

        arm_run = self.first_of(fold, arm)
        where.play_rounds(arm_run, self.rounds[arm], note)
        return arm_run.state, curve
