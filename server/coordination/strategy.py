"""The Flower strategy: a thin adapter, by which Flower's `start` drives the rounds of an arm."""

from collections.abc import Callable, Iterable, Iterator

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from erosion.common.rounds.arm_run import ArmRun, RoundSteps
from erosion.common.rounds.records import RoundRecord
from erosion.common.rounds.transport import Reply
from erosion.server.coordination.network import NetworkTransport


class _ArmEnded(Exception):  # noqa: N818 - how Flower's loop is left early
    """The arm's rule has stopped it."""


class PersonalizedStrategy(Strategy):
    """One arm of a study, for one user. Flower's `start` drives it round by round.

    The round number, the parameters and everything else that lasts are in the arm's `state`, not
    in Flower's own bookkeeping, so that a run can be resumed. A round's first exchange is Flower's;
    where a method has more, they follow over the same grid.
    """

    def __init__(
        self, run: ArmRun, transport: NetworkTransport, on_round: Callable[[RoundRecord], None]
    ) -> None:
        """`on_round` is called with the record of every round."""
        self._run, self._transport, self._on_round = run, transport, on_round
        self._steps: RoundSteps | None = None
        self._num_rounds = 0  # of the arm, once it is played

    def play(self, grid: Grid, num_rounds: int) -> None:
        """Go on until the arm has had so many rounds, or its rule stops it. Raises RunError."""
        self._num_rounds = num_rounds
        if self._run.is_over(num_rounds):
            return
        try:
            self.start(
                grid,
                ArrayRecord(),  # the arm's own state holds the parameters
                num_rounds=num_rounds - self._run.state.round,
                timeout=self._run.study.federation.round_deadline_seconds,
            )
        except _ArmEnded:
            return

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The requests of the round's first exchange."""
        del server_round, arrays, config, grid
        self._steps = self._run.round()
        exchange = next(self._steps)
        return self._transport.messages(exchange.requests, exchange.seconds)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand in the replies, see to what the round asks beyond, and note what came of it."""
        del server_round
        assert self._steps is not None, "Flower calls configure_train first"
        steps, deadline = self._steps, self._run.study.federation.round_deadline_seconds
        answered: Iterator[Reply] = self._transport.replies(replies, deadline)
        del replies
        try:
            while True:
                exchange = steps.send(answered)
                answered = self._transport.ask(exchange.requests, exchange.seconds)
                del exchange
        except StopIteration as end:
            record: RoundRecord = end.value
        self._steps = None
        self._on_round(record)
        self._run.raise_if_hopeless(record, self._num_rounds)
        if self._run.state.stopped:
            raise _ArmEnded
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the user's metrics ride on its train reply."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing was asked."""
        del server_round, replies
        return None

    def summary(self) -> None:
        """Nothing: the observer tells people what happens."""
