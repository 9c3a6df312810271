"""The measurements of one benchmark run of one system."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Measurement:
    """One system, one model size: how long its rounds took and how much memory it needed."""

    name: str  # "stock", "streaming", "copy" or "ours"
    num_sites: int
    dim: int  # float32 parameters
    seconds_per_round: tuple[float, ...]  # (num_rounds,), the first round too
    peak_memory_mb: Mapping[str, float]  # role -> largest resident set of any one process, 1e6 B
    total_peak_memory_mb: float  # largest sum over all processes at one moment (sampled)
    seconds_by_part: Mapping[str, float] = field(default_factory=dict)  # part -> median per round

    @property
    def median_seconds(self) -> float:
        """The middle round."""
        return statistics.median(self.seconds_per_round)

    @property
    def p95_seconds(self) -> float:
        """The nearest-rank 95th percentile: with fewer than 20 rounds, the slowest round."""
        ranked = sorted(self.seconds_per_round)
        return ranked[math.ceil(0.95 * len(ranked)) - 1]
