"""Differential privacy of a study: what it asks for, and what it excludes.

The guarantee is about each patient of each hospital but the user, for the whole run and against all
others together: what leaves the hospital has nearly the same distribution whether the record is
there or blank. So only noised updates and the number of patients may leave it for the study, and
nothing that is computed over its patients may go into a patient's gradient.

A release has a *strength*: 1 / (noise multiplier)^2, where the noise's deviation is the multiplier
times the most that one patient can change the released sum. Releases compose by adding their
strengths, however the later ones depend on the earlier (Dong, Roth and Su, Gaussian Differential
Privacy, 2022; with multipliers that are chosen on the way: Smith and Thakurta, Fully Adaptive
Composition for Gaussian Differential Privacy, 2022). All of them together are one Gaussian
mechanism, of which Balle and Wang (Improving the Gaussian Mechanism, 2018, theorem 8) give delta
for every epsilon. Nothing is sampled, so no numerical accountant is needed; the tests compare the
figures with one.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, exp, inf, log, sqrt
from typing import TYPE_CHECKING

from pydantic import Field

from erosion_common.algorithms.base import ArmBase
from erosion_common.settings.base import Settings
from erosion_common.tasks.inputs import TabularTask, takes_mean
from erosion_common.tasks.task import Task

if TYPE_CHECKING:
    from erosion_common.study.study import Study


class Privacy(Settings):
    """What the patients of the other hospitals are promised, and how their one step is taken."""

    epsilon: float = Field(
        gt=0,
        le=100,
        description="The most that a run may cost each patient of a hospital other than the "
        "user's, all arms and rounds together. Less is safer, and noisier.",
    )
    delta: float = Field(
        default=1e-5,
        gt=0,
        le=1e-3,
        description="The chance with which that promise may fail. It must be below 1 / patients "
        "of every hospital.",
    )
    clip_norm: float = Field(
        default=1.0,
        gt=0,
        description="The longest that a patient's gradient may be; a longer one is cut to it.",
    )
    learning_rate: float = Field(
        gt=0,
        description="Size of the one step that every hospital takes in a round. It can be larger "
        "than in `training`, because the step is the mean over all patients.",
    )

    def noise_multiplier(self, releases: int) -> float:
        """Return the noise's deviation in units of `clip_norm`, for that number of updates."""
        return noise_multiplier(self.epsilon, self.delta, releases)

    def noise_deviation(self, releases: int, patients: float) -> float:
        """Return that of each parameter of an update, by its number of patients."""
        noise = self.noise_multiplier(releases) * self.clip_norm
        return self.learning_rate * noise / patients

    def longest_noise(self, releases: int, patients: float, dim: int) -> float:
        """Return what the norm of the noise in an update (dim,) hardly ever exceeds."""
        # A normal vector is longer than sqrt(dim) + 6 with a chance of exp(-6^2 / 2) at most, by
        # the concentration of a function that is 1-Lipschitz. An update that is the mean of two
        # halves' has sqrt(2) times the noise of a whole one.
        return sqrt(2) * self.noise_deviation(releases, patients) * (sqrt(dim) + 6)


def problem_with_inputs(task: Task, scaling: str) -> str | None:
    """Return what the study computes over a hospital's patients before they train, or None."""
    if scaling in ("federated", "local"):
        return (
            f'scaling = "{scaling}" is made of sums over each hospital\'s patients, which have no'
            ' noise; write scaling = "user" (the user\'s means and deviations) or "none"'
        )
    if isinstance(task, TabularTask):
        for feature in task.features:
            policy = task.policy(feature)
            if policy == "mode" or (takes_mean(task, feature) and scaling == "none"):
                what = "commonest category" if policy == "mode" else "mean"
                return (
                    f"a missing {feature.name} would become the {what} of the hospital's patients,"
                    ' which has no noise; write missing = "indicator", "drop" or "refuse" there'
                )
    return task.why_not_apart() or None


def problem_with_runs(study: "Study") -> str | None:
    """Return what would have the hospitals train more often, or None."""
    if study.has_every_user:
        return 'user = "all" makes every hospital a user, without noise in its updates; name one'
    if study.repeats_training:
        return (
            "selection and evaluation.folds would spend the patients' privacy again on every trial"
            " or fold; choose settings beforehand, and give evaluation.test_share"
        )
    return None


def problem_with_arms(arms: Mapping[str, ArmBase]) -> str | None:
    """Return which arm such a study cannot have, or None."""
    if all(arm.user_only for arm in arms.values()):
        return "no arm asks another hospital; leave [privacy] out"
    for name, arm in arms.items():
        if problem := arm.problem_with_privacy():
            return f"arms.{name}: {problem}"
    return None


ROUNDING = 1 + 1e-9  # of an epsilon that is compared with a limit
_DIGITS = 1e4  # of a noise multiplier, rounded up, so that it is the same on every machine


def strength_of(noise_multiplier: float) -> float:
    """Return the strength of one release; infinite without noise."""
    return inf if noise_multiplier <= 0 else 1 / noise_multiplier**2


def delta_of(strength: float, epsilon: float) -> float:
    """Return the least delta at which releases of this strength are (epsilon, delta)-private."""
    if strength <= 0:
        return 0.0
    # Imported where there is privacy to account for: it takes half a second.
    from scipy.special import log_ndtr, ndtr

    mu = sqrt(strength)
    return float(ndtr(mu / 2 - epsilon / mu) - exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def epsilon_of(strength: float, delta: float) -> float:
    """Return the least epsilon at this delta; infinite where a release had no noise."""
    if strength == inf:
        return inf
    if delta_of(strength, 0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq

    # Zero-concentrated privacy bounds it: rho + 2 sqrt(rho log(1 / delta)), rho = strength / 2.
    most = strength / 2 + sqrt(2 * strength * log(1 / delta)) + 1.0
    return float(brentq(lambda epsilon: delta_of(strength, epsilon) - delta, 0.0, most))


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the least noise multiplier with which these releases are (epsilon, delta)-private."""
    from scipy.optimize import brentq

    def excess(mu: float) -> float:
        return delta_of(mu**2, epsilon) - delta

    weakest = strongest = 1.0
    while excess(weakest) >= 0:
        weakest /= 2
    while excess(strongest) < 0:
        strongest *= 2
    mu = float(brentq(excess, weakest, strongest, xtol=1e-12))
    return ceil(_DIGITS * sqrt(releases) / mu) / _DIGITS
