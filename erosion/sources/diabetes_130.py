"""Hospital stays of diabetic patients (Strack et al. 2014), with payers in the place of hospitals.

The 130 hospitals of the study are pooled in the published table: which one a stay was at is not
said. Who paid for it is, and payers insure different people.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import Field

from erosion.sources.source import (
    PatientTable,
    SourceBase,
    check_complete,
    data_folder,
    existing_file,
    parsing,
)
from erosion_common.errors import DataError
from erosion_common.study.study import Study

FOLDER, FILE = "diabetes-130", "diabetic_data.csv.gz"
PAYERS = {
    "medicare": "MC",
    "hmo": "HM",
    "blue-cross": "BC",
    "self-pay": "SP",
    "medicaid": "MD",
    "united-health": "UN",
}
GONE = {"11", "13", "14", "19", "20", "21"}  # discharge_disposition_id: dead, or to a hospice
NUMBERS = (
    "time_in_hospital",
    "num_lab_procedures",
    "num_procedures",
    "num_medications",
    "number_outpatient",
    "number_emergency",
    "number_inpatient",
    "number_diagnoses",
)
AS_THEY_ARE = ("gender", "max_glu_serum", "A1Cresult", "insulin", "change", "diabetesMed")
RACES = {"Caucasian": "white", "AfricanAmerican": "black"}
ADMISSIONS = {"1": "emergency", "2": "urgent", "3": "elective"}
DISCHARGED_HOME = {"1", "6", "8"}  # without or with care there
TARGET = "readmitted within 30 days"
COLUMNS = ("age", *NUMBERS, *AS_THEY_ARE, "race", "admission", "discharged home", TARGET)


class Diabetes130(SourceBase):
    """The first stay of each patient, by payer; those who died or left for a hospice are not in it.

    Every hospital gets as many patients, drawn by the study's seed.
    """

    offered = tuple(PAYERS)

    patients: int = Field(default=500, ge=20, le=1800)  # at each hospital

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, PatientTable]]:
        path = existing_file(data_folder(data_dir, FOLDER), FILE)
        rows = first_stays(path)
        for place, (hospital, payer) in enumerate(PAYERS.items()):
            with parsing(path):
                stays = [row for row in rows if row["payer_code"] == payer]
                drawn = np.random.default_rng([study.seed, place]).permutation(len(stays))
                chosen = drawn[: self.patients].tolist()
                patients = [patient_of(stays[number]) for number in chosen]
            yield hospital, PatientTable(COLUMNS, patients)


@lru_cache(maxsize=1)  # a second to read, and every split of an experiment reads it
def first_stays(path: Path) -> list[dict[str, str]]:
    """Return the stay with the least number of each patient who lived on."""
    first: dict[str, dict[str, str]] = {}
    with parsing(path):
        for row in _stays(path):
            known = first.get(row["patient_nbr"])
            if known is None or int(row["encounter_id"]) < int(known["encounter_id"]):
                first[row["patient_nbr"]] = row
        return [
            row
            for row in first.values()
            if row["discharge_disposition_id"] not in GONE and row["gender"] != "Unknown/Invalid"
        ]


def _stays(path: Path) -> Iterator[dict[str, str]]:
    rows = 1  # the header
    try:
        with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
            for stay in csv.DictReader(file):
                rows += 1
                if None in stay or None in stay.values():  # what DictReader has of another length
                    raise ValueError(f"row {rows} has other columns than its header")
                yield stay
        check_complete(path, rows)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as problem:
        raise DataError(f"{path} cannot be read ({problem})", remedy="Fetch it again.") from None


def patient_of(stay: Mapping[str, str]) -> list[str]:
    """Return the cells of `COLUMNS`."""
    low, high = stay["age"].strip("[)").split("-")  # ten years: [70-80)
    return [
        f"{(int(low) + int(high)) / 2:g}",
        *(stay[name] for name in NUMBERS),
        *(stay[name] for name in AS_THEY_ARE),
        RACES.get(stay["race"], "other"),
        ADMISSIONS.get(stay["admission_type_id"], "other"),
        "yes" if stay["discharge_disposition_id"] in DISCHARGED_HOME else "no",
        "yes" if stay["readmitted"] == "<30" else "no",
    ]
