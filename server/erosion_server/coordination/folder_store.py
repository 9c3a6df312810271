"""Keeps a run in its folder: decisions, journal, checkpoints, and the folds that are finished."""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Self

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json, write_json
from erosion_common.formats.tensor_file import remove_unfinished_tensors
from erosion_common.protocol.messages import Scaling
from erosion_common.rounds import checkpoint
from erosion_common.rounds.arm import initial_state
from erosion_common.rounds.context import Decisions, Store
from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.records import RoundRecord, RunState
from erosion_common.rounds.selection import Curves, SelectedSettings, chosen, studies_ahead
from erosion_common.sealed.records import RecordFiles
from erosion_common.settings.base import Settings
from erosion_common.settings.names import Name
from erosion_common.study.study import Study
from erosion_common.support.files import remove_unfinished, sync_folder
from erosion_server.run.journal import Journal, cut_back, finished_rounds, has_rounds, read_records
from erosion_server.run.run_folder import RunFolder

FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Start the study again."
FROM_BACKUP = "Bring it back from a backup, or start the study again."


class RunDecisions(Settings):
    """`beginning.json`: written when the hospitals are together and before the first round."""

    format: Literal[1] = FORMAT
    started: str  # ISO 8601, UTC
    scaling: Scaling | None  # pooled over the hospitals that were there
    choices: dict[str, SelectedSettings]  # by arm; empty until the trials have ended
    cohort: tuple[Name, ...] | None = None  # hospitals that may take part; None: all of the study
    data_check: DataCheck = DataCheck()
    study: str  # digest
    run: str  # the name by which the sites know it

    @property
    def decisions(self) -> Decisions:
        """For the driver."""
        cohort = None if self.cohort is None else frozenset(self.cohort)
        return Decisions(self.scaling, self.choices, cohort, self.data_check)

    def problem_with(self, study: Study) -> str | None:
        """Return why it does not fit the study."""
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
                chosen(study, self.choices)
        except ValueError as problem:
            return f"its settings cannot be used ({problem})"
        return None


def read_run_decisions(folder: RunFolder) -> RunDecisions | None:
    """None where the run ended before its first round. Raises CheckpointError."""
    try:
        return read_json(
            folder.beginning, RunDecisions, version=FORMAT, error=CheckpointError, remedy=REMEDY
        )
    except FileNotFoundError:
        return None


