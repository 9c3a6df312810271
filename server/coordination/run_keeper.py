"""Keeps a run in its folder: what was decided, the journal, and every arm's last state."""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from erosion.common.errors import CheckpointError
from erosion.common.rounds.cross_fitting import Curves
from erosion.common.rounds.model_selection import chosen
from erosion.common.rounds.records import RoundRecord
from erosion.common.rounds.study_run import first_state
from erosion.common.rounds.surroundings import Decisions
from erosion.common.sealed.sums.sum_records import RecordFiles
from erosion.common.study.study import Study
from erosion.server.coordination.arm_files import ArmFiles
from erosion.server.run.fold_record import read_folds, write_folds
from erosion.server.run.journal import Journal, keep_first, read_records
from erosion.server.run.run_decisions import RunDecisions, read_run_decisions
from erosion.server.run.run_folder import RunFolder

_TRIALS_REMEDY = (
    "The result says by it who was missing in the folds. Bring it back from a backup, or start the"
    " study anew."
)


class RunKeeper(ArmFiles):
    """A `Keeper` in a run folder. Use it as a context manager, which closes the journals."""

    def __init__(self, folder: RunFolder) -> None:
        """Go on where the folder's run stopped. Raises CheckpointError."""
        super().__init__(folder)
        self._earlier = read_run_decisions(folder)  # there only where a run is resumed
        self.started = (
            self._earlier.started if self._earlier else datetime.now(UTC).isoformat("T", "seconds")
        )
        self._trials: Journal | None = None
        self._folds: list[Curves] = []
        self._fold: ArmFiles | None = None  # under way

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier start of the run had begun its rounds."""
        return self._earlier is not None

    def __enter__(self) -> Self:
        """Nothing is open yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the journals."""
        self.close()
        for part in (self._trials, self._fold):
            if part is not None:
                part.close()

    def decided(self) -> Decisions | None:
        """What `beginning.json` says."""
        earlier = self._earlier
        if earlier is None:
            return None
        cohort = None if earlier.cohort is None else frozenset(earlier.cohort)
        return Decisions(earlier.scaling, earlier.chosen(), cohort, earlier.data_check)

    def check(self, study: Study, weights: Path | None = None) -> None:
        """Raise CheckpointError where the run cannot be gone on with, before anybody is waited for.

        `weights`: where files that models start from are.
        """
        folder = self._folder
        if self._earlier is None:
            if folder.has_begun:
                raise CheckpointError(
                    f"{folder.beginning} is missing, and the run there has begun: what its rounds"
                    " are scaled by and who takes part would be settled anew. Bring it back from a"
                    " backup, or start the study anew."
                )
            return
        self._earlier.check(study, folder.beginning)
        if self._earlier.run not in (None, folder.run):
            raise CheckpointError(
                f"{folder.name} has been lost or changed: sites know the run as"
                f" {self._earlier.run}. Write that into it, and nothing else."
            )
        self._check_folds(study)
        if self._earlier.choices:
            settled = chosen(study, self._earlier.chosen())
            firsts = {arm: first_state(settled, arm, weights) for arm in settled.arms}
            self.finished(settled, firsts)

    def _check_folds(self, study: Study) -> None:
        """Raise CheckpointError where the rounds in `trials.jsonl` are not those of the folds.

        Of a selection's trials nothing is made but its choices, and any rounds will do.
        """
        folder, finished = self._folder, read_folds(self._folder.folds)
        if study.evaluation.folds is None:
            return
        under_way = folder.fold(len(finished)).journal
        wanted = [
            (arm, number)
            for curves in finished
            for arm, curve in curves.items()
            for number in range(1, len(curve) + 1)
        ]
        if under_way.exists():
            wanted += [(record.arm, record.round) for record in read_records(under_way)]
        has_begun = bool(wanted) or folder.trials.exists()
        rounds = self.rounds_in_folds() if has_begun else []
        found = [(record.arm, record.round) for record in rounds]
        if found[: len(wanted)] != wanted:
            raise CheckpointError(f"{folder.trials} lacks rounds of the folds. {_TRIALS_REMEDY}")
        if len(found) > len(wanted) + 1:  # a round is written there first
            raise CheckpointError(
                f"{folder.trials} has {len(found)} rounds of folds, of which {folder.folds} and"
                f" {under_way.parent} have {len(wanted)}. Bring both back from the backup that it"
                " is from, or start the study anew."
            )

    def rounds_in_folds(self) -> list[RoundRecord]:
        """Of a cross-fitted evaluation that has begun. Raises CheckpointError."""
        try:
            return read_records(self._folder.trials)
        except FileNotFoundError:
            raise CheckpointError(f"{self._folder.trials} is missing. {_TRIALS_REMEDY}") from None

    def decide(self, study: Study, decisions: Decisions) -> None:
        """Write `beginning.json`."""
        settled = RunDecisions.of(study, self._folder.run, self.started, decisions)
        settled.write(self._folder.beginning)

    def keep_trial_round(self, record: RoundRecord) -> None:
        """A line of `trials.jsonl`."""
        if self._trials is None:
            self._trials = self._cut_trials()
        self._trials.append(record)

    def finished_folds(self) -> Sequence[Curves]:
        """Those in `folds.json`."""
        self._folds = read_folds(self._folder.folds)
        return self._folds

    def of_fold(self, number: int) -> ArmFiles:
        """In a folder of its own, which goes when the fold is finished."""
        folder = self._folder.fold(number)
        folder.path.mkdir(parents=True, exist_ok=True)
        self._fold = ArmFiles(folder)
        return self._fold

    def keep_fold(self, curves: Curves) -> None:
        """Into `folds.json`."""
        self._folds = [*self._folds, curves]
        write_folds(self._folder.folds, self._folds)
        if self._fold is not None:
            self._fold.close()
            self._fold = None
        shutil.rmtree(self._folder.fold(0).path.parent, ignore_errors=True)

    def _cut_trials(self) -> Journal:
        """With no round that is done again: of finished folds, and of the one gone on with."""
        rounds = sum(len(curve) for curves in self._folds for curve in curves.values())
        begun = 0 if self._fold is None else self._fold.num_resumed
        keep_first(self._folder.trials, rounds + begun)
        return Journal(self._folder.trials)

    def sum_records(self, arm: str) -> RecordFiles:
        """Files in the folder of sealed sums."""
        return RecordFiles(self._folder.sealed, arm)
