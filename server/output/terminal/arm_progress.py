"""The progress of one arm: the contents of the terminal's lines."""

from bisect import insort
from collections.abc import Sequence

from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.records import RoundRecord
from erosion.common.tasks.metric import Metric
from erosion.server.output.plain_text import metric_text, seconds_text
from erosion.server.output.round_news import News, news_of

REMARKS = {"absent": "absent", "rejected": "rejected"}  # by a hospital's outcome


class ArmProgress:
    """Filled round by round. Mappings are replaced, never changed: another thread may draw them."""

    def __init__(
        self, arm: str, rounds: int, hospitals: Sequence[str], shown: Sequence[Metric] = ()
    ) -> None:
        """`hospitals` gives the order in which weights are shown, `shown` the user's figures."""
        self.arm = arm
        self.rounds = rounds
        self.round = 0  # finished, those of an earlier start included
        self.metrics: Metrics | None = None  # the user's latest
        self.metrics_after = 0  # rounds after which `metrics` was measured
        self.weights: dict[str, float | None] = {}
        self.remarks: dict[str, str] = {}
        self.skipped = 0  # rounds
        self.seconds = 0.0  # of the rounds of this start together
        self._hospitals = tuple(hospitals)
        self._shown = tuple(shown)
        self._sorted_seconds: list[float] = []
        self._seen: set[tuple[str, str, str, str]] = set()
        self._trouble: dict[tuple[str, str], int] = {}  # (hospital, kind) -> rounds

    def take(self, record: RoundRecord) -> list[News]:
        """Note a round; returns what is news. A hospital's trouble is news once, not each round."""
        self.round = record.round
        self.seconds += record.seconds
        insort(self._sorted_seconds, record.seconds)
        if record.user_metrics is not None:
            self.metrics, self.metrics_after = record.user_metrics, record.measured_after
        present = [*self._hospitals, *(h for h in record.hospitals if h not in self._hospitals)]
        entries = {name: record.hospitals[name] for name in present if name in record.hospitals}
        self.weights = {
            **self.weights,
            **{
                name: entry.weight_after if entry.weight_after is not None else entry.weight_before
                for name, entry in entries.items()
            },
        }
        self.remarks = {
            name: REMARKS[entry.outcome]
            for name, entry in entries.items()
            if entry.outcome in REMARKS
        }
        return [event for event in news_of(record) if self._is_news(event)]

    def _is_news(self, event: News) -> bool:
        if event.kind == "stopped":
            return True
        if event.kind == "skipped":
            self.skipped += 1
            return True
        if event.kind in ("absent", "rejected"):
            key = event.hospital, event.kind
            self._trouble[key] = self._trouble.get(key, 0) + 1
        known = event.pattern in self._seen
        self._seen.add(event.pattern)
        return not known

    @property
    def median_seconds(self) -> float:
        """Of the rounds so far; 0 before the first."""
        return self._sorted_seconds[len(self._sorted_seconds) // 2] if self._sorted_seconds else 0.0

    @property
    def figures(self) -> str:
        """The user's metrics, or "" where there are none yet."""
        if self.metrics is None:
            return ""
        metrics = self.metrics
        return "  ".join(f"{m.label} {metric_text(m, metrics.get(m.name))}" for m in self._shown)

    @property
    def dated_figures(self) -> str:
        """The same, and after which round they were measured: the latest is still at work."""
        return f"after {self.metrics_after}: {self.figures}" if self.figures else ""

    @property
    def pace(self) -> str:
        """The median round."""
        return f"{seconds_text(self.median_seconds)} a round" if self.round else ""

    @property
    def closing(self) -> str:
        """One line about the finished arm.

        It has no figures: the last ones were measured before the last round, and beside the final
        table's they would seem to contradict it. Rounds of an earlier start are not timed.
        """
        timed = len(self._sorted_seconds)
        if not timed:
            return "complete already"
        rounds = _rounds(timed) if timed == self.round else f"{self.round} rounds, the last {timed}"
        return f"{rounds} in {seconds_text(self.seconds)}"

    @property
    def trouble(self) -> str:
        """Who was missing how often, in words; "" where all went well. The report says when."""
        parts = [f"{self.skipped} skipped"] if self.skipped else []
        for (hospital, kind), rounds in self._trouble.items():
            parts.append(f"{hospital} {kind} in {_rounds(rounds)}")
        return "; ".join(parts)


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
