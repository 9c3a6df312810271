"""95 % intervals that hold where a model errs on few patients, or on none.

A bootstrap draws the patients that were seen. Where they show no error, no draw has one: its
interval has no width, and where they show few it is too narrow. A score interval asks instead which
true values would have shown what was seen.
"""

from math import sqrt

import numpy as np

from erosion.common.tasks.task import Bounds, Floats

Z = 1.959963984540054  # of the normal distribution's 97.5 %
HALVINGS = 40


def of_mean(seen: Floats, other: Floats) -> Bounds:
    """Of a mean over patients (n,), of which some could have had the other value (n,).

    The ends are those shares of patients with the largest or smallest of the two values that could
    have gone unseen. For 0 and 1 this is the binomial share's interval (Wilson 1927).
    """
    mean, variance, count = float(seen.mean()), float(seen.var()), len(seen)

    def end(value: float) -> float:
        """Where `share` have this value, mean and variance are those of the mixture.

        share^2 gap^2 = Z^2 / count ((1 - share) variance + share (1 - share) gap^2)
        """
        gap, ratio = value - mean, Z**2 / count
        a, b = gap**2 * (1 + ratio), ratio * (variance - gap**2)
        if a == 0:
            return mean
        share = (sqrt(b**2 + 4 * a * ratio * variance) - b) / (2 * a)
        return mean + share * gap

    return end(float(np.minimum(seen, other).mean())), end(float(np.maximum(seen, other).mean()))


def of_ranking(chance: float, group: int, others: int) -> Bounds:
    """Of the chance that one of a group ranks above one of the others (Newcombe 2006, method 5).

    Its variance is Hanley and McNeil's (1982), at the value that is asked about.
    """
    pairs, more = group * others, (group + others) / 2 - 1

    def is_too_far(value: float) -> bool:
        spread = 1 + more * ((1 - value) / (2 - value) + value / (1 + value))
        return (chance - value) ** 2 > Z**2 * value * (1 - value) * spread / pairs

    def end(far: float) -> float:
        near = chance
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            near, far = (near, middle) if is_too_far(middle) else (middle, far)
        return far

    return end(0.0), end(1.0)
