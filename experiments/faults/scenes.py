"""Every fault of the table: what happens to which machine, with the study and machines it needs."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from erosion_client.enrolment.install import install
from erosion_client.site_file import load_site
from erosion_server.enrolment.enrolment import renew_site, revoke_site
from experiments.faults.network import COORDINATOR, Network, SmallDisk, why_no_networks
from experiments.faults.program import Program
from experiments.faults.stage import (
    DEADLINE_SECONDS,
    HOSPITALS,
    Observation,
    Row,
    Stage,
    small_study,
)
from experiments.faults.stepped_clock import SteppedClock, why_no_steps

SITE = "bob"
RESTART_SECONDS = 2.0  # until systemd starts a program again that was killed


def killed_while_idle(stage: Stage) -> Row:
    """Killed while the study waits for a third hospital; restarted by its supervisor."""
    coordinator = stage.coordinator()
    stage.site("alice")
    bob = stage.site(SITE)
    coordinator.wait_for(f"{SITE} joined")
    seen = Observation(stage, "site killed while idle", SITE)
    bob.kill()
    time.sleep(RESTART_SECONDS)
    seen.repaired()
    stage.site(SITE)
    stage.site("carol")
    seen.wait_until_back()
    return seen.row()


def killed_while_training(stage: Stage) -> Row:
    """Killed in the middle of a round; restarted by its supervisor."""
    bob = stage.begin()[SITE]
    num_rounds = len(stage.rounds)
    stage.wait(lambda: len(stage.rounds) > num_rounds)
    time.sleep(0.1)  # the next round trains now
    seen = Observation(stage, "site killed while training", SITE)
    return _killed_and_restarted(stage, seen, bob)


def killed_while_uploading(stage: Stage) -> Row:
    """Killed while its update is on a slow line."""
    bob = stage.begin()[SITE]
    sent = stage.folder / SITE / "records" / SITE / "sent.jsonl"

    def num_sent() -> int:
        return sent.read_bytes().count(b"\n")

    before = num_sent()
    stage.wait(lambda: num_sent() > before)
    time.sleep(0.5)  # it is written down before it leaves, and takes longer than this to leave
    seen = Observation(stage, "site killed while uploading", SITE)
    return _killed_and_restarted(stage, seen, bob)


def frozen(stage: Stage) -> Row:
    """Stopped for longer than the line's keep-alive bears, then continued."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "site frozen for 45 s", SITE)
    bob.freeze()
    time.sleep(45)
    seen.repaired()
    bob.thaw()
    seen.wait_until_back()
    return seen.row()


def slow(stage: Stage) -> Row:
    """Gets a fiftieth of its processor for a while, so that it misses deadlines."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "site slower than the deadline for 15 s", SITE)
    end = time.monotonic() + 3 * DEADLINE_SECONDS
    while time.monotonic() < end:
        bob.freeze()
        time.sleep(0.98)
        bob.thaw()
        time.sleep(0.02)
    seen.repaired()
    seen.wait_until_back()
    return seen.row()


def late_joiner(stage: Stage) -> Row:
    """A hospital that comes when the study has begun."""
    stage.begin(without=SITE)
    seen = Observation(stage, "late joiner", SITE)
    seen.repaired()
    stage.site(SITE)
    seen.wait_until_back()
    return seen.row()


def leaves_for_ever(stage: Stage) -> Row:
    """A hospital that signs out and does not come back; the study ends without it."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "site leaves for ever", SITE)
    bob.end()
    code = stage.programs["coordinator"].wait()
    if code != 0:
        raise AssertionError(f"the study ended with exit code {code}")
    return seen.row()


def user_killed(stage: Stage) -> Row:
    """The user's own site, without which no round counts, is killed in a round."""
    alice = stage.begin()["alice"]
    seen = Observation(stage, "the user's own site killed while training", "alice")
    return _killed_and_restarted(stage, seen, alice)


def _killed_and_restarted(stage: Stage, seen: Observation, program: Program) -> Row:
    """As by a supervisor such as systemd, which starts it again after a moment."""
    program.kill()
    time.sleep(RESTART_SECONDS)
    seen.repaired()
    stage.site(program.name)
    seen.wait_until_back()
    return seen.row()


DISK_KILOBYTES, LEFT_BYTES = 256, 12 * 1024
RUN_ERROR = 7  # exit code


def coordinator_killed(stage: Stage) -> Row:
    """Killed in a round, and resumed."""
    programs = stage.begin()
    stage.wait_for_rounds(5)
    seen = Observation(stage, "coordinator coordinator_killed; `erosion server --resume`")
    programs[COORDINATOR].kill()
    before = stage.journal()
    seen.repaired()
    stage.coordinator(resume=True)
    seen.wait_until_back()
    _hold_against(before, stage.journal())
    return seen.row()


