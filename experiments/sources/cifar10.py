"""CIFAR-10 (Krizhevsky 2009) with classes shared out by a Dirichlet distribution."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from erosion.common.errors import DataError, StudyError
from erosion.common.study.study import Study
from erosion.experiments.sources.source import (
    HospitalFiles,
    SourceBase,
    data_folder,
    existing_file,
    read_arrays,
)

FOLDER, TRAINING_FILE, TEST_FILE = "cifar10", "cifar10_jpeg_train.npz", "cifar10_jpeg_test.npz"
CLASSES = 10

Indices = NDArray[np.int64]


class Cifar10(SourceBase):
    """Every hospital draws its shares of the ten classes, and then as many images as the others.

    The shares are drawn from a Dirichlet distribution with the parameter `concentration` for each
    class (as by Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019):
    few classes at a hospital where it is small. No image is at two hospitals. The study's seed
    decides, so another seed is other hospitals. The user splits its test part off what it has.
    """

    concentration: float = Field(default=0.5, gt=0, le=1000)
    images: int = Field(default=1000, ge=20)  # of each hospital

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """Write one npz per hospital: images (n, 32, 32, 3) uint8 and labels (n,) int64."""
        jpegs = read_jpegs(existing_file(data_folder(data_dir, FOLDER), TRAINING_FILE))
        wanted, most = len(study.hospitals) * self.images, int(np.bincount(jpegs.labels).min())
        if wanted > most:
            raise StudyError(
                f"Study {study.name}: images = {self.images} for {len(study.hospitals)} hospitals;"
                f" together they may draw {most}, for they may all draw the same class. Write"
                f" {most // len(study.hospitals)} or less."
            )
        generator = np.random.default_rng(study.seed)
        parts = share_out(jpegs.labels, len(study.hospitals), self, generator)
        files = {}
        for hospital, rows in zip(study.hospitals, parts, strict=True):
            path = folder / hospital / "images.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, images=jpegs.images(rows), labels=jpegs.labels[rows])
            files[hospital] = HospitalFiles(path)
        return files


def share_out(
    labels: Indices, num_hospitals: int, options: Cifar10, generator: np.random.Generator
) -> list[Indices]:
    """Row numbers of each hospital's images, ascending.

    Every class of `labels` (n,) has as many images as all hospitals together draw, or more.
    """
    waiting = [generator.permutation(np.flatnonzero(labels == c)) for c in range(CLASSES)]
    parts = []
    for _ in range(num_hospitals):
        shares = generator.dirichlet(np.full(CLASSES, options.concentration))
        counts = generator.multinomial(options.images, shares).tolist()
        parts.append(np.sort(np.concatenate([w[:n] for w, n in zip(waiting, counts, strict=True)])))
        waiting = [rows[count:] for rows, count in zip(waiting, counts, strict=True)]
    return parts


@dataclass(frozen=True, slots=True, eq=False)
class Jpegs:
    """Images as JPEG files, one after the other."""

    content: bytes
    offsets: Indices  # (n + 1,) where each begins, and where the last one ends
    labels: Indices  # (n,)
    path: Path  # of the file that they are of

    def images(self, rows: Indices) -> NDArray[np.uint8]:
        """Return some of them: (m, 32, 32, 3). Raises DataError."""
        spans = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        try:
            found = np.stack(
                [np.asarray(Image.open(io.BytesIO(self.content[low:high]))) for low, high in spans]
            )
        except (OSError, ValueError) as problem:  # Pillow's are among them
            raise _damaged(self.path, str(problem)) from None
        if found.shape[1:] != (32, 32, 3):
            raise _damaged(self.path, f"its images are of shape {found.shape[1:]}")
        return found


def read_jpegs(path: Path) -> Jpegs:
    """Return one of the two files; raises DataError."""
    jpeg, offsets, labels = (read_arrays(path, **{n: ()})[0] for n in ("jpeg", "offsets", "labels"))
    if len(offsets) != len(labels) + 1 or np.any(labels >= CLASSES):
        raise _damaged(path, f"{len(offsets)} offsets, {len(labels)} labels of {CLASSES} classes")
    return Jpegs(jpeg.tobytes(), offsets.astype(np.int64), labels.astype(np.int64), path)


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} is damaged or another file ({what}). experiments/README.md says what it has: make"
        " it again."
    )
