"""`status.json`: the coordinator's progress, for `erosion status` and a container's health."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from erosion_common.rounds import events as driver
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import Study
from erosion_common.support import expiry
from erosion_common.support.status import StatusFile, certificate_shown
from erosion_server.output import events
from erosion_server.output.words import printable

MOST_DENIED = 50  # hospitals in the file
DONE, FAILED = "done", "failed"  # where a queue puts its studies away


class CoordinatorStatus:
    """Keeps the file. `ended` is no event: nothing may go wrong after it."""

    def __init__(
        self,
        path: Path,
        study: Study,
        certificate_expires: Callable[[], datetime | None] = lambda: None,
        *,
        run: str = "",
        denials: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Begin the file. `certificate_expires`: the coordinator's; None: it shows none.

        `run`: its name at the sites. `denials` returns connections not let in, by reason.
        """
        self.waiting_for: Callable[[], Sequence[str]] = tuple
        self._file = StatusFile(
            path,
            live=lambda: {
                "waiting_for": list(self.waiting_for()),
                "denials": dict(denials()),
                **certificate_shown(certificate_expires()),
            },
            study=study.name,
            run=run,
            hospitals=list(study.hospitals),
            user=study.user,
            names=dict(study.names),
            phase="starting",
            rounds=study.rounds,
        )
        self._connected: set[str] = set()
        self._software: dict[str, str] = {}  # the version that each site said
        self._without_model: dict[str, str] = {}
        self._denied: dict[str, str] = {}  # the latest reason, by hospital
        self._dropped: dict[str, str] = {}  # outputs that failed, and why
        self._rounds: Counter[str] = Counter()  # since the program started, by outcome
        self._seconds = 0.0  # that they took
        self._answers: Counter[str] = Counter()  # of hospitals, by outcome
        self._rejections: Counter[str] = Counter()  # by the reason's code
        self._bytes: Counter[str] = Counter()

    def notify(self, event: events.RunEvent) -> None:
        """Note it; the file follows within moments."""
        match event:
            case events.StudyStarted(
                study, address
            ):  # all hospitals join again for the next user's part
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
            case driver.HospitalJoined(hospital, _, missing, software):
                self._connected.add(hospital)
                self._software[hospital] = software
                self._denied.pop(hospital, None)
                self._show_hospitals()
                self._file.show(missing=list(missing), software=dict(self._software))
            case driver.HospitalDeclined(hospital, reason):
                self._connected.discard(hospital)
                self._denied[printable(hospital, at_most=80)] = printable(reason)
                while len(self._denied) > MOST_DENIED:
                    del self._denied[next(iter(self._denied))]
                self._show_hospitals()
            case driver.HospitalLeft(hospital):
                self._connected.discard(hospital)
                self._denied.pop(hospital, None)  # it was of the connection that is gone
                self._show_hospitals()
            case driver.WaitsFor(hospitals, since):
                told = [f"{name} since {since:%Y-%m-%d %H:%M} UTC" for name in hospitals]
                self._file.show(stands_still_for=told)
            case driver.ArmStarted():
                self._file.show(
                    phase="training", arm=event.title, round=0, rounds=event.rounds, weights={}
                )
            case driver.RoundFinished(record):
                weights = {n: e.weight_after for n, e in record.hospitals.items()}
                self._file.show(
                    round=record.round,
                    weights={n: weight for n, weight in weights.items() if weight is not None},
                    last_round={
                        "outcome": record.outcome,
                        "seconds": round(record.seconds, 3),
                        "ended": expiry.now().isoformat(),
                    },
                    **self._counted(record),
                )
            case driver.ArmFinished():  # after the last, the user's site measures
                self._file.show(phase="between arms, or measuring the final models")
            case events.RunFinished(result):
                self._file.show(phase="closing", verdict=result.verdict.text)
            case events.UserFailed(user, reason):
                self._without_model[user] = printable(reason)
                self._file.show(without_model=dict(self._without_model))
            case events.EveryUserFinished(overview):
                self._file.show(user=", ".join(overview.users), verdict=overview.verdict)
            case events.StudyFailed(reason):
                self._file.end(phase="failed", reason=printable(reason), ended=True)
            case events.ObserverDropped(name, reason):
                self._dropped[name] = reason
                self._file.show(outputs_dropped=dict(self._dropped))

    def _counted(self, record: RoundRecord) -> dict[str, object]:
        self._rounds[record.outcome] += 1
        self._seconds += record.seconds
        for entry in record.hospitals.values():
            self._answers[entry.outcome] += 1
            self._rejections[entry.code] += entry.outcome == "rejected"
            self._bytes["received"] += entry.bytes_received or 0
            self._bytes["sent"] += entry.bytes_sent or 0
        return {
            "rounds_ended": dict(self._rounds),
            "rounds_seconds": round(self._seconds, 3),
            "answers": dict(self._answers),
            "rejections": {code: count for code, count in self._rejections.items() if count},
            "received_bytes": self._bytes["received"],
            "sent_bytes": self._bytes["sent"],
        }

    def ended(self) -> None:
        """The study has ended with a result."""
        self._file.end(phase="finished", ended=True)

    def close(self) -> None:
        """The file was ended by what happened."""

    def _show_hospitals(self) -> None:
        self._file.show(connected=sorted(self._connected), denied=dict(self._denied))


@contextmanager
def queue_status(
    queue: Path,
    certificate_expires: Callable[[], datetime | None],
    denials: Callable[[], Mapping[str, int]] = dict,
) -> Iterator[StatusFile]:
    """The file of a coordinator that serves a folder of studies, for as long as it does."""
    file = StatusFile(
        queue / "status.json",
        live=lambda: {
            "studies": sorted(path.name for path in queue.glob("*.toml")),
            "put_away": {name: len([*(queue / name).glob("*.toml")]) for name in (DONE, FAILED)},
            "denials": dict(denials()),
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
