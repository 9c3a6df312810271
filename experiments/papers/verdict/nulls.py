"""Two arms' predictions made up so that the difference of their mean losses is known.

A patient's log odds are normal; each arm knows them up to an error of its own. The losses are the
program's: log loss with chances clipped to [.01, .99].
"""

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from erosion.common.tasks.classification import PROBABILITY_FLOOR
from erosion.experiments.papers.verdict.rules import Studies

Floats = NDArray[np.float64]
Predict = Callable[[Floats, np.random.Generator], Floats]  # true log odds -> an arm's

LOG_ODDS = (0.0, 1.5)  # mean and deviation over patients
GROSS_SHARE = 0.03
GROSS_ODDS = 6.0  # beyond the clip
OVERCONFIDENT = 2.0
POPULATION = 200_000  # patients by whom errors are set so that mean losses are equal
GAINS = (0.03, 0.06, 0.10)  # mean log loss; differences that methods make on real data


def _noisy(deviation: float) -> Predict:
    return lambda odds, generator: odds + deviation * generator.standard_normal(odds.shape)


def _scaled(factor: float) -> Predict:
    return lambda odds, _generator: factor * odds


def gross(odds: Floats, generator: np.random.Generator, happened: NDArray[np.bool_]) -> Floats:
    """Right but for a few patients, of whom the opposite is all but certain to it."""
    rare = generator.random(odds.shape) < GROSS_SHARE
    return np.where(rare, np.where(happened, -GROSS_ODDS, GROSS_ODDS), odds)


def chance_of_truth(odds: Floats, happened: NDArray[np.bool_]) -> Floats:
    """The chance that an arm with these log odds gives to what was the case."""
    chance: Floats = 1 / (1 + np.exp(np.where(happened, -odds, odds)))
    return chance


def draw(kind: str, studies: int, patients: int, seed: int) -> Studies:
    """Simulated studies of one of `KINDS` or `EASY`: the second arm is the plainer one."""
    generator = np.random.default_rng(seed)
    if kind == EASY:
        return _easy((studies, patients), generator)
    odds = _odds((studies, patients), generator)
    happened = generator.random(odds.shape) < 1 / (1 + np.exp(-odds))
    first, second = KINDS[kind]()
    of_first = gross(odds, generator, happened) if first is None else first(odds, generator)
    return Studies(
        chance_of_truth(of_first, happened),
        chance_of_truth(second(odds, generator), happened),
        happened,
    )


def _easy(shape: tuple[int, int], generator: np.random.Generator) -> Studies:
    """Patients whom the first arm is certain of, with reason but for a few; the second is cautious.

    The second's loss is the same for every patient: the first's mean loss, clipped.
    """
    happened = generator.random(shape) < 0.5
    wrong = generator.random(shape) < GROSS_SHARE
    loss = -GROSS_SHARE * np.log(PROBABILITY_FLOOR)
    loss -= (1 - GROSS_SHARE) * np.log(1 - PROBABILITY_FLOOR)
    return Studies(np.where(wrong, 0.0, 1.0), np.full(shape, np.exp(-loss)), happened)


def _odds(shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
    mean, deviation = LOG_ODDS
    return mean + deviation * generator.standard_normal(shape)


def mean_loss(predict: Predict | None) -> float:
    """Clipped log loss of an arm over a large population; None is the grossly erring one."""
    generator = np.random.default_rng(1)
    odds = _odds((1, POPULATION), generator)
    happened = generator.random(odds.shape) < 1 / (1 + np.exp(-odds))
    found = gross(odds, generator, happened) if predict is None else predict(odds, generator)
    chance = np.clip(chance_of_truth(found, happened), PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    return float(-np.log(chance).mean())


def _with_loss(family: Callable[[float], Predict], low: float, high: float, loss: float) -> Predict:
    """The arm of a family whose mean loss, which grows from `low` to `high`, is `loss`."""
    for _ in range(30):
        middle = (low + high) / 2
        if mean_loss(family(middle)) < loss:
            low = middle
        else:
            high = middle
    return family((low + high) / 2)


@cache
def _as_bad_as_gross() -> Predict:
    return _with_loss(_noisy, 0.0, 5.0, mean_loss(None))


@cache
def _as_bad_as_overconfident() -> Predict:
    # 1 is right, 0 knows nothing: the loss grows while the factor falls.
    return _with_loss(lambda x: _scaled(-x), -1.0, 0.0, mean_loss(_scaled(OVERCONFIDENT)))


@cache
def _worse_by(gain: float) -> Predict:
    return _with_loss(_noisy, 0.0, 5.0, mean_loss(_noisy(0.3)) + gain)


def _gaining(gain: float) -> tuple[Predict | None, Predict]:
    return _noisy(0.3), _worse_by(gain)


KINDS: Mapping[str, Callable[[], tuple[Predict | None, Predict]]] = {
    "alike": lambda: (_noisy(0.7), _noisy(0.7)),
    "gross errors": lambda: (None, _as_bad_as_gross()),
    "overconfident": lambda: (_scaled(OVERCONFIDENT), _as_bad_as_overconfident()),
    **{f"gain {gain:.2f}": partial(_gaining, gain) for gain in GAINS},
}
EASY = "gross errors on easy patients"
NULLS = ("alike", "gross errors", EASY, "overconfident")
