"""The Titanic's passengers as Grimberg et al. (2020) split them among four hospitals, by age.

Features, bins and the order of the random draws are those of the authors' public code."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from erosion.sources.source import (
    PatientTable,
    SourceBase,
    data_folder,
    existing_file,
    parsing,
    read_rows,
)
from erosion_common.study.study import Study

Split = Literal["AGE_STRICT", "AGE_SOME"]
SPLITS: tuple[Split, ...] = ("AGE_STRICT", "AGE_SOME")
BATCH_SIZE = {"AGE_STRICT": 161, "AGE_SOME": 132}
AUTHORS_SEED = 278
FEATURES = (
    "fare",
    "female",
    "Cherbourg",
    "Queenstown",
    "alone",
    "first class",
    "second class",
    "age",
    "minor",
)


@dataclass(frozen=True, eq=False)
class Passengers:
    """Every passenger, in the file's order."""

    inputs: Tensor  # (1309, 9) float32
    survived: Tensor  # (1309,) int64
    age: NDArray[np.float64]  # (1309,) years, NaN where it is not known

    @cached_property
    def bins(self) -> list[list[int]]:
        """Indices by age, ascending: up to 20, up to 35, above; last, of unknown age."""
        edges = (-0.01, 20, 35, 150)
        groups = [
            np.flatnonzero((self.age > low) & (self.age <= high)).tolist()
            for low, high in pairwise(edges)
        ]
        return [*groups, np.flatnonzero(np.isnan(self.age)).tolist()]


@dataclass(frozen=True, eq=False, slots=True)
class AgeGroup:
    """One hospital's passengers for one user: a test part only if it is the user."""

    inputs: Tensor  # (n, 9) training rows
    labels: Tensor  # (n,)
    test_inputs: Tensor  # (m, 9)
    test_labels: Tensor  # (m,)


def load_passengers(data_dir: Path | None) -> Passengers:
    """Read `titanic/titanic3.csv`; raises DataError where it is absent."""
    path = existing_file(data_folder(data_dir, "titanic"), "titanic3.csv")
    header, *cells = read_rows(path)
    with parsing(path):
        return _passengers([dict(zip(header, row, strict=True)) for row in cells])


def _passengers(rows: list[dict[str, str]]) -> Passengers:
    """Raises KeyError or ValueError where a cell is not as published."""

    def numbers(column: str, missing: float) -> NDArray[np.float64]:
        return np.array([float(row[column] or missing) for row in rows])

    def equal(column: str, value: str) -> NDArray[np.float64]:
        return np.array([float(row[column] == value) for row in rows])

    age = numbers("age", np.nan)
    known = ~np.isnan(age)
    minor = np.where(known, age < 17, 0.200917)
    columns = [
        (numbers("fare", -1.0) - 33.26928) / 51.74756,
        equal("sex", "female"),
        equal("embarked", "C"),
        equal("embarked", "Q"),
        numbers("sibsp", 0) + numbers("parch", 0) == 0,
        equal("pclass", "1"),
        equal("pclass", "2"),
        (np.where(known, age, 28.0) - 29.88113) / 14.41350,
        minor,
    ]
    survived = numbers("survived", np.nan)
    if not np.isin(survived, (0, 1)).all():
        raise ValueError("survived is not 0 or 1 of everybody")
    inputs = np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1)
    return Passengers(torch.from_numpy(inputs), torch.from_numpy(survived.astype(np.int64)), age)


def split_indices(passengers: Passengers, split: Split, seed: int) -> list[list[int]]:
    """Return the four hospitals' rows in their shuffled order.

    Those of unknown age, who are hospital 3, are shuffled first, as in the authors' code.
    """
    young, middle, old, unknown = (list(group) for group in passengers.bins)
    shuffle = random.Random(seed).shuffle
    shuffle(unknown)
    if split == "AGE_STRICT":
        for group in (young, middle, old):
            shuffle(group)
        return [young, middle, old, unknown]
    mixed = sorted(young + middle)
    shuffle(mixed)
    shuffle(old)
    half = len(mixed) // 2
    return [mixed[:half], mixed[half:], old, unknown]


def hospitals_of(passengers: Passengers, rows: list[list[int]], user: int) -> list[AgeGroup]:
    """Return the hospitals where `user` tests on the first 1 + floor(n/2) of its rows."""
    found = []
    for number, indices in enumerate(rows):
        cut = 1 + len(indices) // 2 if number == user else 0
        test, training = torch.tensor(indices[:cut]).long(), torch.tensor(indices[cut:]).long()
        found.append(
            AgeGroup(
                passengers.inputs[training],
                passengers.survived[training],
                passengers.inputs[test],
                passengers.survived[test],
            )
        )
    return found


HOSPITALS = ("to-20", "to-35", "above-35", "age-unknown")
SURVIVED, SPLIT = "survived", "split"


class Titanic(SourceBase):
    """Columns as the authors made them, and their test part as a column "split".

    In `AGE_SOME` the first two hospitals share everybody up to 35. A hospital that is the user is
    tested on half of its passengers; the others train on all of theirs.
    """

    offered = HOSPITALS

    ages: Split = "AGE_STRICT"
    split_seed: int = Field(default=AUTHORS_SEED, ge=0)

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, PatientTable]]:
        passengers = load_passengers(data_dir)
        rows = split_indices(passengers, self.ages, self.split_seed)
        for hospital, indices in zip(HOSPITALS, rows, strict=True):
            is_user = study.has_every_user or hospital == study.user
            tested = 1 + len(indices) // 2 if is_user else 0
            table = [
                [
                    *passengers.inputs[row].tolist(),
                    int(passengers.survived[row]),
                    "test" if place < tested else "train",
                ]
                for place, row in enumerate(indices)
            ]
            yield hospital, PatientTable([*FEATURES, SURVIVED, SPLIT], table)
