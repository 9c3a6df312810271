"""`status.json`: the coordinator's progress, for `erosion status` and a container's health."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from erosion_common.rounds.events import (
    ArmFinished,
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    RoundFinished,
    WaitsFor,
)
from erosion_common.study.study import Study
from erosion_common.support.status import StatusFile, certificate_shown
from erosion_server.output.events import (
    EveryUserFinished,
    ObserverDropped,
    RunEvent,
    RunFinished,
    StudyFailed,
    StudyStarted,
    UserFailed,
)
from erosion_server.output.words import printable

MOST_DENIED = 50  # hospitals in the file


class CoordinatorStatus:
    """An observer that keeps the file; `waiting_for` returns the hospitals that are waited for.

    The run always has this one: a health check reads the file. `ended` is apart from the events,
    because the study has ended only when nothing more can go wrong.
    """

    def __init__(
        self,
        path: Path,
        study: Study,
        certificate_expires: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """Begin the file. `certificate_expires`: the coordinator's; None: it shows none."""
        self.waiting_for: Callable[[], Sequence[str]] = tuple
        self._file = StatusFile(
            path,
            live=lambda: {
                "waiting_for": list(self.waiting_for()),
                **certificate_shown(certificate_expires()),
            },
            study=study.name,
            user=study.user,
            phase="starting",
            rounds=study.rounds,
        )
        self._connected: set[str] = set()
        self._software: dict[str, str] = {}  # the version that each site said
        self._without_model: dict[str, str] = {}
        self._denied: dict[str, str] = {}  # the latest reason, by hospital
        self._dropped: dict[str, str] = {}  # outputs that failed, and why

    def notify(self, event: RunEvent) -> None:
        """Note it; the file follows within moments."""
        match event:
            case StudyStarted(study, address):  # all hospitals join again for the next user's part
                self._connected.clear()
                self._file.show(
                    user=study.user,
                    phase="waiting for hospitals",
                    address=address,
                    missing=list(study.hospitals),
                    connected=[],
                    stands_still_for=[],
                    arm="",
                    weights={},
                )
            case HospitalJoined(hospital, _, missing, software):
                self._connected.add(hospital)
                self._software[hospital] = software
                self._denied.pop(hospital, None)
                self._show_hospitals()
                self._file.show(missing=list(missing), software=dict(self._software))
            case HospitalDeclined(hospital, reason):
                self._connected.discard(hospital)
                self._denied[printable(hospital, at_most=80)] = printable(reason)
                while len(self._denied) > MOST_DENIED:
                    del self._denied[next(iter(self._denied))]
                self._show_hospitals()
            case HospitalLeft(hospital):
                self._connected.discard(hospital)
                self._denied.pop(hospital, None)  # it was of the connection that is gone
                self._show_hospitals()
            case WaitsFor(hospitals, since):
                told = [f"{name} since {since:%Y-%m-%d %H:%M} UTC" for name in hospitals]
                self._file.show(stands_still_for=told)
            case ArmStarted():
                self._file.show(
                    phase="training", arm=event.title, round=0, rounds=event.rounds, weights={}
                )
            case RoundFinished(record):
                self._file.show(
                    round=record.round,
                    weights={
                        name: entry.weight_after
                        for name, entry in record.hospitals.items()
                        if entry.weight_after is not None
                    },
                    last_round={"outcome": record.outcome, "seconds": round(record.seconds, 3)},
                )
            case ArmFinished():  # if it was the last, the user's site measures the models now
                self._file.show(phase="between arms, or measuring the final models")
            case RunFinished(result):
                self._file.show(phase="closing", verdict=result.verdict.text)
            case UserFailed(user, reason):
                self._without_model[user] = printable(reason)
                self._file.show(without_model=dict(self._without_model))
            case EveryUserFinished(overview):
                self._file.show(user=", ".join(overview.users), verdict=overview.verdict)
            case StudyFailed(reason):
                self._file.end(phase="failed", reason=printable(reason), ended=True)
            case ObserverDropped(name, reason):
                self._dropped[name] = reason
                self._file.show(outputs_dropped=dict(self._dropped))

    def ended(self) -> None:
        """The study has ended with a result."""
        self._file.end(phase="finished", ended=True)

    def close(self) -> None:
        """The file was ended by what happened."""

    def _show_hospitals(self) -> None:
        self._file.show(connected=sorted(self._connected), denied=dict(self._denied))


@contextmanager
def queue_status(
    queue: Path, certificate_expires: Callable[[], datetime | None]
) -> Iterator[StatusFile]:
    """The file of a coordinator that serves a folder of studies, for as long as it does.

    It shows the `run` under way; none: it waits for studies.
    """
    file = StatusFile(
        queue / "status.json",
        live=lambda: {
            "studies": sorted(path.name for path in queue.glob("*.toml")),
            **certificate_shown(certificate_expires()),
        },
        queue=str(queue),
        phase="serving",
        run="",
    )
    try:
        yield file
    except BaseException as problem:
        file.end(phase="failed", reason=printable(str(problem) or "interrupted"), ended=True)
        raise
    file.end(phase="finished", ended=True)
