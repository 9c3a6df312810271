"""Four large sets of patients, or of pictures, with an outcome of two classes.

So large that a difference between two models can be measured on those left over. Inputs are a few
columns, or the first principal components of small pictures, each with mean 0 and deviation 1.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.experiments.sources.diabetes_130 import (
    COLUMNS,
    FILE,
    FOLDER,
    NUMBERS,
    first_stays,
    patient_of,
)
from erosion.experiments.sources.ham10000 import read_ham10000
from erosion.experiments.sources.mnist import read_mnist
from erosion.experiments.sources.source import data_folder, existing_file, parsing, read_arrays

Floats = NDArray[np.float64]
Population = tuple[Floats, NDArray[np.bool_]]  # (n, inputs) with a last column of ones; (n,)

COMPONENTS = 12
TILES = 4  # pictures are averaged over so many tiles a side, by colour
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
    """The first principal components of pictures (n, height, width, colours) in tiles."""
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
