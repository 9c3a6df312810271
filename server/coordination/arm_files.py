"""Keeps the arms of a study in a folder: the journal, and every arm's last state."""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from erosion.common.rounds import checkpoint
from erosion.common.rounds.records import RoundRecord, RunState
from erosion.common.study.study import Study
from erosion.common.support.files import remove_unfinished, sync_folder
from erosion.server.run.journal import Journal, cut_back, finished_rounds
from erosion.server.run.run_folder import RunFolder


class ArmFiles:
    """An `ArmsKeeper` in a run folder, or in that of a fold."""

    def __init__(self, folder: RunFolder) -> None:
        """Nothing is open before `resume`."""
        self._folder = folder
        self.num_resumed = 0  # rounds that an earlier start finished
        self._journal: Journal | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def close(self) -> None:
        """Close the journal."""
        self._disk.shutdown()
        if self._journal is not None:
            self._journal.close()

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """From the checkpoints; the journal is cut back to what they have.

        Raises CheckpointError, also where one lacks what the other has.
        """
        states, records = self.finished(study, firsts)
        cut_back(self._folder.journal, {arm: state.round for arm, state in states.items()})
        self.num_resumed = len(records)
        self._journal = Journal(self._folder.journal)
        return states, records

    def finished(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """What `resume` goes on from; nothing is changed. Raises CheckpointError as it does."""
        states = {arm: self._last(study, arm, first) for arm, first in firsts.items()}
        last_round = {arm: state.round for arm, state in states.items()}
        return states, finished_rounds(self._folder.journal, last_round)

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
        with before.open("rb") as copy:
            os.fdatasync(copy.fileno())
    sync_folder(before.parent)  # `path` is replaced next