def coordinator_frozen(stage: Stage, *, seconds: float) -> Row:
    """Stopped for longer than every deadline, as a suspended virtual machine, then continued."""
    coordinator = stage.begin()[COORDINATOR]
    seen = Observation(stage, f"coordinator coordinator_frozen for {seconds:g} s")
    coordinator.freeze()
    time.sleep(seconds)
    seen.repaired()
    coordinator.thaw()
    seen.wait_until_back()
    _wait_for_everybody(stage)
    return seen.row()


def clock_stepped(stage: Stage, *, machine: str, seconds: int) -> Row:
    """Somebody sets the wall clock of one machine, and sets it right again."""
    clock = stage.clocks[machine] = SteppedClock(stage.folder)
    stage.begin()
    name = "coordinator's" if machine == COORDINATOR else f"{machine}'s"
    seen = Observation(
        stage,
        f"{name} clock stepped by {seconds:+d} s",
        None if machine == COORDINATOR else machine,
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


def cut_for(stage: Stage, seconds: float, site: str = SITE) -> Row:
    """Every packet vanishes for a while, without notice to either side."""
    stage.begin()
    network = stage.network
    assert network is not None
    link = "the user's own line" if site == stage.study.user else "line"
    seen = Observation(stage, f"{link} cut for {seconds:g} s and restored", site)
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


def duplicate_key(stage: Stage) -> Row:
    """A copy of a site's folder is started elsewhere, while the site is connected."""
    stage.begin()
    seen = Observation(stage, "the same key a second time", SITE)
    stage.copied_site(SITE).wait_for("in use")
    stage.wait_for_rounds(len(stage.rounds) + 2)
    return seen.row(said_by="copy")


def expired_key(stage: Stage) -> Row:
    """A site's key expires in the middle of the study and is renewed."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "a site's key expires; it is renewed", SITE)
    renew_site(stage.federation, SITE, days=-1)
    bob.wait_for("expired")
    bob.wait_until(lambda: bob.exit_code is not None, "end")
    install(renew_site(stage.federation, SITE).kit, load_site(stage.site_file(SITE)))
    seen.repaired()
    stage.site(SITE)
    seen.wait_until_back()
    return seen.row()


def revoked(stage: Stage) -> Row:
    """A site's key is revoked in the middle of the study."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "a site's key is revoked", SITE)
    revoke_site(stage.federation, SITE)
    bob.wait_until(lambda: bob.exit_code is not None, "end")
    stage.wait_for_rounds(len(stage.rounds) + 2)
    return seen.row()


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
        """Return why it cannot be played on this machine; None where it can."""
        if self.needs_network and (reason := why_no_networks()):
            return reason
        return why_no_steps() if self.needs_compiler else None


SCENES: Mapping[str, Scene] = {
    "killed-idle": Scene(killed_while_idle),
    "killed-training": Scene(killed_while_training),
    "killed-uploading": Scene(
        killed_while_uploading,
        study=LARGE_MODEL,
        needs_network=True,
        slow_line_of=SITE,
    ),
    "frozen": Scene(frozen),
    "slow": Scene(slow),
    "late-joiner": Scene(late_joiner, study=SHORT_WAIT),
    "leaves": Scene(leaves_for_ever, study={"rounds": 12}),
    "user-killed": Scene(user_killed),
    "coordinator-killed": Scene(coordinator_killed),
    "disk-full": Scene(disk_full),
    "coordinator-frozen": Scene(partial(coordinator_frozen, seconds=300)),
    "clock-ahead": Scene(
        partial(clock_stepped, machine=COORDINATOR, seconds=300),
        needs_compiler=True,
    ),
    "clock-behind": Scene(
        partial(clock_stepped, machine=COORDINATOR, seconds=-300),
        needs_compiler=True,
    ),
    "site-clock-ahead": Scene(
        partial(clock_stepped, machine="bob", seconds=300), needs_compiler=True
    ),
    "site-clock-behind": Scene(
        partial(clock_stepped, machine="bob", seconds=-300), needs_compiler=True
    ),
    "coordinator-absent": Scene(absent_at_the_start),
    "line-cut": Scene(partial(cut_for, seconds=60), needs_network=True),
    "peers-cut": Scene(peers_cut, needs_network=True),
    "line-cut-briefly": Scene(partial(cut_for, seconds=8), needs_network=True),
    "user-line-cut": Scene(partial(cut_for, seconds=8, site="alice"), needs_network=True),
    "duplicate-key": Scene(duplicate_key),
    "expired-key": Scene(expired_key),
    "revoked": Scene(revoked),
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
