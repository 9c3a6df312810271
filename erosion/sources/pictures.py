"""Two sets of small pictures: CIFAR-10 (Krizhevsky 2009), and skin lesions (HAM10000).

HAM10000 is by Tschandl, Rosendahl and Kittler (2018).
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from erosion.sources.source import (
    Arrays,
    Indices,
    SourceBase,
    data_folder,
    existing_file,
    read_arrays,
)
from erosion_common.errors import DataError, StudyError
from erosion_common.study.study import Study

CIFAR10, TRAINING_FILE, TEST_FILE = "cifar10", "cifar10_jpeg_train.npz", "cifar10_jpeg_test.npz"
CLASSES = 10


class Cifar10(SourceBase):
    """Every hospital draws its shares of the ten classes, and then as many images as the others.

    The shares are drawn from a Dirichlet distribution with the parameter `concentration` for each
    class (as by Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019):
    few classes at a hospital where it is small. No image is at two hospitals. The study's seed
    decides, so another seed is other hospitals. The user splits its test part off what it has.
    """

    concentration: float = Field(default=0.5, gt=0, le=1000)
    images: int = Field(default=1000, ge=20)  # of each hospital

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, Arrays]]:
        """Images (n, 32, 32, 3) uint8 and labels (n,) int64."""
        jpegs = read_jpegs(existing_file(data_folder(data_dir, CIFAR10), TRAINING_FILE))
        wanted, most = len(study.everyone) * self.images, int(np.bincount(jpegs.labels).min())
        if wanted > most:
            raise StudyError(
                f"images = {self.images} for {len(study.everyone)} hospitals; together they may"
                f" draw {most}, for they may all draw the same class",
                where=f"Study {study.name}",
                remedy=f"Write {most // len(study.everyone)} or less.",
            )
        generator = np.random.default_rng(study.seed)
        parts = share_out(jpegs.labels, len(study.everyone), self, generator)
        for hospital, rows in zip(study.everyone, parts, strict=True):
            yield hospital, {"images": jpegs.images(rows), "labels": jpegs.labels[rows]}


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
        from PIL import Image  # few studies have pictures

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
        f"{path} is damaged or another file ({what})",
        remedy="experiments/README.md says what it has: make it again.",
    )


COLLECTIONS = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")  # by number in the file


class Ham10000(SourceBase):
    """Each collection is a hospital: a practice in Queensland, and three times of one in Vienna.

    A lesion can have several pictures, which its number keeps on one side of every split. The few
    lesions that two collections have are left out, so that no hospital trains on a lesion that the
    user's test part may hold.
    """

    offered = COLLECTIONS
    patient = "lesions"

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, Arrays]]:
        """Images (n, 28, 28, 3) uint8, labels (n,) and lesions (n,)."""
        pictures = read_ham10000(data_dir)
        usable = ~pictures.is_shared
        for hospital in study.everyone:
            rows = np.flatnonzero(usable & (pictures.sites == COLLECTIONS.index(hospital)))
            yield (
                hospital,
                {
                    "images": pictures.images[rows],
                    "labels": pictures.labels[rows],
                    "lesions": pictures.lesions[rows],
                },
            )


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
    path = existing_file(data_folder(data_dir, "ham10000"), "ham10000_28x28.npz")
    images, *numbers = read_arrays(path, images=(28, 28, 3), labels=(), sites=(), lesions=())
    return Pictures(images, *(array.astype(np.int64) for array in numbers))
