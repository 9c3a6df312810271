"""The surroundings of a study: the transport, the listener, and the keeper of its state."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.protocol.messages import Scaling
from erosion.common.rounds.arm_run import ArmRun, Storage
from erosion.common.rounds.cross_fitting import Curves
from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.membership import MembershipListener
from erosion.common.rounds.model_selection import SelectedSettings
from erosion.common.rounds.records import RoundRecord, RunState
from erosion.common.rounds.transport import Transport
from erosion.common.sealed.distances.coordinator_keys import CoordinatorKeys
from erosion.common.sealed.sums.sum_records import SumRecords
from erosion.common.study.study import Study

PlayRounds = Callable[[ArmRun, int, Callable[[RoundRecord], None]], None]


class Listener(MembershipListener, Protocol):
    """Is told what happens in a study."""

    def arm_started(
        self, arm: str, rounds: int, *, is_trial: bool = False, title: str = ""
    ) -> None:
        """An arm begins, or a trial of it; `title` says what for, where not for its settings."""

    def round_finished(self, record: RoundRecord, *, is_trial: bool = False) -> None:
        """A round ended: done, skipped, or stopped by the arm's rule."""

    def arm_finished(self, arm: str) -> None:
        """An arm ended."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is settled before the first round; a run that goes on needs the same."""

    scaling: Scaling | None  # pooled over the hospitals that were there
    choices: Mapping[str, SelectedSettings]  # by arm
    cohort: frozenset[HospitalName] | None = None  # who takes part in every arm; None: anybody
    data_check: DataCheck = field(default_factory=DataCheck)


class ArmsKeeper(Protocol):
    """Keeps where the arms of a study stand, so that they go on after an interruption."""

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """By arm the state after its last finished round, or the given first; and those rounds."""

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        """The arm's state after that earlier round, which its last one that moved anything began
        from; None where it is not kept. `first`: the one before all rounds."""

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """Keep a finished round: its record first, then the state after it."""


class Keeper(ArmsKeeper, Protocol):
    """Keeps what a run needs to go on after an interruption."""

    def decided(self) -> Decisions | None:
        """What an earlier start of this run settled; None: there was none."""

    def decide(self, study: Study, decisions: Decisions) -> None:
        """Keep what was settled of the run of `study`."""

    def keep_trial_round(self, record: RoundRecord) -> None:
        """Note a trial's round, or a fold's; nothing is resumed from it."""

    def finished_folds(self) -> Sequence[Curves]:
        """The folds of a cross-fitted evaluation, or the trials of a selection, that an earlier
        start finished, in their order."""
        ...

    def of_fold(self, number: int) -> ArmsKeeper:
        """Of the fold or trial that is begun, or gone on with, after so many finished ones."""
        ...

    def keep_fold(self, curves: Curves) -> None:
        """Note that one more is finished; a run that goes on begins with the next."""

    def sum_records(self, arm: str) -> SumRecords:
        """What a sealed arm's sums are kept in."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a study runs."""

    transport: Transport
    listener: Listener
    keeper: Keeper
    play_rounds: PlayRounds
    # carries an arm to so many rounds, or to where its rule stops it, and hands on every record
    storage: Storage = field(default_factory=Storage)
    sealing_keys: CoordinatorKeys = field(default_factory=CoordinatorKeys)
    run: str = ""  # what the sites know the run by
    address: str = ""  # where sites find the coordinator, for messages
    remedy: str = ""  # how to go on with a run that was given up: a sentence, after a space
    where_states_are: str = ""  # of every arm, for messages
    weights: Path | None = None  # folder with the files that models start from
    longest_wait_seconds: float | None = None  # for hospitals that are needed; None: no end
    start_with_quorum: bool = False  # whatever the study says of its start
    every_user: bool = False  # the study is one user's part, and other hospitals' wait for its end
