"""The Titanic's passengers by age, as Grimberg et al. (2020) gave them to four hospitals."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    check_hospitals,
    write_table,
)
from erosion.experiments.sources.titanic_passengers import (
    AUTHORS_SEED,
    FEATURES,
    Split,
    load_passengers,
    split_indices,
)

HOSPITALS = ("to-20", "to-35", "above-35", "age-unknown")
SURVIVED, SPLIT = "survived", "split"


class Titanic(SourceBase):
    """Columns as the authors made them, and their test part as a column "split".

    In `AGE_SOME` the first two hospitals share everybody up to 35. A hospital that is the user is
    tested on half of its passengers; the others train on all of theirs.
    """

    ages: Split = "AGE_STRICT"
    split_seed: int = Field(default=AUTHORS_SEED, ge=0)

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """One CSV per hospital of the study."""
        check_hospitals(study, HOSPITALS)
        passengers = load_passengers(data_dir)
        rows = split_indices(passengers, self.ages, self.split_seed)
        files = {}
        for hospital, indices in zip(HOSPITALS, rows, strict=True):
            if hospital not in study.hospitals:
                continue
            is_user = study.has_every_user or hospital == study.user
            tested = 1 + len(indices) // 2 if is_user else 0
            path = folder / hospital / "passengers.csv"
            table = [
                [
                    *passengers.inputs[row].tolist(),
                    int(passengers.survived[row]),
                    "test" if place < tested else "train",
                ]
                for place, row in enumerate(indices)
            ]
            write_table(path, [*FEATURES, SURVIVED, SPLIT], table)
            files[hospital] = HospitalFiles(path)
        return files
