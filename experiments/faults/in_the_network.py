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


def peers_cut(stage: Stage, seconds: float = 32) -> Row:
    """All hospitals but the user's are out of reach: the study is below its quorum."""
    stage.begin()
    network = stage.network
    assert network is not None
    peers = [name for name in stage.study.hospitals if name != stage.study.user]
    seen = Observation(stage, f"lines of all peers cut for {seconds:g} s and restored", peers[0])
    for peer in peers:
        network.cut(peer)
    time.sleep(seconds)
    seen.repaired()
    for peer in peers:
        network.restore(peer)
    seen.wait_until_back()
    return seen.row()
