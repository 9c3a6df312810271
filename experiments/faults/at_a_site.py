"""Faults of one hospital's machine."""

import time

from erosion.experiments.faults.program import Program
from erosion.experiments.faults.row import Observation, Row
from erosion.experiments.faults.stage import DEADLINE_SECONDS, Stage

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
