"""Heart disease and breast cancer survival as in FLamby (du Terrail et al. 2022)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from erosion.sources.source import (
    PatientTable,
    SourceBase,
    data_folder,
    existing_file,
    parsing,
    read_rows,
)
from erosion_common.errors import DataError
from erosion_common.study.study import Study

SPLIT = "split"  # the column with "train" or "test"

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
TRAINING_SHARE = 0.66
FLAMBY_SEED = 43


class HeartDisease(SourceBase):
    """The UCI archive's four files as they are, with a header and empty cells for what is missing.

    A cholesterol of 0 was not measured: all 123 Swiss patients and 49 of the V.A.'s have it.
    `keep` leaves the 0, as the published benchmark does, so that results can be held against it.
    `missing` empties the cell; a study that then drops incomplete patients loses Switzerland.
    `split_seed` adds a column "split", "train" or "test" for each patient, drawn as the benchmark
    draws it (with the seed 43) from the patients with every column but slope, ca and thal.
    """

    offered = tuple(FILES)

    zero_cholesterol: Literal["keep", "missing"] = "keep"
    split_seed: int | None = Field(default=None, ge=0)

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, PatientTable]]:
        source = data_folder(data_dir, "heart-disease")
        for hospital in study.everyone:
            path = existing_file(source, FILES[hospital])
            rows = read_rows(path)
            with parsing(path):
                patients = [self._without_marks(row) for row in rows]
                if self.split_seed is None:
                    found = PatientTable(COLUMNS, patients)
                else:
                    parts = _stratified(patients, self.split_seed)
                    split = [[*row, part] for row, part in zip(patients, parts, strict=True)]
                    found = PatientTable((*COLUMNS, SPLIT), split)
            yield hospital, found

    def _without_marks(self, row: list[str]) -> list[str]:
        """Return a row in which everything that is missing is an empty cell."""
        stripped = (cell.strip() for cell in row)
        patient = dict(
            zip(COLUMNS, ("" if cell == "?" else cell for cell in stripped), strict=True)
        )
        if self.zero_cholesterol == "missing" and patient["chol"] and float(patient["chol"]) == 0:
            patient["chol"] = ""
        return list(patient.values())


def _stratified(patients: Sequence[Sequence[str]], seed: int) -> list[str]:
    """Return "train" or "test" for each patient; incomplete ones, which nobody uses: "train"."""
    from sklearn.model_selection import train_test_split  # half a second, and few studies need it

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


REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")  # by FLamby's number
PATIENT = "pid"
EVENT, DAYS, DIED = "E", "T", "died"
TEST_SHARE = 0.2  # of each region's patients, in FLamby's split


class TcgaBrca(SourceBase):
    """Breast cancer survival in six regions (TCGA-BRCA): FLamby's 1,088 patients and its split.

    The 8 patients that FLamby's split leaves out are left out here. With `died_within_days` there
    is a column `died` ("yes" or "no") more; those who lived and were followed for less are left
    out. With `split_seed` the split is another one, drawn within each region: as many test patients
    as in FLamby's, with any outcome, for the deaths in FLamby's are not shared out evenly.
    """

    offered = REGIONS

    died_within_days: int | None = Field(default=None, ge=1)
    split_seed: int | None = Field(default=None, ge=0)

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, PatientTable]]:
        """Each region's patients, with the split as a column more."""
        source = data_folder(data_dir, "tcga-brca")
        path = existing_file(source, "brca.csv")
        (_, *header), *rows = _read(path, PATIENT, EVENT, DAYS)
        patients = {name: cells for name, *cells in rows}
        parts = _parts(existing_file(source, "train_test_split.csv"))
        if self.died_within_days is not None:
            with parsing(path):
                header, patients = _with_death(header, patients, self.died_within_days)
        for hospital in study.everyone:
            here = [name for name in patients if parts.get(name, ("", ""))[1] == hospital]
            if self.split_seed is None:
                part_of = {name: parts[name][0] for name in here}
            else:
                part_of = _drawn(here, self.split_seed)
            rows = [[*patients[name], part_of[name]] for name in here]
            yield hospital, PatientTable([*header, SPLIT], rows)


def _read(path: Path, first: str, *others: str) -> list[list[str]]:
    rows = read_rows(path)
    if rows[0][0] != first or not {*others} <= {*rows[0]}:
        raise DataError(f"{path} is not FLamby's table of that name", remedy="Fetch it again.")
    return rows


def _with_death(
    header: list[str], patients: Mapping[str, list[str]], within_days: int
) -> tuple[list[str], dict[str, list[str]]]:
    """Return those known to have died or lived within that many days."""
    event, days = header.index(EVENT), header.index(DAYS)
    known: dict[str, list[str]] = {}
    for patient, cells in patients.items():
        followed = float(cells[days])
        if float(cells[event]) == 1 and followed <= within_days:
            known[patient] = [*cells, "yes"]
        elif followed >= within_days:
            known[patient] = [*cells, "no"]
    return [*header, DIED], known


def _parts(path: Path) -> dict[str, tuple[str, str]]:
    """For each patient, "train" or "test", and the region."""
    header, *rows = _read(path, PATIENT, "fold2")
    fold = header.index("fold2")
    with parsing(path):
        found = {row[0]: row[fold].rpartition("_") for row in rows}
        return {name: (part, REGIONS[int(number)]) for name, (part, _, number) in found.items()}


def _drawn(patients: Sequence[str], seed: int) -> dict[str, str]:
    """For each patient "train" or "test"."""
    from sklearn.model_selection import train_test_split  # likewise

    train, test = train_test_split(patients, test_size=TEST_SHARE, random_state=seed)
    return {**dict.fromkeys(train, "train"), **dict.fromkeys(test, "test")}
