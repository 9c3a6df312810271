"""A study as a Flower Strategy: `start` runs all of it, and every round goes through its callbacks.

`configure_train` waits for a quorum and asks the hospitals that the method listens to;
`aggregate_train` screens their updates, measures distances, erodes weights, and makes the user's
next model. What lasts is in the arm's state, and Flower's own bookkeeping is not needed to resume.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from erosion_common.protocol.flower import to_array, to_record
from erosion_common.rounds.arm import Arm
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.driver import OpenRound
from erosion_common.rounds.records import RoundRecord, RunState
from erosion_common.rounds.strategy import RoundStrategy
from erosion_common.rounds.study import StudyOutcome, run_study
from erosion_server.coordination.network import NetworkChannel


class StudyStrategy(RoundStrategy):
    """Runs a study for one user; `outcome` has what Flower's `Result` has no room for."""

    outcome: StudyOutcome
    grid: Grid

    def __init__(self, ctx: RunContext, channel: NetworkChannel) -> None:
        """`channel` is that of `ctx`."""
        self._ctx, self._channel = replace(ctx, run_round=self.run_round), channel
        self._arm: Arm | None = None  # under way
        self._round: OpenRound | None = None

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, *options: Any, **named: Any
    ) -> Result:
        """Runs the study; its file replaces Flower's arguments. Raises RunError."""
        if initial_arrays or options or named:
            raise TypeError("start(grid) is all: rounds, deadline and model are the study file's.")
        self.grid = grid
        self.outcome = run_study(self._ctx)
        return Result(arrays=_arrays(next(iter(self.outcome.finals.values()))))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the requests of the round's first exchange."""
        del server_round, arrays, config, grid
        assert self._arm is not None, "start has not begun"
        self._round = OpenRound(self._ctx_of_arm, self._arm)
        return self._channel.messages(self._round.requests(), self._round.seconds)

    def conclude(
        self, replies: Iterable[Message]
    ) -> tuple[RoundRecord, ArrayRecord | None, Mapping[str, Any]]:
        """Takes the replies, and asks what the method wants beyond the first exchange."""
        assert self._arm is not None
        assert self._round is not None, "Flower calls configure_train first"
        round_, self._round = self._round, None
        round_.take(self._channel.replies(replies, round_.seconds))
        del replies
        while not round_.is_over:
            round_.take(self._channel.ask(round_.requests(), round_.seconds))
        record = round_.close()
        metrics = {} if record.user_metrics is None else record.user_metrics.model_dump()
        known = {name: value for name, value in metrics.items() if value is not None}
        return record, _arrays(self._arm.state) if record.outcome == "done" else None, known

    def run_round(self, ctx: RunContext, arm: Arm) -> RoundRecord:
        """Run one round as Flower's loop would."""
        self._ctx_of_arm, self._arm, number = ctx, arm, arm.state.round + 1
        messages = self.configure_train(number, ArrayRecord(), ConfigRecord(), self.grid)
        seconds = ctx.study.federation.round_deadline_seconds
        self.aggregate_train(number, self.grid.send_and_receive(messages, timeout=seconds))
        return self.record


def _arrays(state: RunState) -> ArrayRecord:
    return to_record({"parameters": to_array(state.params)})
