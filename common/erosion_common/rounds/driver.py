"""An arm's rounds. Read it from top to bottom.

run_arm     round after round: run, keep, emit, until it is over or hopeless
run_round   who is here and quorum -> ask -> screen -> undo or aggregate -> record
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from erosion_common.errors import HopelessError, RunError
from erosion_common.protocol.messages import Metrics
from erosion_common.rounds.arm import Arm
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.events import RoundFinished
from erosion_common.rounds.exchange import OpenRound
from erosion_common.rounds.records import RoundRecord
from erosion_common.support.logs import about


def run_arm(
    ctx: RunContext,
    arm: Arm,
    num_rounds: int,
    curve: Sequence[Metrics | None] = (),
    shown_as: Callable[[RoundRecord], RoundRecord] = lambda record: record,
) -> None:
    """Runs the rest of `num_rounds`; `curve`: the user's cross-fitted metrics. Raises RunError."""
    while not arm.is_over(num_rounds):
        with about(arm=arm.name, round=arm.state.round + 1):
            record = (ctx.run_round or run_round)(ctx, arm)
        if record.round <= len(curve):
            record = replace(record, user_metrics=curve[record.round - 1])
        ctx.store.keep_round(ctx.study, arm.state, record)
        arm.records.append(record)
        ctx.emit(RoundFinished(shown_as(record), is_trial=ctx.is_trial))
        _raise_if_hopeless(ctx, arm, num_rounds)


def run_round(ctx: RunContext, arm: Arm) -> RoundRecord:
    """Runs the next round and moves `arm` on. Raises RunError."""
    round_ = OpenRound(ctx, arm)
    while not round_.is_over:
        round_.take(ctx.channel.ask(round_.requests(), round_.seconds))
    return round_.close()


def _raise_if_hopeless(ctx: RunContext, arm: Arm, num_rounds: int) -> None:
    """Gives up after too many skipped rounds, or if too few hospitals can answer this run."""
    federation, user = ctx.study.federation, ctx.study.user
    left = len(ctx.study.hospitals) - len(arm.over)
    if arm.over and (user in arm.over or left < federation.quorum):
        raise HopelessError(
            "This run cannot be continued: " + "; ".join(f"{n}: {w}" for n, w in arm.over.items()),
            remedy="That is so where the run's folder was restored from a backup, and the hospitals"
            " have answered later rounds: begin again with `erosion server STUDY.toml`, without"
            " --resume.",
        )
    limit = federation.max_skipped_rounds
    if arm.state.skipped_in_a_row >= limit and not arm.is_over(num_rounds):
        raise RunError(
            f"{limit} rounds in a row were skipped in {arm.name}; the last because"
            f" {arm.records[-1].note}",
            remedy=f"{ctx.remedy} federation.max_skipped_rounds says how many are too many; with a"
            " higher federation.quorum a round waits for more hospitals.".lstrip(),
        )
