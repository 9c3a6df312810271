"""Heart disease at four real hospitals (UCI archive; as in FLamby, du Terrail et al. 2022)."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from erosion.common.errors import DataError
from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    check_hospitals,
    data_folder,
    existing_file,
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


class HeartDisease(SourceBase):
    """The four files as they are, with a header and with empty cells for what is missing.

    A cholesterol of 0 was not measured: all 123 Swiss patients and 49 of the V.A.'s have it.
    `keep` leaves the 0, as the published benchmark does, so that results can be held against it.
    `missing` empties the cell; a study that then drops incomplete patients loses Switzerland.
    """

    zero_cholesterol: Literal["keep", "missing"] = "keep"

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """One CSV per hospital of the study."""
        check_hospitals(study, FILES)
        source = data_folder(data_dir, "heart-disease")
        files = {}
        for hospital in study.hospitals:
            rows = _read(existing_file(source, FILES[hospital]))
            path = folder / hospital / "patients.csv"
            write_table(path, COLUMNS, [self._without_marks(row) for row in rows])
            files[hospital] = HospitalFiles(path)
        return files

    def _without_marks(self, row: list[str]) -> list[str]:
        """A row in which everything that is missing is an empty cell."""
        patient = dict(zip(COLUMNS, ("" if cell == "?" else cell for cell in row), strict=True))
        if self.zero_cholesterol == "missing" and patient["chol"] and float(patient["chol"]) == 0:
            patient["chol"] = ""
        return list(patient.values())


def _read(path: Path) -> list[list[str]]:
    """The rows of one file, as text; raises DataError where a row has not 14 cells."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(COLUMNS):
            raise DataError(
                f"{path}, row {number}: {len(row)} cells, expected {len(COLUMNS)}. Delete the file"
                " and run `erosion data heart-disease` again."
            )
    return rows
