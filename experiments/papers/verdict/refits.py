"""Whole studies, many of them: what a verdict says of two arms, and what is true of them.

An arm is a logistic regression on the user's patients and, at weights of its own, the others':
`local` 0, `half` .5, `full` 1. That is what the program's arms come to when they are trained to the
end, and it is so cheap that every study is cross-fitted several times. `half` and `full` differ
little: the case in which cross-fitting is weakest, because models of fewer of the user's patients
lean more on the others'. `some` and `rest` each count one half of the others, who are drawn alike,
so that neither is better but by the luck of the draw.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion.common.protocol.messages import FEWEST_OF_A_CLASS
from erosion.common.tasks.classification import PROBABILITY_FLOOR
from erosion.experiments.papers.verdict.populations import Population
from erosion.experiments.papers.verdict.rules import sign_flip_p_values

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

ARMS: Mapping[str, tuple[float, float]] = {  # what each half of the others' patients counts
    "local": (0.0, 0.0),
    "half": (0.5, 0.5),
    "full": (1.0, 1.0),
    "some": (1.0, 0.0),
    "rest": (0.0, 1.0),
}
PAIRS = (("full", "local"), ("full", "half"), ("some", "rest"))
OTHERS = 400  # patients of the other hospitals
WRONG_SHARE = 0.25  # of the others' classes are the wrong way round, in the scenario "wrong"
TEST_SHARE = 0.3
MOST_TRUTH = 5000  # patients on whom the delivered models are compared
RIDGE = 1.0  # half of it times the squared coefficients is added to the summed loss
NEWTON_STEPS = 6
HOLD_OUT = "hold-out"
TRUTH, TRUTH_OF_TRAINING_PART = "truth", "truth of the training part"
SCHEMES: Mapping[str, tuple[int, int]] = {  # folds, repeats
    "5 folds": (5, 1),
    "5 folds, 5 times": (5, 5),
    "10 folds": (10, 1),
    "10 folds, 5 times": (10, 5),
}


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One study's patients: the user's, the others', and those by whom the truth is known."""

    inputs: Floats  # (user's + others', inputs)
    classes: NDArray[np.bool_]
    num_user: int
    truth_inputs: Floats
    truth_classes: NDArray[np.bool_]


def draw(
    population: Population, patients: int, scenario: str, generator: np.random.Generator
) -> Draw:
    """Different patients each; with scenario "wrong" some of the others' classes are turned."""
    inputs, classes = population
    order = generator.permutation(len(classes))
    chosen, rest = order[: patients + OTHERS], order[patients + OTHERS :][:MOST_TRUTH]
    seen = classes[chosen].copy()
    if scenario == "wrong":
        turned = generator.random(OTHERS) < WRONG_SHARE
        seen[patients:] ^= turned
    return Draw(inputs[chosen], seen, patients, inputs[rest], classes[rest])


def fit(inputs: Floats, classes: NDArray[np.bool_], weights: Floats) -> Floats:
    """Coefficients (fits, inputs) of ridge logistic regressions with weights (fits, n)."""
    fits, size = len(weights), inputs.shape[1]
    products = (inputs[:, :, None] * inputs[:, None, :]).reshape(len(inputs), -1)
    ridge = RIDGE * np.eye(size)
    ridge[-1, -1] = 1e-3  # hardly any on the intercept
    found = np.zeros((fits, size))
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(found @ inputs.T, -30, 30)))  # (fits, n)
        slope = (weights * (chance - classes)) @ inputs + found @ ridge
        curve = ((weights * chance * (1 - chance)) @ products).reshape(fits, size, size) + ridge
        found = found - np.linalg.solve(curve, slope[:, :, None])[:, :, 0]
    return found


def losses(found: Floats, inputs: Floats, classes: NDArray[np.bool_]) -> Floats:
    """The program's clipped log loss of each patient: (fits, n)."""
    odds = np.clip(found @ inputs.T, -30, 30)
    chance = 1 / (1 + np.exp(np.where(classes, -odds, odds)))
    clipped: Floats = -np.log(np.clip(chance, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR))
    return clipped


def folds_of(
    classes: NDArray[np.bool_], count: int, generator: np.random.Generator
) -> Iterator[Places]:
    """The user's patients in `count` parts, class by class."""
    order = generator.permutation(len(classes))
    by_class = order[np.argsort(classes[order], kind="stable")]
    for number in range(count):
        yield by_class[number::count]


