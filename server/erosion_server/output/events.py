"""The events of a run, as values for its observers: the driver's, and these."""

from dataclasses import dataclass
from pathlib import Path

from erosion_common.rounds.events import DriverEvent
from erosion_common.study.study import Study
from erosion_server.run.overview import Overview
from erosion_server.run.result import Result


@dataclass(frozen=True, slots=True)
class StudyStarted:
    """The port is open and the hospitals may come; again for each user, where all are users."""

    study: Study  # for one user
    address: str
    run_folder: Path


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
    | DriverEvent
    | RunFinished
    | UserFailed
    | EveryUserFinished
    | StudyFailed
    | ObserverDropped
)
