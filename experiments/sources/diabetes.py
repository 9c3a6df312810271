"""Progression of diabetes (Efron et al. 2004), dealt to hospitals that see different patients.

scikit-learn carries the 442 patients, so nothing is downloaded. They come from one clinic in truth.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from sklearn.datasets import load_diabetes

from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    check_hospitals,
    write_table,
)

HOME, ALIKE, YOUNG, OLD, OTHER_SCALE = "home", "alike", "young", "old", "other-scale"
HOSPITALS = (HOME, ALIKE, YOUNG, OLD, OTHER_SCALE)
TARGET, AGE = "progression", "age"
HALF = 0.5  # what a hospital with another scale writes for 1


class Diabetes(SourceBase):
    """Which of the 442 patients go to which hospital. The options are numbers of patients.

    `home`, `alike` and `other-scale` see the same population; the rest is halved by age. At
    `other-scale` progression is written on another scale, half as large: a harmful hospital that no
    check of ranges finds.
    """

    home: int = Field(default=120, ge=10, le=150)  # most are meant for the test part
    alike: int = Field(default=90, ge=10, le=120)
    other_scale: int = Field(default=80, ge=10, le=120)

    def split(self, seed: int) -> dict[str, NDArray[np.int64]]:
        """Row numbers of every hospital's patients; every patient is at exactly one."""
        table = load_diabetes(scaled=False)
        order = np.random.default_rng(seed).permutation(len(table.target))
        cuts = np.cumsum([self.home, self.alike, self.other_scale])
        home, alike, other, rest = np.split(order, cuts)
        by_age = rest[np.argsort(table.data[rest, table.feature_names.index(AGE)], kind="stable")]
        young, old = np.array_split(by_age, 2)
        return {HOME: home, ALIKE: alike, OTHER_SCALE: other, YOUNG: young, OLD: old}

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """Write one CSV per hospital: ten features and the progression after a year."""
        del data_dir  # nothing is downloaded
        check_hospitals(study, HOSPITALS)
        table = load_diabetes(scaled=False)
        parts = self.split(study.seed)
        files = {}
        for hospital in study.hospitals:
            scale = HALF if hospital == OTHER_SCALE else 1.0
            path = folder / hospital / "patients.csv"
            patients = (
                [*table.data[row].tolist(), scale * float(table.target[row])]
                for row in parts[hospital]
            )
            write_table(path, [*table.feature_names, TARGET], patients)
            files[hospital] = HospitalFiles(path)
        return files
