"""The verdict on two arms: a paired sign-flip test with a bounded rate of false claims."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from erosion.client.evaluation.metrics import told
from erosion.common.protocol.messages import SIGNIFICANCE, Comparison, conclude
from erosion.common.tasks.task import Floats, Targets, Task

EXACT_UP_TO = 16  # patients: 65,536 sign patterns
RANDOM_FLIPS = 20_000  # sign patterns, where few comparisons are looked at together
MOST_FLIPS = 1_000_000
CHUNK = 2_000_000  # signs in memory at a time


def compare(
    task: Task,
    arms: tuple[str, str],
    predictions: tuple[Floats, Floats],
    targets: Targets,
    *,
    seed: int,
    level: float = SIGNIFICANCE,
    strict: bool = False,
    comparisons: int = 1,
) -> Comparison:
    """The first arm against the second, by the task's loss of each test patient.

    `predictions` are each (n, k); or (m, n, k), several of each patient, whose losses are averaged
    first. No difference is claimed unless
    p <= `level` and the smallest group of patients that the task needs has at least five: those
    outside the commonest class, or events. If `strict`, the p-value is the larger one of these and
    of these with one patient more, on whom the better arm errs as badly as the loss allows: errors
    on rare patients may be absent from a sample. So it can be adjusted as any p-value is.
    `comparisons`: how many such p-values may be adjusted together, see `flips_for`. With several
    predictions of each patient the p-value of each alone is given, too.
    """
    flips = flips_for(comparisons, level)

    def p_of(differences: Floats) -> float:
        p_value = sign_flip_p_value(differences, seed=seed, flips=flips)
        if not strict:
            return p_value
        worst = task.largest_difference
        return max(p_value, _p_value_with_one_more(differences, worst, seed=seed, flips=flips))

    arm, reference = (_losses(task, p, targets) for p in predictions)
    differences: Floats = arm.mean(axis=0) - reference.mean(axis=0)
    smallest = task.smallest_group(targets)
    mean = float(differences.mean())
    p_value = p_of(differences)
    return Comparison(
        arm=arms[0],
        reference=arms[1],
        num_patients=len(differences),
        smallest_class=smallest,
        mean_difference=told(mean),
        p_value=p_value,
        conclusion=conclude(mean, p_value, smallest, level),
        level=level,
        strict=strict,
        p_by_cut=tuple(map(p_of, arm - reference)) if len(arm) > 1 else (),
        flips=0 if len(differences) <= EXACT_UP_TO else flips,
    )


def _losses(task: Task, predictions: Floats, targets: Targets) -> Floats:
    """By each of the predictions: (m, n)."""
    each = predictions[None] if predictions.ndim == 2 else predictions
    return np.stack([task.patient_losses(one, targets) for one in each])


def _p_value_with_one_more(differences: Floats, worst: float, *, seed: int, flips: int) -> float:
    """With a patient more who is as far out on the other side; 1 where that turns the mean."""
    sign = np.sign(differences.sum())
    if not worst < abs(differences.sum()):
        return 1.0
    return sign_flip_p_value(np.append(differences, -sign * worst), seed=seed, flips=flips)


def flips_for(comparisons: int, level: float) -> int:
    """So many random patterns that the smallest p-value, times `comparisons`, is within `level`.

    Holm's method multiplies it like that. There are no more than MOST_FLIPS.
    """
    return min(max(RANDOM_FLIPS, ceil(comparisons / level)), MOST_FLIPS)


def sign_flip_p_value(differences: Floats, *, seed: int, flips: int = RANDOM_FLIPS) -> float:
    """Two-sided p-value of the mean of paired differences (n,) being 0.

    If the arms are alike, each patient's difference could as well have had the other sign. The
    p-value is the share of sign patterns whose sum is at least as far from 0 as the observed one:
    all of them up to 16 patients, else `flips` random ones and the observed one.
    """
    num_patients = len(differences)
    # Patterns with the observed sum must count, whatever order their sum was rounded in.
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if num_patients <= EXACT_UP_TO:
        patterns = np.arange(2**num_patients)[:, None] >> np.arange(num_patients) & 1
        return float(np.mean(_far_out(patterns, differences, observed)))
    generator = np.random.default_rng(seed)
    at_a_time = max(1, CHUNK // num_patients)
    count = 0
    for start in range(0, flips, at_a_time):
        rows = min(at_a_time, flips - start)
        patterns = generator.integers(2, size=(rows, num_patients), dtype=np.int8)
        count += int(_far_out(patterns, differences, observed).sum())
    return (1 + count) / (1 + flips)


def _far_out(
    patterns: NDArray[np.int64] | NDArray[np.int8], differences: Floats, observed: float
) -> NDArray[np.bool_]:
    """For every row of 0/1 (some, n): is the sum of the differences with those signs as far out?"""
    sums = 2 * (patterns.astype(np.float64) @ differences) - differences.sum()
    far: NDArray[np.bool_] = np.abs(sums) >= observed
    return far
