"""Breast cancer survival in six regions (TCGA-BRCA; as in FLamby, du Terrail et al. 2022)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field
from sklearn.model_selection import train_test_split

from erosion.common.errors import DataError
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

REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")  # by FLamby's number
PATIENT, SPLIT = "pid", "split"
EVENT, DAYS, DIED = "E", "T", "died"
TEST_SHARE = 0.2  # of each region's patients, in FLamby's split


class TcgaBrca(SourceBase):
    """FLamby's 1,088 patients with its columns as they are, and its split as a column more.

    The 8 patients that FLamby's split leaves out are left out here. With `died_within_days` there
    is a column `died` ("yes" or "no") more; those who lived and were followed for less are left
    out. With `split_seed` the split is another one, drawn within each region: as many test patients
    as in FLamby's, with any outcome, for the deaths in FLamby's are not shared out evenly.
    """

    died_within_days: int | None = Field(default=None, ge=1)
    split_seed: int | None = Field(default=None, ge=0)

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """Write one CSV per region of the study."""
        check_hospitals(study, REGIONS)
        source = data_folder(data_dir, "tcga-brca")
        table = existing_file(source, "brca.csv")
        header, patients = _read(table)
        parts = _parts(existing_file(source, "train_test_split.csv"))
        if self.died_within_days is not None:
            with parsing(table):
                header, patients = _with_death(header, patients, self.died_within_days)
        files = {}
        for hospital in study.hospitals:
            of_region = {
                patient: part
                for patient, (part, region) in parts.items()
                if region == hospital and patient in patients
            }
            if self.split_seed is not None:
                of_region = _drawn([p for p in patients if p in of_region], self.split_seed)
            rows = [[*patients[p], of_region[p]] for p in patients if p in of_region]
            path = folder / hospital / "patients.csv"
            write_table(path, [*header, SPLIT], rows)
            files[hospital] = HospitalFiles(path)
        return files


def _read(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the columns but the patient's name, and each patient's cells."""
    header, *rows = read_rows(path)
    if header[0] != PATIENT or not {EVENT, DAYS} <= {*header}:
        raise DataError(f"{path} is not FLamby's table of that name. Fetch it again.")
    return header[1:], {row[0]: row[1:] for row in rows}


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
    header, *rows = read_rows(path)
    if not {PATIENT, "fold2"} <= {*header}:
        raise DataError(f"{path} is not FLamby's table of that name. Fetch it again.")
    patient, fold = header.index(PATIENT), header.index("fold2")
    found = {row[patient]: row[fold].rpartition("_") for row in rows}
    with parsing(path):
        regions = {name: REGIONS[int(number)] for name, (_, _, number) in found.items()}
    return {name: (part, regions[name]) for name, (part, _, _) in found.items()}


def _drawn(patients: Sequence[str], seed: int) -> dict[str, str]:
    """For each patient "train" or "test"."""
    train, test = train_test_split(patients, test_size=TEST_SHARE, random_state=seed)
    return {**dict.fromkeys(train, "train"), **dict.fromkeys(test, "test")}
