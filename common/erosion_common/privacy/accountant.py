"""The exact epsilon, at a delta, of several releases with Gaussian noise.

A release has a *strength*: 1 / (noise multiplier)^2, where the noise's deviation is the multiplier
times the most that one patient can change the released sum. Releases compose by adding their
strengths, however the later ones depend on the earlier (Dong, Roth and Su, Gaussian Differential
Privacy, 2022; with multipliers that are chosen on the way: Smith and Thakurta, Fully Adaptive
Composition for Gaussian Differential Privacy, 2022). All of them together are one Gaussian
mechanism, of which Balle and Wang (Improving the Gaussian Mechanism, 2018, theorem 8) give delta
for every epsilon. Nothing is sampled, so no numerical accountant is needed; the tests compare the
figures with one.
"""

from functools import lru_cache
from math import ceil, exp, inf, log, sqrt

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
