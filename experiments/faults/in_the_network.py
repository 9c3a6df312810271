"""Faults of the network between a site and the coordinator."""

import time

from erosion.experiments.faults.at_a_site import SITE
from erosion.experiments.faults.row import Observation, Row
from erosion.experiments.faults.stage import Stage


def cut_for(stage: Stage, seconds: float, site: str = SITE) -> Row:
    """Every packet vanishes for a while; neither side is told."""
    stage.begin()
    network = stage.network
    assert network is not None
    whose = "the user's own line" if site == stage.study.user else "line"
    seen = Observation(stage, f"{whose} cut for {seconds:g} s and restored", site)
    network.cut(site)
    time.sleep(seconds)
    seen.repaired()
    network.restore(site)
    seen.wait_until_back()
    return seen.row()
