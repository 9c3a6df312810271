"""The files of every data set, and their hashes."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

SHIPPED = "scikit-learn"  # carries the data set: nothing is downloaded

DATA_FILES: Mapping[str, tuple[str, ...]] = {  # below the data folder
    "breast-cancer": (f"{SHIPPED}/breast_cancer.csv",),
    "cifar10": (
        "cifar10/cifar10_jpeg_train.npz",
        "cifar10/cifar10_jpeg_test.npz",
        "cifar10/cifar10_subset.npz",
    ),
    "diabetes": (
        f"{SHIPPED}/diabetes_data_raw.csv.gz",
        f"{SHIPPED}/diabetes_target.csv.gz",
    ),
    "diabetes-130": ("diabetes-130/diabetic_data.csv.gz",),
    "ham10000": ("ham10000/ham10000_28x28.npz",),
    "heart-disease": (
        "heart-disease/processed.cleveland.data",
        "heart-disease/processed.hungarian.data",
        "heart-disease/processed.switzerland.data",
        "heart-disease/processed.va.data",
    ),
    "mnist": (
        "mnist/train-images-idx3-ubyte.gz",
        "mnist/train-labels-idx1-ubyte.gz",
        "mnist/t10k-images-idx3-ubyte.gz",
        "mnist/t10k-labels-idx1-ubyte.gz",
    ),
    "tcga-brca": ("tcga-brca/brca.csv", "tcga-brca/train_test_split.csv"),
    "titanic": ("titanic/titanic3.csv",),
}


def data_hashes(data_sets: Iterable[str], data_dir: Path | None) -> dict[str, str]:
    """SHA-256 of each file of the data sets that is there, hexadecimal, by its place."""
    found = {}
    for name in (file for data_set in data_sets for file in DATA_FILES[data_set]):
        folder, _, file = name.partition("/")
        if folder == SHIPPED:
            path = Path(str(files("sklearn.datasets.data") / file))
        elif data_dir is None:
            continue
        else:
            path = data_dir / name
        if path.is_file():
            state = path.stat()
            found[name] = _hash(path, state.st_mtime_ns, state.st_size)
    return found


@lru_cache(maxsize=64)
def _hash(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
