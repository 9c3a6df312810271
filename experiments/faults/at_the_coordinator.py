"""Faults of the coordinator's machine."""

import time
from typing import Any

from erosion.experiments.faults.network import COORDINATOR, SmallDisk
from erosion.experiments.faults.row import Observation, Row
from erosion.experiments.faults.stage import Stage
from erosion.experiments.faults.stepped_clock import SteppedClock

DISK_KILOBYTES, LEFT_BYTES = 256, 12 * 1024
RUN_ERROR = 7  # exit code


def killed(stage: Stage) -> Row:
    """Killed in a round, and resumed."""
    programs = stage.begin()
    stage.wait_for_rounds(5)
    seen = Observation(stage, "coordinator killed; `erosion server --resume`")
    programs[COORDINATOR].kill()
    before = stage.journal()
    seen.repaired()
    stage.coordinator(resume=True)
    seen.wait_until_back()
    _hold_against(before, stage.journal())
    return seen.row()


def frozen(stage: Stage, *, seconds: float) -> Row:
    """Stopped for longer than every deadline, as a suspended virtual machine, then continued."""
    coordinator = stage.begin()[COORDINATOR]
    seen = Observation(stage, f"coordinator frozen for {seconds:g} s")
    coordinator.freeze()
    time.sleep(seconds)
    seen.repaired()
    coordinator.thaw()
    seen.wait_until_back()
    _wait_for_everybody(stage)
    return seen.row()


def clock_stepped(stage: Stage, *, whose: str, seconds: int) -> Row:
    """Somebody sets the wall clock of one machine, and sets it right again."""
    clock = stage.clocks[whose] = SteppedClock(stage.folder)
    stage.begin()
    name = "coordinator's" if whose == COORDINATOR else f"{whose}'s"
    seen = Observation(
        stage, f"{name} clock stepped by {seconds:+d} s", None if whose == COORDINATOR else whose
    )
    for step in (seconds, 0):
        clock.step(step)
        stage.wait_for_rounds(len(stage.rounds) + 10)
    seen.repaired()
    seen.wait_until_back()
    return seen.row()


def _wait_for_everybody(stage: Stage) -> None:
    now = time.monotonic()
    stage.first(lambda seen: all(seen.has(hospital) for hospital in stage.study.hospitals), now)


def disk_full(stage: Stage) -> Row:
    """The disk with the run folder fills up; somebody makes room, and the run is resumed."""
    with SmallDisk(stage.run, DISK_KILOBYTES) as disk:
        coordinator = stage.begin()[COORDINATOR]
        (disk.path / "something-else").write_bytes(bytes(max(0, disk.free_bytes() - LEFT_BYTES)))
        seen = Observation(stage, "disk full at the coordinator; `erosion server --resume`")
        code = coordinator.wait()
        said = coordinator.text()
        if code != RUN_ERROR or "Traceback" in said:
            raise AssertionError(f"exit code {code}: {said[-2000:]}")
        before = stage.journal()
        disk.grow(64 * 1024)
        seen.repaired()
        stage.coordinator(resume=True)
        seen.wait_until_back()
        _hold_against(before, stage.journal())
        row = seen.row()
        stage.programs[COORDINATOR].close()  # or the disk could not be taken away
        time.sleep(0.2)
        return row


def absent_at_the_start(stage: Stage) -> Row:
    """A site starts before the coordinator does."""
    bob = stage.site("bob")
    seen = Observation(stage, "coordinator out of reach when the site starts", "bob")
    bob.wait_for("cannot be reached")
    time.sleep(5)
    stage.coordinator()
    for hospital in ("alice", "carol"):
        stage.site(hospital)
    stage.programs[COORDINATOR].wait_for("alice joined")
    seen.repaired()
    seen.wait_until_back()
    return seen.row()


def _hold_against(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """No finished round may be lost; one that was journalled but not finished may be done again."""
    kept = before[:-1]
    if after[: len(kept)] != kept:
        raise AssertionError("a finished round was lost")
    numbers = [line["round"] for line in after]
    if numbers != list(range(1, len(after) + 1)):
        raise AssertionError(f"rounds {numbers}")
