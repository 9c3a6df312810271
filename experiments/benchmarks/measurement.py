"""The same work for every system, and what one run of it measured.

A site returns the parameters that it received plus its own constant. The parameters are drawn at
random because Flower's object store is content-addressed: a model that repeats itself, or two
sites with the same update, would be uploaded once and flatter the systems that use the store.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from erosion_common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion_common.algorithms.base import Algorithm, RoundStart
from erosion_common.rounds.records import Absence, Answer, RoundRecord, RunState
from erosion_common.rounds.round import Round
from experiments.benchmarks.processes import BenchmarkError, Processes

Vector = npt.NDArray[np.float32]  # (dim,)


def initial_parameters(dim: int) -> Vector:
    """Return the model before round 1; the same for every system."""
    return np.random.default_rng(0).standard_normal(dim, dtype=np.float32)


def site_constant(site: int) -> np.float32:
    """Return what site 0, 1, ... adds to every parameter in every round."""
    return np.float32(site + 1)


def expected_shift(num_sites: int, num_rounds: int) -> float:
    """Return how far the unweighted mean of all sites moves a parameter: no site may be missing."""
    return num_rounds * (num_sites + 1) / 2


def advance(
    state: RunState,
    algorithm: Algorithm[Any],
    answers: Mapping[HospitalName, Answer],
    *,
    arm: str,
    user: HospitalName,
    quorum: int,
    cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort,
) -> tuple[RunState, RoundRecord]:
    """Return a whole round of a method that asks once: `answers` are all that was asked for."""
    answers = {user: Absence("was not connected"), **answers}
    names = tuple(answers)
    round_ = Round(
        state,
        algorithm,
        RoundStart(state.round + 1, user, names, state.params),
        arm=arm,
        wanted=names,
        spare=len(names) - quorum,
        cohort_of=cohort_of,
    )
    round_.answer(answers)
    return round_.outcome()


class RoundClock:
    """Appends one line per finished round to a file, as seconds of wall-clock time.

    The first `tick` starts the clock: call it when every site is connected.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._last: float | None = None

    def tick(self) -> None:
        """End a round, and begin the next one."""
        now = time.perf_counter()
        if self._last is not None:
            self._write({"seconds": now - self._last})
        self._last = time.perf_counter()

    def finish(self, shift: float) -> None:
        """Close the file with the proof that the work was done: how far a parameter moved."""
        self._write({"shift": shift})
        self._file.close()

    def _write(self, line: dict[str, float]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def read_rounds(path: Path, *, num_rounds: int, expected: float) -> tuple[float, ...]:
    """Read what a `RoundClock` wrote: seconds per round, (num_rounds,).

    Raises BenchmarkError when rounds are missing or when a site's update was left out.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seconds = tuple(float(line["seconds"]) for line in lines if "seconds" in line)
    shifts = [float(line["shift"]) for line in lines if "shift" in line]
    if len(seconds) != num_rounds or len(shifts) != 1:
        raise BenchmarkError(f"{len(seconds)} of {num_rounds} rounds ended")
    if abs(shifts[0] - expected) > 1e-3 * max(1.0, abs(expected)):
        raise BenchmarkError(
            f"the parameters moved by {shifts[0]:g}, expected {expected:g}: an update is missing"
        )
    return seconds


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
    """Return what a `RoundClock` wrote, and the memory of the processes. Raises BenchmarkError."""
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
