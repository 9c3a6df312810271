"""The runs of a cross-fitted evaluation: every arm anew without each fold's patients."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.arm_run import ArmRun
from erosion.common.rounds.cross_fitting import fold_studies, mean_curves
from erosion.common.rounds.records import RoundRecord, RunState
from erosion.common.rounds.surroundings import ArmsKeeper, Surroundings
from erosion.common.study.study import Study

CROSS_FITTING = "cross-fitting"  # what the folds are shown as


@dataclass(frozen=True, slots=True)
class FoldRuns:
    """Each fold is a whole run; one that was interrupted goes on from its last finished round."""

    surroundings: Surroundings
    rounds: Mapping[str, int]  # by arm
    arms_of: Callable[[ArmsKeeper, Study], Iterator[tuple[str, ArmRun, list[RoundRecord]]]]
    # the arms of a fold's study, where they were left, with their rounds so far
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
            keeper = where.keeper.of_fold(number)
            for arm, arm_run, records in self.arms_of(keeper, fold):
                self._play(fold, arm_run, records, keeper, played)
                finals[arm], curves[arm] = arm_run.state, [r.user_metrics for r in records]
                played += self.rounds[arm]
            self.predict(fold, finals)
            where.keeper.keep_fold(curves)
            finished.append(curves)
        return mean_curves(finished, self.rounds)

    def _play(
        self,
        fold: Study,
        arm_run: ArmRun,
        records: list[RoundRecord],
        keeper: ArmsKeeper,
        played: int,
    ) -> None:
        """The rest of an arm without a fold's patients, added to `records`.

        `played` rounds of other folds and arms came before.
        """
        where = self.surroundings

        def note(record: RoundRecord) -> None:
            records.append(record)
            where.keeper.keep_trial_round(record)
            keeper.keep_round(fold, arm_run.state, record)
            # Weights and figures of one arm in one fold would say little among all the others.
            hospitals = {
                name: replace(entry, weight_before=None, weight_after=None)
                for name, entry in record.hospitals.items()
            }
            number = played + record.round
            shown = replace(record, round=number, hospitals=hospitals, user_metrics=None)
            where.listener.round_finished(shown, is_trial=True)

        where.play_rounds(arm_run, self.rounds[arm_run.arm], note)
