"""Progress as lines of JSON, for programs that collect logs."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, TextIO

from erosion_common.rounds import events as driver
from erosion_common.rounds.records import RoundRecord
from erosion_common.support.logs import json_line
from erosion_common.support.software import software_version
from erosion_server.output import events as run
from erosion_server.run.run_folder import RunFolder

EVENTS: Final[Mapping[type[run.RunEvent], tuple[str, str]]] = {  # name in the log, and level
    run.StudyStarted: ("listening", "info"),
    driver.HospitalJoined: ("joined", "info"),
    driver.HospitalDeclined: ("declined", "warning"),
    driver.HospitalLeft: ("left", "warning"),
    driver.WaitsFor: ("waits_for", "warning"),
    driver.StudyBegunWithout: ("begun_without", "warning"),
    driver.HospitalsCompared: ("compared", "info"),
    driver.ArmStarted: ("arm_started", "info"),
    driver.RoundFinished: ("round_finished", "info"),
    driver.ArmFinished: ("arm_finished", "info"),
    run.RunFinished: ("finished", "info"),
    run.UserFailed: ("user_failed", "warning"),
    run.EveryUserFinished: ("every_user_finished", "info"),
    run.StudyFailed: ("failed", "warning"),
    run.ObserverDropped: ("output_dropped", "warning"),
}


class JsonProgress:
    """One object a line, as in the log: an event, its study and run, and what belongs to it."""

    def __init__(self, stream: TextIO) -> None:
        """Lines go to `stream`, each flushed at once."""
        self._stream = stream
        self._about: dict[str, str] = {}

    def notify(self, event: run.RunEvent) -> None:
        """Write what programs may want to know of it; the journal holds the rest."""
        if isinstance(event, run.StudyStarted):
            self._about = {"study": event.study.name, "run": RunFolder(event.run_folder).run}
        name, level = EVENTS[type(event)]
        values = {"event": name, **self._about, **_values(event)}
        print(json_line(level, "run", **values), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to put back."""


def _values(event: run.RunEvent) -> dict[str, Any]:
    match event:
        case run.StudyStarted(study, address, folder):
            about = {"user": study.user, "address": address, "software": software_version()}
            return {**about, "run_folder": str(folder)}
        case driver.HospitalsCompared(found):
            return found.model_dump(mode="json")
        case driver.ArmStarted():
            return {"arm": event.title, "rounds": event.rounds}
        case driver.RoundFinished(record):
            return _brief(record)
        case run.RunFinished(result, folder):
            return {"verdict": result.verdict.text, "run_folder": str(folder)}
        case run.EveryUserFinished(overview, folder):
            return {"verdict": overview.verdict, "run_folder": str(folder)}
        case run.ObserverDropped(name, reason):
            return {"output": name, "reason": reason}
    return {field.name: _plain(getattr(event, field.name)) for field in fields(event)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat("T", "seconds")
    return dict(value) if isinstance(value, Mapping) else value


def _brief(record: RoundRecord) -> dict[str, Any]:
    hospitals = record.hospitals.items()
    missing = ("absent", "rejected")
    return {
        "arm": record.arm,
        "round": record.round,
        "outcome": record.outcome,
        "note": record.note,
        "seconds": round(record.seconds, 3),
        "weights": {name: entry.weight_after for name, entry in hospitals},
        "absent": {name: entry.reason for name, entry in hospitals if entry.outcome in missing},
    }
