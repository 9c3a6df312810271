"""The measurements of one benchmark run of one system."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from erosion.experiments.benchmarks.processes import Processes
from erosion.experiments.benchmarks.workload import expected_shift, read_rounds


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


def measured(
    name: str, processes: Processes, clock: Path, *, num_sites: int, num_rounds: int, dim: int
) -> Measurement:
    """What a `RoundClock` wrote, and the memory of the processes. Raises BenchmarkError."""
    return Measurement(
        name=name,
        num_sites=num_sites,
        dim=dim,
        seconds_per_round=read_rounds(
            clock, num_rounds=num_rounds, expected=expected_shift(num_sites, num_rounds)
        ),
        peak_memory_mb=processes.memory.peaks_mb(),
        total_peak_memory_mb=processes.memory.total_peak_mb(),
    )
