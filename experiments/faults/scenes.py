"""Every fault of the table: what happens to which machine, with the study and machines it needs.

A scene begins a study, causes a fault, waits, cures it, and waits until the hospital (or, where the
coordinator had the fault, the study) is back.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
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

SITE, USER = "bob", "alice"
RESTART_SECONDS = 2.0  # until systemd starts a program again that was killed

Act = Callable[[Stage], object]


@dataclass(frozen=True, slots=True)
class Scene:
    """One fault."""

    fault: str  # as the page names it
    cause: Act
    seconds: float = 0.0  # from the cause to the cure
    cure: Act | None = None  # None: nobody comes back, and two more rounds are done
    site: str | None = SITE  # that has the fault; None: the coordinator
    begin: Act = Stage.begin
    said_by: str | None = None  # the program with the log to quote; None: the site's
    study: Mapping[str, Any] = field(default_factory=dict)  # what differs from the usual one
    needs_network: bool = False
    needs_compiler: bool = False
    slow_line_of: str | None = None
    small_disk_kilobytes: int | None = None  # of the disk with the run's folder

    def why_not(self) -> str | None:
        """Return why it cannot be played on this machine; None where it can."""
        if self.needs_network and (reason := why_no_networks()):
            return reason
        return why_no_steps() if self.needs_compiler else None

    def act(self, stage: Stage) -> Row:
        """Let it happen."""
        self.begin(stage)
        seen = Observation(stage, self.fault, self.site)
        self.cause(stage)
        if self.cure is None:
            if stage.programs[COORDINATOR].exit_code is None:
                stage.wait_for_rounds(len(stage.rounds) + 2)
            return seen.row(said_by=self.said_by)
        time.sleep(self.seconds)
        before = stage.journal()
        seen.repaired()
        self.cure(stage)
        seen.wait_until_back()
        _hold_against(before, stage.journal())
        return seen.row()


def _hold_against(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """No finished round may be lost; one that was journalled but not finished may be done again."""
    kept = before[:-1]
    if after[: len(kept)] != kept:
        raise AssertionError("a finished round was lost")
    numbers = [line["round"] for line in after]
    if numbers != list(range(1, len(after) + 1)):
        raise AssertionError(f"rounds {numbers}")


def _of(name: str, act: str) -> Act:
    """Do something to the program of a hospital or of the coordinator."""
    return lambda stage: getattr(stage.programs[name], act)()


def _late_in_the_study(stage: Stage) -> None:
    stage.begin()
    stage.wait_for_rounds(5)


def _resume(stage: Stage) -> None:
    stage.coordinator(resume=True)


# -- How scenes begin ------------------------------------------------------------------------------


def _waiting_for_carol(stage: Stage) -> None:
    stage.coordinator()
    for hospital in (USER, SITE):
        stage.site(hospital)
    stage.programs[COORDINATOR].wait_for(f"{SITE} joined")


def _in_a_round(stage: Stage) -> None:
    stage.begin()
    num_rounds = len(stage.rounds)
    stage.wait(lambda: len(stage.rounds) > num_rounds)
    time.sleep(0.1)  # the next round trains now


def _in_an_upload(stage: Stage) -> None:
    stage.begin()
    sent = stage.folder / SITE / "records" / SITE / "sent.jsonl"
    before = sent.read_bytes().count(b"\n")
    stage.wait(lambda: sent.read_bytes().count(b"\n") > before)
    time.sleep(0.5)  # it is written down before it leaves, and takes longer than this to leave


def _with_clock_of(machine: str) -> Act:
    def begin(stage: Stage) -> None:
        stage.clocks[machine] = SteppedClock(stage.folder)
        stage.begin()

    return begin


# -- What happens ----------------------------------------------------------------------------------


def _slow_down(stage: Stage) -> None:
    """A fiftieth of its processor for three deadlines."""
    bob, end = stage.programs[SITE], time.monotonic() + 3 * DEADLINE_SECONDS
    while time.monotonic() < end:
        bob.freeze()
        time.sleep(0.98)
        bob.thaw()
        time.sleep(0.02)


def _leave(stage: Stage) -> None:
    """The study ends without it."""
    stage.programs[SITE].end()
    if (code := stage.programs[COORDINATOR].wait()) != 0:
        raise AssertionError(f"the study ended with exit code {code}")


def _step_and_back(machine: str, seconds: int) -> Act:
    def cause(stage: Stage) -> None:
        for step in (seconds, 0):
            stage.clocks[machine].step(step)
            stage.wait_for_rounds(len(stage.rounds) + 10)

    return cause


LEFT_BYTES = 12 * 1024
RUN_ERROR = 7  # exit code


def _fill_disk(stage: Stage) -> None:
    assert stage.disk is not None
    filler = bytes(max(0, stage.disk.free_bytes() - LEFT_BYTES))
    (stage.disk.path / "something-else").write_bytes(filler)
    coordinator = stage.programs[COORDINATOR]
    code, said = coordinator.wait(), coordinator.text()
    if code != RUN_ERROR or "Traceback" in said:
        raise AssertionError(f"exit code {code}: {said[-2000:]}")


def _make_room(stage: Stage) -> None:
    assert stage.disk is not None
    stage.disk.grow(64 * 1024)
    _resume(stage)


def _try_in_vain(stage: Stage) -> None:
    stage.programs[SITE].wait_for("cannot be reached")
    time.sleep(5)
    stage.coordinator()
    for hospital in (USER, "carol"):
        stage.site(hospital)
    stage.programs[COORDINATOR].wait_for(f"{USER} joined")


def _thaw_for_everybody(stage: Stage) -> None:
    stage.programs[COORDINATOR].thaw()
    now = time.monotonic()
    stage.first(lambda seen: all(seen.has(hospital) for hospital in stage.study.hospitals), now)


def _expire(stage: Stage) -> None:
    renew_site(stage.federation, SITE, days=-1)
    stage.programs[SITE].wait_for("expired")


def _renew(stage: Stage) -> None:
    install(renew_site(stage.federation, SITE).kit, load_site(stage.site_file(SITE)))


def _revoke(stage: Stage) -> None:
    revoke_site(stage.federation, SITE)
    stage.programs[SITE].wait()


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


def _killed(fault: str, name: str = SITE, **values: Any) -> Scene:
    """Killed, and started again by its supervisor."""
    scene: dict[str, Any] = {
        "cause": _of(name, "kill"),
        "seconds": RESTART_SECONDS,
        "cure": lambda stage: stage.site(name),
        "site": name,
        "begin": _in_a_round,
    }
    return Scene(fault, **{**scene, **values})


def _clock(machine: str, seconds: int) -> Scene:
    """Somebody sets the wall clock of one machine, and sets it right again."""
    owner = "coordinator's" if machine == COORDINATOR else f"{machine}'s"
    return Scene(
        f"{owner} clock stepped by {seconds:+d} s",
        _step_and_back(machine, seconds),
        cure=lambda _stage: None,
        site=None if machine == COORDINATOR else machine,
        begin=_with_clock_of(machine),
        needs_compiler=True,
    )


def _line(fault: str, seconds: float, *sites: str) -> Scene:
    """Every packet vanishes for a while, without notice to either side."""

    def cut(stage: Stage) -> None:
        for site in sites:
            stage.networked.cut(site)

    def restore(stage: Stage) -> None:
        for site in sites:
            stage.networked.restore(site)

    return Scene(
        f"{fault} cut for {seconds:g} s and restored",
        cut,
        seconds,
        restore,
        site=sites[0],
        needs_network=True,
    )


SCENES: Mapping[str, Scene] = {
    "killed-idle": _killed(
        "site killed while idle",
        begin=_waiting_for_carol,
        cure=lambda stage: [stage.site(name) for name in (SITE, "carol")],
    ),
    "killed-training": _killed("site killed while training"),
    "killed-uploading": _killed(
        "site killed while uploading",
        begin=_in_an_upload,
        study=LARGE_MODEL,
        needs_network=True,
        slow_line_of=SITE,
    ),
    "frozen": Scene("site frozen for 45 s", _of(SITE, "freeze"), 45, _of(SITE, "thaw")),
    "slow": Scene("site slower than the deadline for 15 s", _slow_down, cure=lambda _stage: None),
    "late-joiner": Scene(
        "late joiner",
        lambda _stage: None,
        cure=lambda stage: stage.site(SITE),
        begin=lambda stage: stage.begin(without=SITE),
        study=SHORT_WAIT,
    ),
    "leaves": Scene("site leaves for ever", _leave, study={"rounds": 12}),
    "user-killed": _killed("the user's own site killed while training", USER, begin=Stage.begin),
    "coordinator-killed": Scene(
        "coordinator killed; `erosion server --resume`",
        _of(COORDINATOR, "kill"),
        cure=_resume,
        site=None,
        begin=_late_in_the_study,
    ),
    "disk-full": Scene(
        "disk full at the coordinator; `erosion server --resume`",
        _fill_disk,
        cure=_make_room,
        site=None,
        small_disk_kilobytes=256,
    ),
    "coordinator-frozen": Scene(
        "coordinator frozen for 300 s",
        _of(COORDINATOR, "freeze"),
        300,
        _thaw_for_everybody,
        site=None,
    ),
    "clock-ahead": _clock(COORDINATOR, 300),
    "clock-behind": _clock(COORDINATOR, -300),
    "site-clock-ahead": _clock(SITE, 300),
    "site-clock-behind": _clock(SITE, -300),
    "coordinator-absent": Scene(
        "coordinator out of reach when the site starts",
        _try_in_vain,
        cure=lambda _stage: None,
        begin=lambda stage: stage.site(SITE),
    ),
    "line-cut": _line("line", 60, SITE),
    "peers-cut": _line("lines of all peers", 32, SITE, "carol"),
    "line-cut-briefly": _line("line", 8, SITE),
    "user-line-cut": _line("the user's own line", 8, USER),
    "duplicate-key": Scene(
        "the same key a second time",
        lambda stage: stage.copied_site(SITE).wait_for("in use"),
        said_by="copy",
    ),
    "expired-key": Scene("a site's key expires; it is renewed", _expire, cure=_renew),
    "revoked": Scene("a site's key is revoked", _revoke),
}


def play(scene: Scene, folder: Path, *, program: type[Program] = Program, **changes: Any) -> Row:
    """Set the stage, let the fault happen, and take everything down; `changes` are the study's."""
    kilobytes = scene.small_disk_kilobytes
    with (
        SmallDisk(folder / "run", kilobytes) if kilobytes else nullcontext() as disk,
        Network(*HOSPITALS) if scene.needs_network else nullcontext() as network,
        Stage(folder, small_study(**{**scene.study, **changes}), network, disk, program) as stage,
    ):
        if network is not None and scene.slow_line_of:
            network.slow_down(scene.slow_line_of, SLOW_LINE_KILOBITS)
        return scene.act(stage)
