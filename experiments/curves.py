"""The user's figures after every round of a simulated arm."""

from erosion.common.protocol.messages import Metrics
from erosion.experiments.simulator import Simulation


def after_each_round(simulation: Simulation, arm: str) -> list[Metrics]:
    """From the first round to the last; rounds without figures are left out.

    A round's own figures are of the parameters that it starts from.
    """
    later = [record.user_metrics for record in simulation.records[arm][1:]]
    return [*(m for m in later if m is not None), simulation.evaluation.arms[arm]]
