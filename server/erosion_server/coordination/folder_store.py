"""Keeps a run in its folder: decisions, journal, checkpoints, and the folds that are finished."""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from pydantic import Field

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json, write_json
from erosion_common.protocol.messages import Scaling
from erosion_common.rounds import checkpoint
from erosion_common.rounds.arm import initial_state
from erosion_common.rounds.context import Decisions, Store
from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.records import RoundRecord, RunState
from erosion_common.rounds.selection import Curves, SelectedSettings, chosen
from erosion_common.sealed.records import RecordFiles
from erosion_common.settings.base import Settings
from erosion_common.settings.names import Name
from erosion_common.study.study import Study
from erosion_common.support.files import remove_unfinished, sync_folder
from erosion_server.run.journal import (
    Journal,
    cut_back,
    finished_rounds,
    keep_first,
    read_folds,
    read_records,
    write_folds,
)
from erosion_server.run.run_folder import RunFolder

FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Start the study again."


class _SelectedSettings(Settings):
    settings: dict[str, Any]
    rounds: int = Field(ge=1)
    loss: float | None


class RunDecisions(Settings):
    """`beginning.json`: written when the hospitals are together and before the first round."""

    format: Literal[1] = FORMAT
    started: str  # ISO 8601, UTC
    scaling: Scaling | None  # pooled over the hospitals that were there
    choices: dict[str, _SelectedSettings]  # by arm; empty until the trials have ended
    cohort: tuple[Name, ...] | None = None  # hospitals that may take part; None: all of the study
    data_check: DataCheck = DataCheck()
    study: str  # digest
    run: str  # the name by which the sites know it

    @classmethod
    def of(cls, study: Study, run: str, started: str, decisions: Decisions) -> Self:
        """Gather what was decided of the run of `study`, which the sites know as `run`."""
        kept = {
            arm: _SelectedSettings(settings=dict(c.settings), rounds=c.rounds, loss=c.loss)
            for arm, c in decisions.choices.items()
        }
        cohort = None if decisions.cohort is None else tuple(sorted(decisions.cohort))
        return cls(
            started=started,
            scaling=decisions.scaling,
            choices=kept,
            cohort=cohort,
            data_check=decisions.data_check,
            study=study.digest,
            run=run,
        )

    def chosen(self) -> dict[str, SelectedSettings]:
        """Return what every arm is run with."""
        return {
            arm: SelectedSettings(kept.settings, kept.rounds, kept.loss)
            for arm, kept in self.choices.items()
        }

    def check(self, study: Study, path: Path) -> None:
        """Raise CheckpointError where what `path` says does not fit the study."""
        if (problem := self._problem_with(study)) is not None:
            raise CheckpointError(f"{path} does not fit its study: {problem}. {REMEDY}")

    def _problem_with(self, study: Study) -> str | None:
        if self.study != study.digest:
            return "the run was begun with other settings than those in study.toml"
        if self.choices and self.choices.keys() != study.arms.keys():
            found, wanted = ", ".join(sorted(self.choices)), ", ".join(sorted(study.arms))
            return f"it is of the arms {found}, and the study has {wanted}"
        if too_long := [arm for arm, c in self.choices.items() if c.rounds > study.rounds]:
            return f"it has more rounds of {too_long[0]} than the study"
        if study.user not in (self.cohort or study.hospitals):
            return f"the hospitals that may take part lack the user, {study.user}"
        widths = {len(self.scaling.mean), len(self.scaling.deviation)} if self.scaling else set()
        if widths and widths != {study.task.input_shape[0]}:
            return f"its scaling is not of {study.task.input_shape[0]} columns"
        try:
            if self.choices:
                chosen(study, self.chosen())
        except ValueError as problem:
            return f"its settings cannot be used ({problem})"
        return None

    def write(self, path: Path) -> None:
        """Put it into the run folder."""
        write_json(path, self)


def read_run_decisions(folder: RunFolder) -> RunDecisions | None:
    """None where the run ended before its first round. Raises CheckpointError."""
    try:
        return read_json(
            folder.beginning, RunDecisions, version=FORMAT, error=CheckpointError, remedy=REMEDY
        )
    except FileNotFoundError:
        return None


_TRIALS_REMEDY = (
    "The result says by it who was missing in the folds. Bring it back from a backup, or start the"
    " study again."
)


