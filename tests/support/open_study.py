"""Studies over a script that begin with a quorum and take hospitals at any time."""

from typing import Any

from erosion_common.study.study import Study
from tests.support.scripted import Kept, Scripted, study_run
from tests.support.small_study import make_study

FEDERATION = {
    "round_deadline_seconds": 10.0,
    "join_deadline_seconds": 30.0,
    "quorum": 2,
    "start": "quorum",
    "join": "any_time",
    "longest_wait_seconds": 120.0,
}


def study(**changes: Any) -> Study:
    """Three hospitals and one arm; keyword arguments replace top-level keys."""
    values: dict[str, Any] = {
        "hospitals": ["a", "b", "c"],
        "rounds": 4,
        "arms": {"fedavg": {}},
        "federation": {**FEDERATION, **changes.pop("federation", {})},
    }
    return make_study(**{**values, **changes})


def everybody(of: Study, **changes: Any) -> Scripted:
    """All hospitals, connected from the start."""
    transport = Scripted(of, **changes)
    transport.join(*of.hospitals)
    return transport


def played(of: Study, **changes: Any) -> tuple[Scripted, Kept]:
    """The whole run with all hospitals, and what was kept of it."""
    transport, kept = everybody(of, **changes), Kept()
    study_run(transport, kept)
    return transport, kept


def outcomes(kept: Kept, hospital: str) -> list[str]:
    """Of every round."""
    return [record.hospitals[hospital].outcome for record in kept.records]
