"""The figures of a round as a flat list, for tables and tracking servers."""

from collections.abc import Iterator
from numbers import Real
from typing import NamedTuple

from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.records import RoundRecord
from erosion.server.run.result import Result

MEASURED = "measured"


class Figure(NamedTuple):
    """One number."""

    round: int  # that it is of; of a metric: after which the measured model is
    outcome: str  # of the round; "measured": it is of a model, and not of what a round did
    quantity: str
    hospital: str  # "" where it is of the whole round or of the user's metrics
    value: float


def figures_of(record: RoundRecord) -> Iterator[Figure]:
    """The user's metrics of the model that the round started from, which are of the round before;
    the round's seconds and number of updates; every hospital's weight after it and distance in it.
    """
    for name, value in figures_in(record.user_metrics):
        yield Figure(record.measured_after, MEASURED, name, "", value)
    of = record.round, record.outcome
    yield Figure(*of, "seconds", "", record.seconds)
    accepted = sum(entry.outcome == "accepted" for entry in record.hospitals.values())
    yield Figure(*of, "num_accepted", "", float(accepted))
    for hospital, entry in record.hospitals.items():
        if entry.weight_after is not None:
            yield Figure(*of, "weight", hospital, entry.weight_after)
        if entry.distance is not None:
            yield Figure(*of, "distance", hospital, entry.distance)


def final_figures_of(result: Result) -> Iterator[tuple[str, Figure]]:
    """Each arm's name with a metric of the model that it ended with; so for local references."""
    for arm, ended in result.arms.items():
        for name, value in figures_in(ended.metrics):
            yield arm, Figure(ended.rounds, MEASURED, name, "", value)
    for reference, metrics in result.references.items():
        for name, value in figures_in(metrics):
            yield reference, Figure(0, MEASURED, name, "", value)


def figures_in(metrics: Metrics | None) -> Iterator[tuple[str, float]]:
    """The metrics that are numbers, by name."""
    for name, value in metrics.model_dump().items() if metrics is not None else ():
        if isinstance(value, Real) and not isinstance(value, bool):
            yield name, float(value)
