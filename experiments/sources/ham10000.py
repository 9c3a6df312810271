"""Pictures of skin lesions in four collections (HAM10000; Tschandl, Rosendahl and Kittler 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    check_hospitals,
    data_folder,
    existing_file,
    read_arrays,
)

FOLDER, FILE = "ham10000", "ham10000_28x28.npz"
COLLECTIONS = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")  # by number in the file


class Ham10000(SourceBase):
    """Each collection is a hospital: a practice in Queensland, and three times of one in Vienna.

    A lesion can have several pictures, which its number keeps on one side of every split. The few
    lesions that two collections have are left out, so that no hospital trains on a lesion that the
    user's test part may hold.
    """

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """Write one npz per hospital: images (n, 28, 28, 3) uint8, labels (n,) and lesions (n,)."""
        check_hospitals(study, COLLECTIONS)
        pictures = read_ham10000(data_dir)
        usable = ~pictures.is_shared
        files = {}
        for hospital in study.hospitals:
            rows = np.flatnonzero(usable & (pictures.sites == COLLECTIONS.index(hospital)))
            path = folder / hospital / "images.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(
                path,
                images=pictures.images[rows],
                labels=pictures.labels[rows],
                lesions=pictures.lesions[rows],
            )
            files[hospital] = HospitalFiles(path, patient="lesions")
        return files


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """All pictures, by name."""

    images: NDArray[np.uint8]  # (n, 28, 28, 3)
    labels: NDArray[np.int64]  # (n,) 0 akiec, 1 bcc, 2 bkl, 3 df, 4 mel, 5 nv, 6 vasc
    sites: NDArray[np.int64]  # (n,) place in COLLECTIONS
    lesions: NDArray[np.int64]  # (n,) equal for the pictures of one lesion

    @property
    def is_shared(self) -> NDArray[np.bool_]:
        """(n,) whether the lesion has pictures in two collections."""
        both = np.unique(np.stack([self.lesions, self.sites]), axis=1)
        lesions, collections = np.unique(both[0], return_counts=True)
        return np.isin(self.lesions, lesions[collections > 1])


def read_ham10000(data_dir: Path | None) -> Pictures:
    """Return the pictures of the data folder's ham10000/; raises DataError."""
    path = existing_file(data_folder(data_dir, FOLDER), FILE)
    images, *numbers = read_arrays(path, images=(28, 28, 3), labels=(), sites=(), lesions=())
    return Pictures(images, *(array.astype(np.int64) for array in numbers))
