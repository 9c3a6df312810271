"""A run's records as pandas frames."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from erosion.common.errors import ErosionError
from erosion.common.protocol.messages import FinalMetrics
from erosion.common.rounds.records import RoundRecord
from erosion.common.support.software import install_command

if TYPE_CHECKING:
    import pandas as pd


def pandas() -> Any:
    """The package, which is an extra. Raises ErosionError."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ErosionError(
            f"Frames need the package pandas: {install_command('notebook')}"
        ) from None
    return pd


def rounds_frame(records: Sequence[RoundRecord]) -> "pd.DataFrame":
    """One row for each round of each arm.

    The metrics are the user's, of the parameters that the round started from.
    """
    rows = [
        {
            "arm": record.arm,
            "round": record.round,
            "outcome": record.outcome,
            "note": record.note,
            "seconds": record.seconds,
            "num_accepted": sum(e.outcome == "accepted" for e in record.hospitals.values()),
            **(record.user_metrics.model_dump() if record.user_metrics else {}),
        }
        for record in records
    ]
    return pandas().DataFrame(rows)


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
