"""Heart disease at four real hospitals (UCI archive; as in FLamby, du Terrail et al. 2022)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field
from sklearn.model_selection import train_test_split

from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    check_hospitals,
    data_folder,
    existing_file,
    parsing,
    read_rows,
    write_table,
)

FILES = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "va": "processed.va.data",
}
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
SPARSE = ("slope", "ca", "thal")  # mostly empty outside Cleveland: the benchmark drops them
SPLIT, TRAINING_SHARE = "split", 0.66
FLAMBY_SEED = 43


class HeartDisease(SourceBase):
    """The four files as they are, with a header and with empty cells for what is missing.

    A cholesterol of 0 was not measured: all 123 Swiss patients and 49 of the V.A.'s have it.
    `keep` leaves the 0, as the published benchmark does, so that results can be held against it.
    `missing` empties the cell; a study that then drops incomplete patients loses Switzerland.
    `split_seed` adds a column "split", "train" or "test" for each patient, drawn as the benchmark
    draws it (with the seed 43) from the patients with every column but slope, ca and thal.
    """

    zero_cholesterol: Literal["keep", "missing"] = "keep"
    split_seed: int | None = Field(default=None, ge=0)

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """Write one CSV per hospital of the study."""
        check_hospitals(study, FILES)
        source = data_folder(data_dir, "heart-disease")
        files = {}
        for hospital in study.hospitals:
            original = existing_file(source, FILES[hospital])
            rows = _read(original)
            path = folder / hospital / "patients.csv"
            with parsing(original):
                patients = [self._without_marks(row) for row in rows]
            if self.split_seed is None:
                write_table(path, COLUMNS, patients)
            else:
                with parsing(original):
                    parts = _parts(patients, self.split_seed)
                split = [[*cells, part] for cells, part in zip(patients, parts, strict=True)]
                write_table(path, [*COLUMNS, SPLIT], split)
            files[hospital] = HospitalFiles(path)
        return files

    def _without_marks(self, row: list[str]) -> list[str]:
        """Return a row in which everything that is missing is an empty cell."""
        patient = dict(zip(COLUMNS, ("" if cell == "?" else cell for cell in row), strict=True))
        if self.zero_cholesterol == "missing" and patient["chol"] and float(patient["chol"]) == 0:
            patient["chol"] = ""
        return list(patient.values())


def _parts(patients: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Return "train" or "test" for each patient; incomplete ones, which nobody uses: "train"."""
    used = [COLUMNS.index(name) for name in COLUMNS if name not in SPARSE]
    complete = [n for n, cells in enumerate(patients) if all(cells[place] for place in used)]
    ill = [float(patients[n][COLUMNS.index("num")]) > 0 for n in complete]
    _, test = train_test_split(
        complete,
        train_size=TRAINING_SHARE,
        random_state=seed,
        stratify=ill if np.bincount(ill, minlength=2).min() > 2 else None,
    )
    tested = set(test)
    return ["test" if n in tested else "train" for n in range(len(patients))]


def _read(path: Path) -> list[list[str]]:
    """Return the rows of one file, as text; raises DataError."""
    return [[cell.strip() for cell in row] for row in read_rows(path)]
