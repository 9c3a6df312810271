"""Everything that a run passes on, in one value; and what a run keeps so that it can be resumed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from erosion_common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion_common.protocol.messages import Scaling
from erosion_common.protocol.scaling import pool
from erosion_common.rounds.channel import Channel
from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.events import Emit, ignore
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.records import RoundRecord, RunState
from erosion_common.rounds.selection import Curves, SelectedSettings
from erosion_common.sealed.power_residues import CoordinatorKeys
from erosion_common.sealed.records import SumRecords
from erosion_common.study.study import Study

if TYPE_CHECKING:
    from erosion_common.rounds.arm import Arm


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is settled before the first round; a resumed run uses the same."""

    scaling: Scaling | None  # pooled over the hospitals that were here
    choices: Mapping[str, SelectedSettings]  # by arm
    cohort: frozenset[HospitalName] | None = None  # may take part in every arm; None: all may
    data_check: DataCheck = field(default_factory=DataCheck)


class Store:
    """A simulation's: keeps the rounds of folds. Subclasses' calls are durable when they return."""

    keeps_states: ClassVar[bool] = False  # as `earlier` returns them

    def __init__(self) -> None:
        self._in_folds: list[RoundRecord] = []

    def decisions(self) -> Decisions | None:
        """Returns what an earlier start of this run settled, if there was one."""
        return None

    def decide(self, study: Study, decisions: Decisions) -> None:
        """Keeps what was settled for the run of `study`."""

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """Returns each arm's state after its last finished round, or its first, and the rounds."""
        del study
        return firsts, ()

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        """Returns the state after round `number`; always kept for the last round that moved it."""
        del study, arm, number, first
        return None

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """Keeps a finished round: its record first, then the state after it."""
        if study.evaluation_fold is not None:
            self._in_folds.append(record)

    def finished_folds(self) -> Sequence[Curves]:
        """Returns the finished folds or trials, in order."""
        return ()

    def rounds_in_folds(self) -> Sequence[RoundRecord]:
        """Returns the rounds of a cross-fitted evaluation."""
        return self._in_folds

    def of_fold(self, number: int) -> Self:
        """Returns the store of the fold or trial that follows `number` finished ones."""
        del number
        return self

    def keep_fold(self, curves: Curves) -> None:
        """Keeps the curves of a finished fold; its store is no longer needed."""

    def sums(self, arm: str) -> SumRecords:
        """Returns what a sealed arm's sums are kept in."""
        del arm
        return SumRecords()


@dataclass(frozen=True, slots=True)
class Updates:
    """Where a round's updates are held until it ends; by default in memory."""

    keep: Callable[[Update], Update] = lambda update: update
    cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run. Folds and trials are `replace(ctx, study=..., store=...)` of it."""

    study: Study
    channel: Channel
    presence: Presence
    store: Store = field(default_factory=Store)
    emit: Emit = ignore
    run_round: "Callable[[RunContext, Arm], RoundRecord] | None" = None  # the strategy's; None:
    # the driver's own
    scaling: Scaling | None = None  # pooled, once it is decided
    is_trial: bool = False
    updates: Updates = field(default_factory=Updates)
    sealing_keys: CoordinatorKeys = field(default_factory=CoordinatorKeys)
    run: str = ""  # the name by which sites know the run
    weights: Path | None = None  # folder of the files that models start from
    every_user: bool = False  # the study is one user's part; other users wait for its end
    remedy: str = ""  # how to resume a run that was given up: a sentence
    states_kept_in: str = ""  # a sentence

    def pooled_scaling(self) -> Scaling | None:
        """Returns what columns are scaled by, from the sums of the study's hospitals here."""
        study, members = self.study, self.presence.members
        if study.scaling not in ("federated", "user"):
            return None
        sums = [members[name].sums for name in sorted(members) if name in study.hospitals]
        return pool([s for s in sums if s is not None], study.task, members[study.user].sums)
