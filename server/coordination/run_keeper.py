"""Keeps a run in its folder: what was decided, the journal, and every arm's last state."""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from erosion.common.rounds import checkpoint
from erosion.common.rounds.cross_fitting import Curves
from erosion.common.rounds.records import RoundRecord, RunState
from erosion.common.rounds.surroundings import Decisions
from erosion.common.sealed.sums.sum_records import RecordFiles
from erosion.common.study.study import Study
from erosion.common.support.files import remove_unfinished
from erosion.server.run.fold_record import read_folds, write_folds
from erosion.server.run.journal import Journal, cut_back, keep_first
from erosion.server.run.run_decisions import RunDecisions, read_run_decisions
from erosion.server.run.run_folder import RunFolder


class RunKeeper:
    """A `Keeper` in a run folder. Use it as a context manager, which closes the journals."""

    def __init__(self, folder: RunFolder) -> None:
        """Go on where the folder's run stopped. Raises CheckpointError."""
        self._folder = folder
        self._earlier = read_run_decisions(folder)  # there only where a run is resumed
        self.started = (
            self._earlier.started if self._earlier else datetime.now(UTC).isoformat("T", "seconds")
        )
        self._journal: Journal | None = None
        self._trials: Journal | None = None
        self._folds: list[Curves] = []
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")

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
        self._disk.shutdown()
        for journal in (self._journal, self._trials):
            if journal is not None:
                journal.close()

    def decided(self) -> Decisions | None:
        """What `beginning.json` says."""
        earlier = self._earlier
        if earlier is None:
            return None
        cohort = None if earlier.cohort is None else frozenset(earlier.cohort)
        return Decisions(earlier.scaling, earlier.chosen(), cohort)

    def decide(self, decisions: Decisions) -> None:
        """Write `beginning.json`."""
        settled = RunDecisions.of(self.started, decisions)
        settled.write(self._folder.beginning)

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """From the checkpoints; the journal is cut back to what they have.

        Raises CheckpointError, also where the journal lacks what they have.
        """
        states = {arm: self._last(study, arm, first) for arm, first in firsts.items()}
        last_round = {arm: state.round for arm, state in states.items()}
        records = cut_back(self._folder.journal, last_round)
        self._journal = Journal(self._folder.journal)
        return states, records

    def begin_trials(self) -> None:
        """A new `trials.jsonl`."""
        self._folder.trials.unlink(missing_ok=True)
        self._trials = Journal(self._folder.trials)

    def keep_trial_round(self, record: RoundRecord) -> None:
        """A line of `trials.jsonl`."""
        assert self._trials is not None, "begin_trials comes first"
        self._trials.append(record)

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """The journal first, then the checkpoint: a line without one is cut back on resuming."""
        assert self._journal is not None, "resume comes first"
        self._journal.write(record)
        # Both files go to the disk at once; the checkpoint counts when the line is there, too.
        synced = self._disk.submit(self._journal.sync)
        path, before = (
            self._folder.checkpoint(record.arm),
            self._folder.before(record.arm, record.round - 1),
        )
        is_undoable = record.outcome == "done" and bool(state.lengths)
        if is_undoable:
            _set_aside(path, before)
        checkpoint.save(
            path,
            state,
            arm=record.arm,
            study_digest=study.digest,
            once=synced.result,
        )
        if is_undoable:  # earlier ones were needed until now
            for old in before.parent.glob(f"{record.arm}.*"):
                if old != before:
                    old.unlink()

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        """The first, or what `keep_round` set aside. Raises CheckpointError."""
        if number == 0:
            return first
        path = self._folder.before(arm, number)
        if not path.exists():
            return None
        return checkpoint.load(path, first, arm=arm, study_digest=study.digest)

    def finished_folds(self) -> Sequence[Curves]:
        """Those in `folds.json`; `trials.jsonl` is cut back to their rounds."""
        self._folds = read_folds(self._folder.folds)
        rounds = sum(len(curve) for curves in self._folds for curve in curves.values())
        keep_first(self._folder.trials, rounds)  # one that was begun is begun anew
        self._trials = Journal(self._folder.trials)
        return self._folds

    def keep_fold(self, curves: Curves) -> None:
        """Into `folds.json`."""
        self._folds = [*self._folds, curves]
        write_folds(self._folder.folds, self._folds)

    def sum_records(self, arm: str) -> RecordFiles:
        """Files in the folder of sealed sums."""
        return RecordFiles(self._folder.sealed, arm)

    def _last(self, study: Study, arm: str, first: RunState) -> RunState:
        path = self._folder.checkpoint(arm)
        remove_unfinished(path)
        if not path.exists():
            return first
        return checkpoint.load(path, first, arm=arm, study_digest=study.digest)


def _set_aside(path: Path, before: Path) -> None:
    """Keep the file under another name too, without a copy where the file system can do that."""
    if not path.exists():
        return
    before.parent.mkdir(exist_ok=True)
    before.unlink(missing_ok=True)
    try:
        os.link(path, before)
    except OSError:
        shutil.copyfile(path, before)
