"""Predictions of two arms made up so that their mean losses are known, and rules that judge them.

A patient's log odds are normal; each arm knows them up to an independent error. `declared` is the
program's own rule; the others are what might hold where that one does not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from erosion_client.evaluation.final_figures import RANDOM_FLIPS
from erosion_common.protocol.messages import FEWEST_OF_A_CLASS, SIGNIFICANCE
from erosion_common.tasks.metric import PROBABILITY_FLOOR

Floats = NDArray[np.float64]
Claims = NDArray[np.int64]

ROWS = 1000  # sign patterns at a time
BETTING_LEVEL = 0.05
TIGHT_FLOOR = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Studies:
    """What two arms predicted in many simulated studies of n test patients."""

    first: Floats  # (studies, n) the chance that the first arm gave to what was the case
    second: Floats  # (studies, n)
    positive: NDArray[np.bool_]  # (studies, n) the patient's class

    @property
    def large_enough(self) -> NDArray[np.bool_]:
        """(studies,) whether each class has the five patients that a claim needs."""
        count = self.positive.sum(axis=1)
        enough: NDArray[np.bool_] = (
            np.minimum(count, self.positive.shape[1] - count) >= FEWEST_OF_A_CLASS
        )
        return enough

    def log_losses(self, floor: float = PROBABILITY_FLOOR) -> Floats:
        """First minus second, per patient."""
        first, second = (np.clip(chance, floor, 1 - floor) for chance in (self.first, self.second))
        return np.log(second) - np.log(first)

    def brier_scores(self) -> Floats:
        """First minus second, per patient; between -1 and 1."""
        return (1 - self.first) ** 2 - (1 - self.second) ** 2


def sign_flip_p_values(differences: Floats, *, flips: int = RANDOM_FLIPS) -> Floats:
    """Return two-sided p-values of (studies, n) differences, all by the same patterns."""
    generator = np.random.default_rng(0)
    sums = differences.sum(axis=1)
    observed = np.abs(sums) - 1e-12 * np.abs(differences).sum(axis=1)
    count = np.zeros(len(differences), dtype=np.int64)
    for start in range(0, flips, ROWS):
        shape = (min(ROWS, flips - start), differences.shape[1])
        patterns = generator.integers(2, size=shape, dtype=np.int8)
        flipped = 2 * (patterns.astype(np.float64) @ differences.T) - sums
        count += (np.abs(flipped) >= observed).sum(axis=0)
    return (1 + count) / (1 + flips)


def claims_at(differences: Floats, level: float) -> Claims:
    """Return what the sign-flip test claims."""
    significant = sign_flip_p_values(differences) <= level
    return np.where(significant, np.sign(differences.sum(axis=1)), 0).astype(np.int64)


def _one_more(differences: Floats, worst: float, level: float) -> Claims:
    """Only what would also be claimed with one more patient who speaks against it at the worst."""
    against = -np.sign(differences.sum(axis=1, keepdims=True)) * worst
    before = np.sign(differences.sum(axis=1))
    after = claims_at(np.hstack([differences, against]), level)
    return np.where(after == before, after, 0)


def _agreeing(one: Claims, other: Claims) -> Claims:
    return np.where(one == other, one, 0)


def betting_claims(differences: Floats, bound: float, level: float) -> Claims:
    """Return a bet against a mean of 0 of values in [-bound, bound] (Waudby-Smith and Ramdas 2024).

    Valid for any such distribution. Stakes are set from the patients before, in their order; two
    gamblers, each on one sign, have half of the level.
    """
    studies, n = differences.shape
    values = differences / (2 * bound) + 0.5
    log_up, log_down = np.zeros(studies), np.zeros(studies)
    most_up, most_down = np.zeros(studies), np.zeros(studies)
    total, squares = np.full(studies, 0.5), np.full(studies, 0.25)
    for place in range(n):
        seen = place + 1
        mean, variance = total / seen, squares / seen
        stake = np.sqrt(2 * np.log(2 / level) / (variance * seen * np.log(1 + seen)))
        stake = np.minimum(stake, 1.0)  # of 1 / 0.5: half of what may be staked
        gain = stake * (values[:, place] - 0.5)
        log_up += np.log1p(gain)
        log_down += np.log1p(-gain)
        most_up, most_down = np.maximum(most_up, log_up), np.maximum(most_down, log_down)
        total = total + values[:, place]
        squares = squares + (values[:, place] - mean) ** 2
    threshold = np.log(2 / level)
    claims: Claims = np.int64(1) * (most_up >= threshold) - (most_down >= threshold)
    return claims


LOG_RANGE = float(
    np.log((1 - PROBABILITY_FLOOR) / PROBABILITY_FLOOR)
)  # of one patient's difference

RULES: Mapping[str, Callable[[Studies], Claims]] = {
    "declared": lambda s: claims_at(s.log_losses(), SIGNIFICANCE),
    "p <= .01": lambda s: claims_at(s.log_losses(), 0.01),
    "tighter clip": lambda s: claims_at(s.log_losses(TIGHT_FLOOR), SIGNIFICANCE),
    "and Brier": lambda s: _agreeing(
        claims_at(s.log_losses(), SIGNIFICANCE), claims_at(s.brier_scores(), SIGNIFICANCE)
    ),
    "one more patient": lambda s: _one_more(s.log_losses(), LOG_RANGE, SIGNIFICANCE),
    "one more, Brier": lambda s: _one_more(s.brier_scores(), 1.0, SIGNIFICANCE),
    "betting": lambda s: betting_claims(s.log_losses(), LOG_RANGE, BETTING_LEVEL),
}


def claims_of(rule: str, studies: Studies) -> Claims:
    """Return what a rule claims, where there are enough patients."""
    return np.where(studies.large_enough, RULES[rule](studies), 0)


Predict = Callable[[Floats, np.random.Generator], Floats]  # true log odds -> an arm's

LOG_ODDS = (0.0, 1.5)  # mean and deviation over patients
GROSS_SHARE = 0.03
GROSS_ODDS = 6.0  # beyond the clip
OVERCONFIDENT = 2.0
POPULATION = 200_000  # patients for setting errors so that mean losses are equal
GAINS = (0.03, 0.06, 0.10)  # mean log loss; differences that methods make on real data


def _noisy(deviation: float) -> Predict:
    return lambda odds, generator: odds + deviation * generator.standard_normal(odds.shape)


def _scaled(factor: float) -> Predict:
    return lambda odds, _generator: factor * odds


def gross(odds: Floats, generator: np.random.Generator, happened: NDArray[np.bool_]) -> Floats:
    """Return chances that are right but for a few patients, where the opposite is sure."""
    rare = generator.random(odds.shape) < GROSS_SHARE
    return np.where(rare, np.where(happened, -GROSS_ODDS, GROSS_ODDS), odds)


def chance_of_truth(odds: Floats, happened: NDArray[np.bool_]) -> Floats:
    """Return the chance that an arm with these log odds gives to what was the case."""
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
    """Return an arm that is sure of its patients, rightly but for a few, and a cautious one.

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
    """Return the arm of a family with mean loss `loss`; it grows from `low` to `high`."""
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