class FolderStore(Store):
    """A run's store, or with `parent` that of a fold or trial. Use it as a context manager."""

    def __init__(self, folder: RunFolder, parent: "FolderStore | None" = None) -> None:
        """Opens nothing before `resume`. Raises CheckpointError."""
        self._folder, self._parent = folder, parent
        self._earlier = None if parent else read_run_decisions(folder)
        self.started = (
            self._earlier.started if self._earlier else datetime.now(UTC).isoformat("T", "seconds")
        )
        self._journal: Journal | None = None
        self._trials: Journal | None = None
        self.num_resumed = 0
        self._folds: list[Curves] = []
        self._fold: FolderStore | None = None  # under way
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")

    @property
    def is_resumed(self) -> bool:
        """Returns True if an earlier start of the run had begun its rounds."""
        return self._earlier is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the journals."""
        self._disk.shutdown()
        for part in (self._journal, self._trials):
            if part is not None:
                part.close()
        if self._fold is not None:
            self._fold.__exit__(kind, problem, trace)

    # -- Decisions -----------------------------------------------------------------------------

    def decisions(self) -> Decisions | None:
        """Return what `beginning.json` says."""
        earlier = self._earlier
        if earlier is None:
            return None
        cohort = None if earlier.cohort is None else frozenset(earlier.cohort)
        return Decisions(earlier.scaling, earlier.chosen(), cohort, earlier.data_check)

    def decide(self, study: Study, decisions: Decisions) -> None:
        """Writes `beginning.json`."""
        settled = RunDecisions.of(study, self._folder.run, self.started, decisions)
        settled.write(self._folder.beginning)

    # -- Rounds --------------------------------------------------------------------------------

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """Reads the checkpoints, and cuts the journal back to them. Raises CheckpointError."""
        states, records = self._finished(study, firsts)
        cut_back(self._folder.journal, {arm: state.round for arm, state in states.items()})
        self.num_resumed = len(records)
        self._journal = Journal(self._folder.journal)
        return states, records

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """Writes the journal first, then the checkpoint: a line without one is cut back."""
        if self._parent is not None:
            self._parent.keep_trial(record)
        assert self._journal is not None, "resume comes first"
        self._journal.write(record)
        # Both files go to the disk at once; the checkpoint counts when the line is there, too.
        synced = self._disk.submit(self._journal.sync)
        path = self._folder.checkpoint(record.arm)
        before = self._folder.before(record.arm, record.round - 1)
        is_undoable = record.outcome == "done" and bool(state.lengths)
        if is_undoable:
            _set_aside(path, before)
        checkpoint.save(path, state, arm=record.arm, study_digest=study.digest, once=synced.result)
        if is_undoable:  # earlier ones were needed until now
            for old in before.parent.glob(f"{record.arm}.*"):
                if old != before:
                    old.unlink()

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        """Return the first, or what `keep_round` set aside. Raises CheckpointError."""
        path = self._folder.before(arm, number)
        if number == 0:
            return first
        if not path.exists():
            return None
        return checkpoint.load(path, first, arm=arm, study_digest=study.digest)

    def sums(self, arm: str) -> RecordFiles:
        """Return files in the folder of sealed sums."""
        return RecordFiles(self._folder.sealed, arm)

    def _finished(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], list[RoundRecord]]:
        states = {}
        for arm, first in firsts.items():
            path = self._folder.checkpoint(arm)
            remove_unfinished(path)
            states[arm] = (
                checkpoint.load(path, first, arm=arm, study_digest=study.digest)
                if path.exists()
                else first
            )
        rounds = {arm: state.round for arm, state in states.items()}
        return states, finished_rounds(self._folder.journal, rounds)

    # -- Folds and trials ----------------------------------------------------------------------

    def finished_folds(self) -> Sequence[Curves]:
        """Return those in `folds.json`."""
        self._folds = read_folds(self._folder.folds)
        return self._folds

    def of_fold(self, number: int) -> "FolderStore":
        """Return a store in a folder that is removed when the fold is finished."""
        folder = self._folder.fold(number)
        folder.path.mkdir(parents=True, exist_ok=True)
        self._fold = FolderStore(folder, self)
        return self._fold

    def keep_trial(self, record: RoundRecord) -> None:
        """Writes a line of `trials.jsonl`; nothing is resumed from it."""
        if self._trials is None:  # without rounds that are done again
            rounds = sum(len(curve) for curves in self._folds for curve in curves.values())
            begun = 0 if self._fold is None else self._fold.num_resumed
            keep_first(self._folder.trials, rounds + begun)
            self._trials = Journal(self._folder.trials)
        self._trials.append(record)

    def keep_fold(self, curves: Curves) -> None:
        """Writes `folds.json`."""
        self._folds = [*self._folds, curves]
        write_folds(self._folder.folds, self._folds)
        if self._fold is not None:
            self._fold.__exit__(None, None, None)
            self._fold = None
        shutil.rmtree(self._folder.fold(0).path.parent, ignore_errors=True)

    def rounds_in_folds(self) -> list[RoundRecord]:
        """Return the rounds of a cross-fitted evaluation. Raises CheckpointError."""
        try:
            return read_records(self._folder.trials)
        except FileNotFoundError:
            raise CheckpointError(f"{self._folder.trials} is missing. {_TRIALS_REMEDY}") from None

    # -- Before anybody is waited for ----------------------------------------------------------

    def check(self, study: Study, weights: Path | None = None) -> None:
        """Raises CheckpointError if the run cannot be resumed."""
        folder, earlier = self._folder, self._earlier
        if earlier is None:
            if folder.has_begun:
                raise CheckpointError(
                    f"{folder.beginning} is missing, and the run there has begun: what its rounds"
                    " are scaled by and who takes part would be settled again. Bring it back from a"
                    " backup, or start the study again."
                )
            return
        earlier.check(study, folder.beginning)
        if earlier.run != folder.run:
            raise CheckpointError(
                f"{folder.name} has been lost or changed: sites know the run as"
                f" {earlier.run}. Write that into it, and nothing else."
            )
        self._check_folds(study)
        if earlier.choices:
            settled = chosen(study, earlier.chosen())
            self._finished(settled, {a: initial_state(settled, a, weights) for a in settled.arms})

    def _check_folds(self, study: Study) -> None:
        """Checks that `trials.jsonl` has the rounds of the folds; any will do for a selection."""
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
        found = [(r.arm, r.round) for r in (self.rounds_in_folds() if has_begun else [])]
        if found[: len(wanted)] != wanted:
            raise CheckpointError(f"{folder.trials} lacks rounds of the folds. {_TRIALS_REMEDY}")
        if len(found) > len(wanted) + 1:  # a round is written there first
            raise CheckpointError(
                f"{folder.trials} has {len(found)} rounds of folds, of which {folder.folds} and"
                f" {under_way.parent} have {len(wanted)}. Bring both back from the backup that it"
                " is from, or start the study again."
            )


def _set_aside(path: Path, before: Path) -> None:
    """Keeps the file under another name too, without a copy if the file system can do that."""
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
