"""The figures of a round as a flat list, for tables and tracking servers."""

from collections.abc import Iterator
from numbers import Real
from typing import NamedTuple

from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.records import RoundRecord


class Figure(NamedTuple):
    """One number of a round."""

    quantity: str
    hospital: str  # "" where it is of the whole round or of the user's metrics
    value: float


def figures_of(record: RoundRecord) -> Iterator[Figure]:
    """The user's metrics, which are of the parameters that the round started from; the round's
    seconds and number of updates; every hospital's weight after it and distance in it.
    """
    for name, value in figures_in(record.user_metrics):
        yield Figure(name, "", value)
    yield Figure("seconds", "", record.seconds)
    accepted = sum(entry.outcome == "accepted" for entry in record.hospitals.values())
    yield Figure("num_accepted", "", float(accepted))
    for hospital, entry in record.hospitals.items():
        if entry.weight_after is not None:
            yield Figure("weight", hospital, entry.weight_after)
        if entry.distance is not None:
            yield Figure("distance", hospital, entry.distance)


def figures_in(metrics: Metrics | None) -> Iterator[tuple[str, float]]:
    """The metrics that are numbers, by name."""
    for name, value in metrics.model_dump().items() if metrics is not None else ():
        if isinstance(value, Real) and not isinstance(value, bool):
            yield name, float(value)
