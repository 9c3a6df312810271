"""A run's records as pandas frames."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from erosion.common.errors import ErosionError
from erosion.common.protocol.messages import FinalMetrics
from erosion.common.rounds.records import RoundRecord, curve_of
from erosion.common.support.software import install_command

if TYPE_CHECKING:
    import pandas as pd

    from erosion.server.run.result import ArmResult


def pandas() -> Any:
    """The package, which is an extra. Raises ErosionError."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ErosionError(
            f"Frames need the package pandas: {install_command('notebook')}"
        ) from None
    return pd


def rounds_frame(records: Sequence[RoundRecord], arms: Mapping[str, "ArmResult"]) -> "pd.DataFrame":
    """One row for each round of each arm, and one for its start, round 0.

    The metrics are the user's, of the model after the round; those of the last are the final ones.
    """
    rows = []
    for arm, ended in arms.items():
        of_arm = [record for record in records if record.arm == arm]
        found = {record.round: _of_round(record) for record in of_arm}
        for number, metrics in curve_of(of_arm, ended.rounds, ended.metrics):
            measured = {} if metrics is None else metrics.model_dump(exclude={"intervals"})
            rows.append({"arm": arm, "round": number, **found.get(number, _START), **measured})
    return pandas().DataFrame(rows)


_START = {"outcome": "start", "note": "", "seconds": 0.0, "num_accepted": 0}


def _of_round(record: RoundRecord) -> dict[str, Any]:
    return {
        "outcome": record.outcome,
        "note": record.note,
        "seconds": record.seconds,
        "num_accepted": sum(e.outcome == "accepted" for e in record.hospitals.values()),
    }


def weights_frame(records: Sequence[RoundRecord]) -> "pd.DataFrame":
    """One row for each hospital in each round of each arm: its weight, distance and outcome."""
    rows = []
    for record in records:
        for hospital, entry in record.hospitals.items():
            values = asdict(entry)
            weight = values.pop("weight_after")
            del values["weight_before"]  # the row above has it
            place = {"arm": record.arm, "round": record.round, "hospital": hospital}
            rows.append({**place, "weight": weight, **values})
    return pandas().DataFrame(rows)


def arms_frame(metrics: Mapping[str, FinalMetrics]) -> "pd.DataFrame":
    """One row for each arm: its final metrics, with `_low` and `_high` of their intervals."""
    rows = {}
    for arm, found in metrics.items():
        row: dict[str, Any] = dict(found.model_dump(exclude={"intervals"}))
        for name, interval in found.intervals.items():
            row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        rows[arm] = row
    frame = pandas().DataFrame.from_dict(rows, orient="index")
    frame.index.name = "arm"
    return frame


def predictions_frame(text: str) -> "pd.DataFrame":
    """The held-out predictions of a CSV file."""
    frame: pd.DataFrame = pandas().read_csv(io.StringIO(text))
    return frame
