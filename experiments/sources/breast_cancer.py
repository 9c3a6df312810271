"""The Wisconsin breast cancer diagnostics (Street, Wolberg, Mangasarian 1993) as five hospitals.

scikit-learn carries the 569 patients, so nothing is downloaded. They come from one hospital in
truth; the five are made so that each asks another question of an algorithm.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from sklearn.datasets import load_breast_cancer

from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    check_hospitals,
    write_table,
)

HOME, ALIKE, MISCODED = "home", "alike", "miscoded"
SMALL, LARGE = "small-tumours", "large-tumours"
HOSPITALS = (HOME, ALIKE, SMALL, LARGE, MISCODED)
MORE_ALIKE = tuple(f"{ALIKE}-{number}" for number in (2, 3, 4))  # if a study names them

NUM_PATIENTS = 569
TARGET = "diagnosis"
SIZE = "mean radius"  # of the cell nuclei: what the data hold of a tumour's size


class BreastCancer(SourceBase):
    """Which of the 569 patients go to which hospital. The options are numbers of patients."""

    home: int = Field(default=130, ge=10)  # most are meant for the test part
    alike: int = Field(default=110, ge=10)  # at each of those
    miscoded: int = Field(default=110, ge=10)
    split_seed: int | None = Field(default=None, ge=0)  # None: the study's seed

    @model_validator(mode="after")
    def _leaves_patients(self) -> "BreastCancer":
        left = NUM_PATIENTS - self.home - self.alike - self.miscoded
        if left < 40:
            raise ValueError(
                f"home + alike + miscoded leave {left} of {NUM_PATIENTS} patients to the two"
                " hospitals split by tumour size; leave at least 40"
            )
        return self

    def split(self, seed: int, more_alike: Sequence[str] = ()) -> dict[str, NDArray[np.int64]]:
        """Row numbers of every hospital's patients; every patient is at exactly one.

        The patients are shuffled. `home`, `alike`, `miscoded` and further ones like `alike` take
        theirs in turn, so all of them see the same population. Those left are ordered by tumour
        size: the smaller half goes to `small-tumours`, where few are malignant, the larger half to
        `large-tumours`.
        """
        order = np.random.default_rng(seed).permutation(NUM_PATIENTS)
        cuts = np.cumsum([self.home, self.alike, self.miscoded, *[self.alike] * len(more_alike)])
        home, alike, miscoded, *others, rest = np.split(order, cuts)
        table = load_breast_cancer()
        size = table.data[:, table.feature_names.tolist().index(SIZE)]
        rest = rest[np.argsort(size[rest], kind="stable")]
        small, large = np.array_split(rest, 2)
        known = {HOME: home, ALIKE: alike, SMALL: small, LARGE: large, MISCODED: miscoded}
        return known | dict(zip(more_alike, others, strict=True))

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """Write one CSV per hospital: 30 features and the diagnosis."""
        del data_dir  # nothing is downloaded
        check_hospitals(study, (*HOSPITALS, *MORE_ALIKE))
        more_alike = [name for name in MORE_ALIKE if name in study.hospitals]
        if len(more_alike) * self.alike > NUM_PATIENTS - self.home - self.alike - self.miscoded:
            raise ValueError(f"{NUM_PATIENTS} patients are too few; lower home, alike or miscoded")
        table = load_breast_cancer()
        features = table.data
        malignant = table.target == 0  # so scikit-learn codes it
        seed = study.seed if self.split_seed is None else self.split_seed
        parts = self.split(seed, more_alike)
        files = {}
        for hospital in study.hospitals:
            rows = parts[hospital]
            is_malignant = ~malignant[rows] if hospital == MISCODED else malignant[rows]
            labels = np.where(is_malignant, "malignant", "benign")
            path = folder / hospital / "patients.csv"
            patients = (
                [*features[row].tolist(), label] for row, label in zip(rows, labels, strict=True)
            )
            write_table(path, [*table.feature_names.tolist(), TARGET], patients)
            files[hospital] = HospitalFiles(path)
        return files
