"""Whole studies, many of them: what a verdict says of two arms, and what is true of them.

An arm is a logistic regression on the user's patients and, with separate weights, the others':
`local` 0, `half` .5, `full` 1. That is what the program's arms come to when they are trained to the
end, and it is so cheap that every study is cross-fitted several times. `half` and `full` differ
little: the case in which cross-fitting is weakest, because models of fewer of the user's patients
lean more on the others'. `some` and `rest` each count one half of the others, who are drawn alike,
so that neither is better but by the luck of the draw. The patients are those of four large sets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.sources.diabetes_130 import COLUMNS, FILE, FOLDER, NUMBERS, first_stays, patient_of
from erosion.sources.mnist import read_mnist
from erosion.sources.pictures import read_ham10000
from erosion.sources.source import data_folder, existing_file, parsing, read_arrays
from erosion_common.protocol.messages import FEWEST_OF_A_CLASS
from erosion_common.tasks.metric import PROBABILITY_FLOOR
from experiments.papers.verdict_simulated import sign_flip_p_values

Floats = NDArray[np.float64]
Population = tuple[Floats, NDArray[np.bool_]]  # (n, inputs) with a last column of ones; (n,)

COMPONENTS = 12
TILES = 4  # pictures are averaged over this many tiles a side, by colour
VEHICLES = (0, 1, 8, 9)  # of CIFAR-10
MOST_STAYS = 20_000


@lru_cache(maxsize=1)  # the cells of one data set follow each other
def population(name: str, data_dir: Path | None) -> Population:
    """Inputs and classes of a data set; raises DataError where it is absent."""
    inputs, classes = POPULATIONS[name](data_dir)
    deviation = inputs.std(axis=0)
    scaled = (inputs - inputs.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return np.hstack([scaled, np.ones((len(scaled), 1))]), classes


def _diabetes(data_dir: Path | None) -> Population:
    """Readmitted at any time: each patient's first stay."""
    path = existing_file(data_folder(data_dir, FOLDER), FILE)
    stays = first_stays(path)[:MOST_STAYS]
    with parsing(path):
        rows = [dict(zip(COLUMNS, patient_of(stay), strict=True)) for stay in stays]
        columns = [[float(row[name]) for row in rows] for name in ("age", *NUMBERS)]
    columns += [
        [float(row["discharged home"] == "yes") for row in rows],
        [float(row["diabetesMed"] == "Yes") for row in rows],
        [float(row["insulin"] != "No") for row in rows],
    ]
    return np.array(columns).T, np.array([stay["readmitted"] != "NO" for stay in stays])


def _mnist(data_dir: Path | None) -> Population:
    """Four or nine."""
    images, labels = read_mnist(data_folder(data_dir, "mnist"), "train")
    chosen = np.isin(labels, (4, 9))
    return _components(images[chosen][:, :, :, None]), labels[chosen] == 9


def _ham10000(data_dir: Path | None) -> Population:
    """Another finding than a naevus: one picture of each lesion."""
    pictures = read_ham10000(data_dir)
    _, first = np.unique(pictures.lesions, return_index=True)
    commonest = np.bincount(pictures.labels).argmax()  # naevi are two thirds
    return _components(pictures.images[first]), pictures.labels[first] != commonest


def _cifar10(data_dir: Path | None) -> Population:
    """A vehicle or an animal."""
    path = existing_file(data_folder(data_dir, "cifar10"), "cifar10_subset.npz")
    picture = (32, 32, 3)
    train_images, train_labels = read_arrays(path, train_images=picture, train_labels=())
    test_images, test_labels = read_arrays(path, test_images=picture, test_labels=())
    labels = np.concatenate([train_labels, test_labels])
    return _components(np.concatenate([train_images, test_images])), np.isin(labels, VEHICLES)


def _components(images: NDArray[np.uint8]) -> Floats:
    """Return the first principal components of pictures (n, height, width, colours) in tiles."""
    n, height, width, colours = images.shape
    tall, wide = height // TILES, width // TILES
    tiles = images[:, : tall * TILES, : wide * TILES].reshape(n, TILES, tall, TILES, wide, colours)
    values = tiles.mean(axis=(2, 4)).reshape(n, -1)
    values = values - values.mean(axis=0)
    _, directions = np.linalg.eigh(values.T @ values)  # ascending
    found: Floats = values @ directions[:, ::-1][:, :COMPONENTS]
    return found


POPULATIONS: Mapping[str, Callable[[Path | None], Population]] = {
    "diabetes-130": _diabetes,
    "ham10000": _ham10000,
    "mnist": _mnist,
    "cifar10": _cifar10,
}


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
MOST_TRUTH = 5000  # patients for comparing the delivered models
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
    """One study's patients: the user's, the others', and those that show the truth."""

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
    """Return the program's clipped log loss of each patient: (fits, n)."""
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
    """Return each patient's difference by models without it, the mean over the cuts: (n,)."""
    total = np.zeros(apart.shape[1])
    for cut in cuts:
        for part in cut:
            total[part] += apart[place, part]
            place += 1
    return total / len(cuts)
