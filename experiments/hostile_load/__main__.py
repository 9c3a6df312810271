"""`python -m experiments.hostile_load`: hostile connections of every kind, and their cost.

A coordinator and three hospitals run a study, each a process, with TLS and enrolment.
Then thousands of connections of one kind are opened, and opened again when they are closed. Counted
are the rounds that are done meanwhile, how much longer one takes, how long a hospital that is
started under attack needs until it takes part, and the coordinator's memory.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from erosion_server.enrolment.enrolment import enrol_site
from experiments.faults.page import make_rows
from experiments.faults.program import PATIENCE_SECONDS
from experiments.faults.scenes import SHORT_WAIT
from experiments.faults.stage import Stage, small_study
from experiments.hostile_load.attackers import BY_A_SITE, BY_STRANGERS
from experiments.program import run_program, unpack_kit

MODULE = "experiments.hostile_load.attackers"
BEFORE_SECONDS, SETTLE_SECONDS, UNDER_SECONDS = 10.0, 5.0, 20.0


@dataclass(frozen=True, slots=True)
class Row:
    """What one kind of attack cost."""

    kind: str
    by: str  # "strangers" or "an enrolled site"
    connections: int
    rounds_before: int  # done in BEFORE_SECONDS
    rounds_under: int  # done in UNDER_SECONDS of the attack
    seconds_before: float  # median of a round
    seconds_under: float
    skipped: int  # rounds that did not advance the model
    seconds_to_join: float  # of a hospital that is started under attack
    coordinator_megabytes: float  # peak so far


@contextmanager
def attack(stage: Stage, kind: str, connections: int) -> Iterator[None]:
    """Hostile connections, for as long as the block."""
    files: list[str] = []
    if kind in BY_A_SITE:
        enrol_site(stage.federation, "mallory")  # enrolled, and not of this study
        unpack_kit(stage.federation.kit("mallory"), stage.folder)
        files = [str(stage.folder / "mallory" / name) for name in ("node.crt", "node.key")]
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, kind, str(connections), stage.address, *files],
        stdin=subprocess.PIPE,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        if process.stdin is not None:
            process.stdin.close()


def play(kind: str, connections: int, folder: Path) -> Row:
    """One kind."""
    with Stage(folder, small_study(**SHORT_WAIT)) as stage:  # it begins without carol
        stage.begin(without="carol")
        before = _rounds(stage, BEFORE_SECONDS)
        with attack(stage, kind, connections):
            time.sleep(SETTLE_SECONDS)
            under = _rounds(stage, UNDER_SECONDS)
            started = time.monotonic()
            stage.site("carol")
            joined = stage.first(lambda seen: seen.has("carol"), started).at - started
            seen = [s for s in stage.rounds if s.at > started]
        peak = stage.programs["coordinator"].peak_megabytes
    done = [s for s in under if s.is_done]
    return Row(
        kind,
        "an enrolled site" if kind in BY_A_SITE else "strangers",
        connections,
        len(before),
        len(done),
        _median(before),
        _median(done),
        sum(not s.is_done for s in [*under, *seen]),
        joined,
        peak,
    )


def _rounds(stage: Stage, seconds: float) -> list[Any]:
    number = len(stage.rounds)
    time.sleep(seconds)
    return list(stage.rounds[number:])


def _median(rounds: list[Any]) -> float:
    return median(float(seen.line["seconds"]) for seen in rounds) if rounds else float("nan")


def main() -> int:
    """Run the attacks that are asked for."""

    def played(kind: str, folder: Path, options: argparse.Namespace) -> Row:
        return play(kind, options.connections, folder)

    return make_rows("hostile_load", __doc__ or "", [*BY_STRANGERS, *BY_A_SITE], played)


if __name__ == "__main__":
    run_program(main)
