"""Progress as lines of JSON, for programs that collect logs."""

from typing import Any, TextIO

from erosion_common.rounds.events import (
    ArmFinished,
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    HospitalsCompared,
    RoundFinished,
    StudyBegunWithout,
    WaitsFor,
)
from erosion_common.rounds.records import RoundRecord
from erosion_common.support.logs import json_line
from erosion_common.support.software import software_version
from erosion_server.output.events import (
    EveryUserFinished,
    ObserverDropped,
    RunEvent,
    RunFinished,
    StudyFailed,
    StudyStarted,
    UserFailed,
)
from erosion_server.run.run_folder import RunFolder


class JsonProgress:
    """One object a line, as in the log: an event, its study and run, and what belongs to it."""

    def __init__(self, stream: TextIO) -> None:
        """Lines go to `stream`, each flushed at once."""
        self._stream = stream
        self._about: dict[str, str] = {}

    def notify(self, event: RunEvent) -> None:
        """Write what programs may want to know of it; the journal holds the rest."""
        match event:
            case StudyStarted(study, address, run_folder):
                self._about = {"study": study.name, "run": RunFolder(run_folder).run}
                self._say(
                    "listening",
                    user=study.user,
                    address=address,
                    software=software_version(),
                    run_folder=str(run_folder),
                )
            case HospitalJoined(hospital, num_samples, missing, software):
                self._say(
                    "joined",
                    hospital=hospital,
                    num_samples=num_samples,
                    missing=list(missing),
                    software=software,
                )
            case HospitalDeclined(hospital, reason):
                self._say("declined", hospital=hospital, reason=reason)
            case HospitalLeft(hospital):
                self._say("left", hospital=hospital)
            case WaitsFor(hospitals, since):
                self._say(
                    "waits_for", hospitals=list(hospitals), since=since.isoformat("T", "seconds")
                )
            case StudyBegunWithout(absent):
                self._say("begun_without", absent=dict(absent))
            case HospitalsCompared(found):
                self._say("compared", **found.model_dump(mode="json"))
            case ArmStarted():
                self._say("arm_started", arm=event.title, rounds=event.rounds)
            case RoundFinished(record):
                self._say("round_finished", **_brief(record))
            case ArmFinished(arm):
                self._say("arm_finished", arm=arm)
            case RunFinished(result, run_folder):
                self._say("finished", verdict=result.verdict.text, run_folder=str(run_folder))
            case UserFailed(user, reason):
                self._say("user_failed", user=user, reason=reason)
            case EveryUserFinished(overview, run_folder):
                self._say(
                    "every_user_finished", verdict=overview.verdict, run_folder=str(run_folder)
                )
            case StudyFailed(reason):
                self._say("failed", reason=reason)
            case ObserverDropped(name, reason):
                self._say("output_dropped", output=name, reason=reason)

    def close(self) -> None:
        """Nothing to put back."""

    def _say(self, event: str, **values: Any) -> None:
        level = "warning" if event in _WARNINGS else "info"
        line = json_line(level, "run", event=event, **{**self._about, **values})
        print(line, file=self._stream, flush=True)


_WARNINGS = ("declined", "left", "waits_for", "begun_without", "user_failed", "failed",
             "output_dropped")  # fmt: skip


def _brief(record: RoundRecord) -> dict[str, Any]:
    return {
        "arm": record.arm,
        "round": record.round,
        "outcome": record.outcome,
        "note": record.note,
        "seconds": round(record.seconds, 3),
        "weights": {name: entry.weight_after for name, entry in record.hospitals.items()},
        "absent": {
            name: entry.reason
            for name, entry in record.hospitals.items()
            if entry.outcome in ("absent", "rejected")
        },
    }