def measure(
    population: Population, patients: int, scenario: str, *, studies: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """For each pair of arms, study by study: the truth, and each scheme's p-value.

    The truth is the mean difference of the models that are delivered: for `HOLD_OUT` those of the
    training part, for cross-fitting those of all of the user's patients. Below 0 the first is
    better, and a p-value has the sign of the difference that was measured. It is 1 where a class
    has too few patients for a claim.
    """
    found = [
        _one_study(population, patients, scenario, np.random.default_rng([seed, number]))
        for number in range(studies)
    ]
    result: dict[str, dict[str, list[float]]] = {}
    for pair in PAIRS:
        figures: dict[str, list[float]] = {}
        for scheme in (HOLD_OUT, *SCHEMES):
            apart = np.array([study.apart[scheme][pair] for study in found])
            enough = np.array([study.enough[scheme] for study in found])
            p_values = np.where(enough, sign_flip_p_values(apart), 1.0)
            signed = np.where(apart.sum(axis=1) < 0, -p_values, p_values)
            figures[scheme] = signed.round(5).tolist()
        for what in (TRUTH, TRUTH_OF_TRAINING_PART):
            figures[what] = [round(study.truth[what][pair], 6) for study in found]
        result[" - ".join(pair)] = figures
    return result


Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class _Study:
    """What one study measured: differences per patient by scheme and pair, and the truth."""

    apart: Mapping[str, Mapping[Pair, Floats]]
    enough: Mapping[str, bool]
    truth: Mapping[str, Mapping[Pair, float]]


def _one_study(
    population: Population, patients: int, scenario: str, generator: np.random.Generator
) -> _Study:
    drawn = draw(population, patients, scenario, generator)
    own = drawn.classes[:patients]
    held_out = np.concatenate(
        [
            generator.permutation(np.flatnonzero(own == kind))[
                : round(TEST_SHARE * int((own == kind).sum()))
            ]
            for kind in (False, True)
        ]
    )
    parts = {
        name: [list(folds_of(own, count, generator)) for _ in range(repeats)]
        for name, (count, repeats) in SCHEMES.items()
    }
    left_out: list[Places] = [np.zeros(0, dtype=np.int64), held_out]
    left_out += [part for cuts in parts.values() for cut in cuts for part in cut]
    by_arm = {arm: fit(*_weighted(drawn, of_halves, left_out)) for arm, of_halves in ARMS.items()}
    of_user = {arm: losses(found, drawn.inputs[:patients], own) for arm, found in by_arm.items()}
    true = {
        arm: losses(found[:2], drawn.truth_inputs, drawn.truth_classes).mean(axis=1)
        for arm, found in by_arm.items()
    }
    apart: dict[str, dict[Pair, Floats]] = {
        HOLD_OUT: {(a, b): (of_user[a] - of_user[b])[1, held_out] for a, b in PAIRS}
    }
    place = 2
    for name, cuts in parts.items():
        apart[name] = {
            (a, b): _cross_fitted(of_user[a] - of_user[b], cuts, place) for a, b in PAIRS
        }
        place += sum(map(len, cuts))
    smallest = min(int(own.sum()), int((~own).sum())) >= FEWEST_OF_A_CLASS
    tested = own[held_out]
    enough_tested = min(int(tested.sum()), int((~tested).sum())) >= FEWEST_OF_A_CLASS
    return _Study(
        apart,
        {HOLD_OUT: enough_tested, **dict.fromkeys(SCHEMES, smallest)},
        {
            TRUTH: {(a, b): float(true[a][0] - true[b][0]) for a, b in PAIRS},
            TRUTH_OF_TRAINING_PART: {(a, b): float(true[a][1] - true[b][1]) for a, b in PAIRS},
        },
    )


def _weighted(
    drawn: Draw, of_halves: tuple[float, float], left_out: Sequence[Places]
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Inputs, classes and weights (fits, n) without each part; others that count 0 are left out."""
    counts = np.concatenate([np.ones(drawn.num_user), np.repeat(of_halves, OTHERS // 2)])
    counting = np.flatnonzero(counts)
    weights = np.tile(counts, (len(left_out), 1))
    for number, part in enumerate(left_out):
        weights[number, part] = 0.0
    return drawn.inputs[counting], drawn.classes[counting], weights[:, counting]


def _cross_fitted(apart: Floats, cuts: Sequence[Sequence[Places]], place: int) -> Floats:
    """Each patient's difference by models without it, the mean over the cuts: (n,)."""
    total = np.zeros(apart.shape[1])
    for cut in cuts:
        for part in cut:
            total[part] += apart[place, part]
            place += 1
    return total / len(cuts)
