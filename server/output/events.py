"""The events of a run, as values for its observers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.records import RoundRecord
from erosion.common.study.study import Study
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """The port is open and the hospitals may come.

    Where every hospital is the user, this and all that follows comes again for the next one.
    """

    study: Study  # for one user
    address: str
    run_folder: Path


@dataclass(frozen=True, slots=True)
class HospitalJoined:
    """A hospital came or came back."""

    hospital: str
    num_samples: int
    missing: tuple[str, ...]  # the ones still waited for
    software: str = ""  # version of the program there, as the site says


@dataclass(frozen=True, slots=True)
class HospitalDeclined:
    """A hospital will not or cannot take part, or a stranger was turned away."""

    hospital: str
    reason: str  # in the other side's words: not safe to show as it is


@dataclass(frozen=True, slots=True)
class HospitalLeft:
    """A hospital lost its connection."""

    hospital: str


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The study stands still until hospitals that it needs are here; nobody: it goes on."""

    hospitals: tuple[str, ...]
    since: datetime  # UTC, by this machine's clock


@dataclass(frozen=True, slots=True)
class StudyBegunWithout:
    """The study begins, or goes on, while hospitals are not there."""

    absent: Mapping[str, str]  # and why, completing "the hospital ..."


@dataclass(frozen=True, slots=True)
class HospitalsCompared:
    """What the hospitals tell of their columns was compared, before the first round."""

    found: DataCheck


@dataclass(frozen=True, slots=True)
class ArmStarted:
    """An arm begins, or a trial by which its settings are chosen."""

    arm: str
    rounds: int
    is_trial: bool = False
    trial: str = ""  # what the trial is for; empty: the choice of settings

    @property
    def title(self) -> str:
        """The arm's name, or what the trial is for."""
        return self.trial or f"{self.arm}, choosing its settings" if self.is_trial else self.arm


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """A round ended, done or skipped. The journal and the checkpoint have it already."""

    record: RoundRecord
    is_trial: bool = False


@dataclass(frozen=True, slots=True)
class ArmFinished:
    """An arm ended; a trial ends without this."""

    arm: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The study has a result for its user; the run's folder is complete."""

    result: Result
    run_folder: Path


@dataclass(frozen=True, slots=True)
class UserFailed:
    """Where every hospital is the user: this one gets no model."""

    user: str
    reason: str


@dataclass(frozen=True, slots=True)
class EveryUserFinished:
    """Where every hospital is the user: the last one's part has ended too."""

    overview: Overview
    run_folder: Path


@dataclass(frozen=True, slots=True)
class StudyFailed:
    """The study ended without a result."""

    reason: str


@dataclass(frozen=True, slots=True)
class ObserverDropped:
    """An observer failed and gets no more events; the run goes on."""

    name: str
    reason: str


RunEvent = (
    StudyStarted
    | HospitalJoined
    | HospitalDeclined
    | HospitalLeft
    | WaitsFor
    | StudyBegunWithout
    | HospitalsCompared
    | ArmStarted
    | RoundFinished
    | ArmFinished
    | RunFinished
    | UserFailed
    | EveryUserFinished
    | StudyFailed
    | ObserverDropped
)
