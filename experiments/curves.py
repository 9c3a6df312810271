"""The user's figures after every round of a simulated arm."""

from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.records import curve_of
from erosion.experiments.simulator import Simulation


def after_each_round(simulation: Simulation, arm: str) -> list[Metrics]:
    """From the first round to the last; rounds without figures are left out."""
    records = simulation.records[arm]
    found = curve_of(records, len(records), simulation.evaluation.arms[arm])
    return [metrics for number, metrics in found if number > 0 and metrics is not None]
