"""The events that the driver emits; observers match on their types."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from erosion_common.rounds.data_check import DataCheck
from erosion_common.rounds.records import RoundRecord


@dataclass(frozen=True, slots=True)
class HospitalJoined:
    """A hospital connected or came back."""

    hospital: str
    num_samples: int
    missing: tuple[str, ...]  # still waited for
    software: str = ""  # version of the program there, as the site reports it


@dataclass(frozen=True, slots=True)
class HospitalDeclined:
    """A hospital will not or cannot take part, or an unknown peer was rejected."""

    hospital: str
    reason: str  # in the other side's words: not safe to display unescaped


@dataclass(frozen=True, slots=True)
class HospitalLeft:
    """A hospital lost its connection."""

    hospital: str


@dataclass(frozen=True, slots=True)
class WaitsFor:
    """The study waits for hospitals that it needs; an empty tuple: it continues."""

    hospitals: tuple[str, ...]
    since: datetime  # UTC, by this machine's clock


@dataclass(frozen=True, slots=True)
class StudyBegunWithout:
    """The study starts or continues without hospitals."""

    absent: Mapping[str, str]  # and why, completing "the hospital ..."


@dataclass(frozen=True, slots=True)
class HospitalsCompared:
    """The hospitals' figures of their columns were compared, before the first round."""

    found: DataCheck


@dataclass(frozen=True, slots=True)
class ArmStarted:
    """An arm starts, or a trial of one."""

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
    """A round ended, done or skipped; the store has it already."""

    record: RoundRecord
    is_trial: bool = False


@dataclass(frozen=True, slots=True)
class ArmFinished:
    """An arm ended; trials end without this event."""

    arm: str


DriverEvent = (
    HospitalJoined
    | HospitalDeclined
    | HospitalLeft
    | WaitsFor
    | StudyBegunWithout
    | HospitalsCompared
    | ArmStarted
    | RoundFinished
    | ArmFinished
)
Emit = Callable[[DriverEvent], None]


def ignore(_event: DriverEvent) -> None:
    """Has no use for events."""