class FolderStore(Store):
    """The store of a run, or of a fold or trial. Use it as a context manager."""

    keeps_states = True

    def __init__(self, folder: RunFolder, *, is_fold: bool = False) -> None:
        """Opens nothing before `resume`. Raises CheckpointError."""
        self._folder = folder
        self._earlier = None if is_fold else read_run_decisions(folder)
        self.started = (
            self._earlier.started if self._earlier else datetime.now(UTC).isoformat("T", "seconds")
        )
        self._journal: Journal | None = None
        self._fold: FolderStore | None = None  # under way, and its number
        self._number = 0
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="journal")

    @property
    def is_resumed(self) -> bool:
        """Returns True if an earlier start of the run had begun its rounds."""
        return self._earlier is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.shutdown()
        if self._journal is not None:
            self._journal.close()
        if self._fold is not None:
            self._fold.__exit__()

    def decisions(self) -> Decisions | None:
        """Return what `beginning.json` says."""
        return None if self._earlier is None else self._earlier.decisions

    def decide(self, study: Study, decisions: Decisions) -> None:
        """Writes `beginning.json`."""
        settled = RunDecisions(
            started=self.started,
            scaling=decisions.scaling,
            choices=dict(decisions.choices),
            cohort=None if decisions.cohort is None else tuple(sorted(decisions.cohort)),
            data_check=decisions.data_check,
            study=study.digest,
            run=self._folder.run,
        )
        write_json(self._folder.beginning, settled)

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """Reads the checkpoints, and cuts the journal back to them. Raises CheckpointError."""
        states, records = self._finished(study, firsts)
        for arm, state in states.items():  # which the next round may go back to
            if (path := self._folder.checkpoint(arm)).exists():
                _name_too(path, self._folder.before(arm, state.round))
        cut_back(self._folder.journal, {arm: state.round for arm, state in states.items()})
        self._journal = Journal(self._folder.journal)
        return states, records

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """Writes the journal first, then the checkpoint: a line without one is cut back."""
        assert self._journal is not None, "resume comes first"
        self._journal.write(record)
        # Both files go to the disk at once; the checkpoint counts when the line is there, too.
        synced = self._disk.submit(self._journal.sync)
        path = self._folder.checkpoint(record.arm)
        after, before = (self._folder.before(record.arm, record.round - n) for n in (0, 1))

        def once(new: Path) -> None:
            _name_too(new, after)
            synced.result()

        checkpoint.save(path, state, arm=record.arm, study_digest=study.digest, once=once)
        if record.outcome == "done" and state.lengths:  # earlier ones were needed until now
            for old in path.parent.glob(f"{record.arm}.*.safetensors"):
                if old not in (before, after):
                    old.unlink()
        else:
            before.unlink(missing_ok=True)

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        """Return the first, or the one that `keep_round` left. Raises CheckpointError."""
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
            remove_unfinished_tensors(path)
            states[arm] = first
            if path.exists():
                states[arm] = checkpoint.load(path, first, arm=arm, study_digest=study.digest)
        rounds = {arm: state.round for arm, state in states.items()}
        return states, finished_rounds(self._folder.journal, rounds)

    def finished_folds(self) -> Sequence[Curves]:
        """Return the user's metrics in each, from its journal. Raises CheckpointError."""
        return [
            {
                arm: [record.user_metrics for record in records if record.arm == arm]
                for arm in dict.fromkeys(record.arm for record in records)
            }
            for records in self._finished_folds()
        ]

    def of_fold(self, number: int) -> "FolderStore":
        """Return a store in a folder that is removed when the fold is finished."""
        self._number, folder = number, self._folder.fold(number)
        folder.path.mkdir(parents=True, exist_ok=True)
        self._fold = type(self)(folder, is_fold=True)
        return self._fold

    def keep_fold(self, curves: Curves) -> None:
        """Keeps the fold's journal, which has the curves, and nothing else of it."""
        del curves
        folder = self._folder.fold(self._number)
        if self._fold is not None:
            self._fold.__exit__()
            self._fold = None
        folder.journal.replace(self._folder.finished_fold(self._number))
        sync_folder(self._folder.folds)
        shutil.rmtree(folder.path, ignore_errors=True)

    def rounds_in_folds(self) -> list[RoundRecord]:
        """Return the rounds of a cross-fitted evaluation. Raises CheckpointError."""
        return [record for records in self._finished_folds() for record in records]

    def _finished_folds(self) -> list[list[RoundRecord]]:
        kept = self._folder.folds.glob("[0-9]*")  # of a fold under way, the one before is finished
        last = max((int(path.stem) - path.is_dir() for path in kept), default=-1)
        found = []
        for number in range(last + 1):
            path = self._folder.finished_fold(number)
            try:
                found.append(read_records(path))
            except FileNotFoundError:
                raise CheckpointError(f"{path} is missing", remedy=FROM_BACKUP) from None
        return found

    def check(self, study: Study, weights: Path | None = None) -> None:
        """Raises CheckpointError if the run cannot be resumed."""
        folder, earlier = self._folder, self._earlier
        if earlier is None:
            if folder.has_begun:
                raise CheckpointError(
                    f"{folder.beginning} is missing, and the run there has begun: what its rounds"
                    " are scaled by and who takes part would be settled again",
                    remedy=FROM_BACKUP,
                )
            return
        if (problem := earlier.problem_with(study)) is not None:
            raise CheckpointError(
                f"{folder.beginning} does not fit its study: {problem}", remedy=REMEDY
            )
        if earlier.run != folder.run:
            raise CheckpointError(
                f"{folder.name} has been lost or changed: sites know the run as {earlier.run}",
                remedy="Write that into it, and nothing else.",
            )
        ahead = studies_ahead(study)
        finished = self._finished_folds()
        for number, (part, records) in enumerate(zip(ahead, finished, strict=False)):
            _check_fold(folder.finished_fold(number), part, study, records)
        under_way = folder.fold(len(finished))
        if under_way.has_begun and len(finished) < len(ahead):
            part = ahead[len(finished)]
            with FolderStore(under_way, is_fold=True) as fold:
                fold._finished(part, {a: initial_state(part, a, weights) for a in part.arms})
        has_begun = folder.journal.exists() or bool(earlier.choices and study.selection)
        if len(finished) < len(ahead) and has_begun:
            raise CheckpointError(
                f"{folder.folds} has {len(finished)} of {len(ahead)} finished folds, and the run"
                " went on after the last",
                remedy=FROM_BACKUP,
            )
        if earlier.choices:
            settled = chosen(study, earlier.choices)
            self._finished(settled, {a: initial_state(settled, a, weights) for a in settled.arms})


def _check_fold(path: Path, part: Study, study: Study, records: Sequence[RoundRecord]) -> None:
    """Raise CheckpointError unless each arm has all rounds; one more in a trial: see `choose`."""
    rounds = part.rounds + (study.selection is not None)
    for arm in part.arms:
        of_arm = [record for record in records if record.arm == arm]
        is_whole = of_arm and (of_arm[-1].round == rounds or of_arm[-1].outcome == "stopped")
        if not is_whole or not has_rounds(records, arm, len(of_arm)):
            raise CheckpointError(f"{path} lacks rounds of {arm}", remedy=FROM_BACKUP)


def _name_too(path: Path, name: Path) -> None:
    """Give the file another name too, without a copy if the file system can do that."""
    name.unlink(missing_ok=True)
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)
        with name.open("rb") as copy:
            os.fdatasync(copy.fileno())
