"""Shared by our Flower strategies: rounds, with weights and distances as Flower's metrics."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from erosion_common.rounds.records import RoundRecord


class RoundStrategy(Strategy):
    """`configure_train` opens a round, `aggregate_train` screens, erodes and aggregates."""

    record: RoundRecord  # of the last round

    @abstractmethod
    def conclude(
        self, replies: Iterable[Message]
    ) -> tuple[RoundRecord, ArrayRecord | None, Mapping[str, Any]]:
        """Returns the open round's record, the next model, and what the user's node measured."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the user's next model, or None if the round is skipped. Raises RunError."""
        del server_round
        self.record, arrays, measured = self.conclude(replies)
        values: dict[str, Any] = dict(measured)
        for name, site in self.record.hospitals.items():
            if site.weight_after is not None:
                values[f"weight-{name}"] = float(site.weight_after)
            if site.distance is not None:
                values[f"distance-{name}"] = float(site.distance)
        return arrays, MetricRecord(values)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks nobody: the user's figures come with its update."""
        del server_round, arrays, config, grid
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Has nothing to aggregate."""
        del server_round, replies
        return None

    def summary(self) -> None:
        """Says nothing: events and logs do."""
