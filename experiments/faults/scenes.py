"""Every fault of the table, by name, with the study and the machines that it needs."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from erosion.experiments.faults import at_a_site, at_the_coordinator, in_the_network, with_keys
from erosion.experiments.faults.network import COORDINATOR, Network, why_no_networks
from erosion.experiments.faults.row import Row
from erosion.experiments.faults.stage import DEADLINE_SECONDS, HOSPITALS, Stage, small_study
from erosion.experiments.faults.stepped_clock import why_no_steps

# 1 MB of parameters take 4 s at 2 Mbit/s.
LARGE_MODEL: Mapping[str, Any] = {
    "model": {"name": "mlp", "hidden": [500, 500]},
    "training": {"steps": 5, "batch_size": 16, "learning_rate": 0.1},
    "federation": {"round_deadline_seconds": 60.0, "join_deadline_seconds": 120.0},
}
SLOW_LINE_KILOBITS = 2000
SHORT_WAIT: Mapping[str, Any] = {  # for hospitals, before the study begins without them
    "federation": {
        "round_deadline_seconds": DEADLINE_SECONDS,
        "join_deadline_seconds": 15.0,
        "start": "quorum",
        "join": "any_time",
    }
}


@dataclass(frozen=True, slots=True)
class Scene:
    """One fault."""

    act: Callable[[Stage], Row]
    study: Mapping[str, Any] = field(default_factory=dict)  # what differs from the usual one
    needs_network: bool = False
    needs_compiler: bool = False
    slow_line_of: str | None = None

    def why_not(self) -> str | None:
        """Why it cannot be played on this machine; None where it can."""
        if self.needs_network and (reason := why_no_networks()):
            return reason
        return why_no_steps() if self.needs_compiler else None


SCENES: Mapping[str, Scene] = {
    "killed-idle": Scene(at_a_site.killed_while_idle),
    "killed-training": Scene(at_a_site.killed_while_training),
    "killed-uploading": Scene(
        at_a_site.killed_while_uploading,
        study=LARGE_MODEL,
        needs_network=True,
        slow_line_of=at_a_site.SITE,
    ),
    "frozen": Scene(at_a_site.frozen),
    "slow": Scene(at_a_site.slow),
    "late-joiner": Scene(at_a_site.late_joiner, study=SHORT_WAIT),
    "leaves": Scene(at_a_site.leaves_for_ever, study={"rounds": 12}),
    "user-killed": Scene(at_a_site.user_killed),
    "coordinator-killed": Scene(at_the_coordinator.killed),
    "disk-full": Scene(at_the_coordinator.disk_full),
    "coordinator-frozen": Scene(partial(at_the_coordinator.frozen, seconds=300)),
    "clock-ahead": Scene(
        partial(at_the_coordinator.clock_stepped, whose=COORDINATOR, seconds=300),
        needs_compiler=True,
    ),
    "clock-behind": Scene(
        partial(at_the_coordinator.clock_stepped, whose=COORDINATOR, seconds=-300),
        needs_compiler=True,
    ),
    "site-clock-ahead": Scene(
        partial(at_the_coordinator.clock_stepped, whose="bob", seconds=300), needs_compiler=True
    ),
    "site-clock-behind": Scene(
        partial(at_the_coordinator.clock_stepped, whose="bob", seconds=-300), needs_compiler=True
    ),
    "coordinator-absent": Scene(at_the_coordinator.absent_at_the_start),
    "line-cut": Scene(partial(in_the_network.cut_for, seconds=60), needs_network=True),
    "peers-cut": Scene(in_the_network.peers_cut, needs_network=True),
    "line-cut-briefly": Scene(partial(in_the_network.cut_for, seconds=8), needs_network=True),
    "user-line-cut": Scene(
        partial(in_the_network.cut_for, seconds=8, site="alice"), needs_network=True
    ),
    "duplicate-key": Scene(with_keys.duplicate_key),
    "expired-key": Scene(with_keys.expired_key),
    "revoked": Scene(with_keys.revoked),
}


def play(scene: Scene, folder: Path, **changes: Any) -> Row:
    """Set the stage, let the fault happen, and take everything down; `changes` are the study's."""
    with (
        Network(*HOSPITALS) if scene.needs_network else nullcontext() as network,
        Stage(folder, small_study(**{**scene.study, **changes}), network) as stage,
    ):
        if network is not None and scene.slow_line_of:
            network.slow_down(scene.slow_line_of, SLOW_LINE_KILOBITS)
        return scene.act(stage)
