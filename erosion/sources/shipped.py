"""Two data sets that come with scikit-learn, dealt to hospitals that see different patients.

Their files are read where they lie: importing scikit-learn would take longer than a short study.
The patients of each are of one hospital in truth.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from erosion.sources.source import Indices, PatientTable, SourceBase
from erosion_common.errors import DataError, StudyError
from erosion_common.study.study import Study

HOME, ALIKE, MISCODED = "home", "alike", "miscoded"
SMALL, LARGE = "small-tumours", "large-tumours"
HOSPITALS = (HOME, ALIKE, SMALL, LARGE, MISCODED)
MORE_ALIKE = tuple(f"{ALIKE}-{number}" for number in (2, 3, 4))  # if a study names them
NUM_PATIENTS = 569
OF_NUCLEI = (
    "radius",  # what the data hold of a tumour's size
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)
FEATURES = (
    *(f"mean {name}" for name in OF_NUCLEI),
    *(f"{name} error" for name in OF_NUCLEI),
    *(f"worst {name}" for name in OF_NUCLEI),
)


def shipped(name: str, *, delimiter: str | None = None, header: int = 0) -> NDArray[np.float64]:
    """Return a table of scikit-learn's as it lies there: (n, columns). Raises DataError."""
    package = find_spec("sklearn")  # without importing it
    places = package.submodule_search_locations if package is not None else None
    if not places:
        raise DataError(f"scikit-learn, which carries {name}, is not installed.")
    return np.loadtxt(
        Path(places[0]) / "datasets" / "data" / name, delimiter=delimiter, skiprows=header
    )


class BreastCancer(SourceBase):
    """The Wisconsin breast cancer diagnostics (Street, Wolberg, Mangasarian 1993), by hospital.

    The five are made so that each asks another question of an algorithm. The options are numbers
    of patients.
    """

    offered = (*HOSPITALS, *MORE_ALIKE)

    home: int = Field(default=130, ge=10)  # most are meant for the test part
    alike: int = Field(default=110, ge=10)  # at each of those
    miscoded: int = Field(default=110, ge=10)
    split_seed: int | None = Field(default=None, ge=0)  # None: the study's seed

    @property
    def _left(self) -> int:
        return NUM_PATIENTS - self.home - self.alike - self.miscoded

    @model_validator(mode="after")
    def _leaves_patients(self) -> "BreastCancer":
        if self._left < 40:
            raise ValueError(
                f"home + alike + miscoded leave {self._left} of {NUM_PATIENTS} patients to the two"
                " hospitals split by tumour size; leave at least 40"
            )
        return self

    def split(self, seed: int, more_alike: Sequence[str] = ()) -> dict[str, Indices]:
        """Row numbers of every hospital's patients; every patient is at exactly one.

        The patients are shuffled. `home`, `alike`, `miscoded` and further ones like `alike` take
        theirs in turn, so all of them see the same population. Those left are ordered by tumour
        size: the smaller half goes to `small-tumours`, where few are malignant, the larger half to
        `large-tumours`.
        """
        order = np.random.default_rng(seed).permutation(NUM_PATIENTS)
        cuts = np.cumsum([self.home, self.alike, self.miscoded, *[self.alike] * len(more_alike)])
        home, alike, miscoded, *others, rest = np.split(order, cuts)
        size = _diagnostics()[:, 0]
        small, large = np.array_split(rest[np.argsort(size[rest], kind="stable")], 2)
        known = {HOME: home, ALIKE: alike, SMALL: small, LARGE: large, MISCODED: miscoded}
        return known | dict(zip(more_alike, others, strict=True))

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, PatientTable]]:
        more_alike = [name for name in MORE_ALIKE if name in study.everyone]
        if len(more_alike) * self.alike > self._left:
            raise StudyError(f"{NUM_PATIENTS} patients are too few; lower home, alike or miscoded")
        table = _diagnostics()
        benign = table[:, -1] == 1
        seed = study.seed if self.split_seed is None else self.split_seed
        for hospital, rows in self.split(seed, more_alike).items():
            labels = np.where(benign[rows] == (hospital == MISCODED), "malignant", "benign")
            cells = zip(table[rows, :-1].tolist(), labels, strict=True)
            patients = [[*features, label] for features, label in cells]
            yield hospital, PatientTable([*FEATURES, "diagnosis"], patients)


def _diagnostics() -> NDArray[np.float64]:
    """(569, 31), the last column 0 where a tumour is malignant."""
    return shipped("breast_cancer.csv", delimiter=",", header=1)


YOUNG, OLD, OTHER_SCALE = "young", "old", "other-scale"
HALF = 0.5  # what a hospital with another scale writes for 1


class Diabetes(SourceBase):
    """Progression of diabetes (Efron et al. 2004), by hospital.

    The options are numbers of patients. `home`, `alike` and `other-scale` see the same population;
    the rest is halved by age. At `other-scale` progression is written on another scale, half as
    large: a harmful hospital that no check of ranges finds.
    """

    offered = (HOME, ALIKE, YOUNG, OLD, OTHER_SCALE)

    home: int = Field(default=120, ge=10, le=150)  # most are meant for the test part
    alike: int = Field(default=90, ge=10, le=120)
    other_scale: int = Field(default=80, ge=10, le=120)

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, PatientTable]]:
        features = shipped("diabetes_data_raw.csv.gz")
        progression = shipped("diabetes_target.csv.gz")
        order = np.random.default_rng(study.seed).permutation(len(progression))
        cuts = np.cumsum([self.home, self.alike, self.other_scale])
        home, alike, other, rest = np.split(order, cuts)
        young, old = np.array_split(rest[np.argsort(features[rest, 0], kind="stable")], 2)
        header = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6", "progression"]
        parts = {HOME: home, ALIKE: alike, OTHER_SCALE: other, YOUNG: young, OLD: old}
        for hospital, rows in parts.items():
            scale = HALF if hospital == OTHER_SCALE else 1.0
            outcome = (scale * progression[rows])[:, None]
            yield hospital, PatientTable(header, np.hstack([features[rows], outcome]).tolist())
