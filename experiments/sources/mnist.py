"""MNIST divided by label distribution (Gengler, Beaussart, Yuan 2020, table I)."""

import gzip
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from erosion.common.errors import DataError, StudyError
from erosion.common.study.study import Study
from erosion.experiments.sources.mnist_partition import (
    PartitionName,
    PatternName,
    partition,
    user_test_images,
)
from erosion.experiments.sources.source import HospitalFiles, SourceBase, data_folder, existing_file


class Mnist(SourceBase):
    """Agent 0 is the study's user, the other agents are the other hospitals in the study's order.

    The user's site splits its test part off what it has. With `add_test_images` the user also has
    MNIST's own test images, as many of each digit as its pattern says (about 1,000), so that the
    test part can be large although the training part is small; choose evaluation.test_share
    accordingly. They are mixed with the others: this is not the paper's fixed test set.
    """

    pattern: PatternName = "C"
    partition: PartitionName = "disjoint"
    max_images: int | None = Field(default=None, ge=10)  # of each agent; None: all of its share
    add_test_images: bool = False

    def write(
        self, study: Study, folder: Path, data_dir: Path | None
    ) -> Mapping[str, HospitalFiles]:
        """One npz per hospital: images (n, 28, 28) uint8 and labels (n,) int64."""
        agents = study.user_first
        if len(agents) % 10:
            raise StudyError(
                f"Study {study.name}: hospitals = {len(agents)} names; the source mnist shares out"
                " ten digits evenly only between 10, 20, 30, ... hospitals."
            )
        if study.has_every_user and self.add_test_images:
            raise StudyError(
                f"Study {study.name}: add_test_images is for a study with one user; leave it out"
                f" where user = {study.user!r}."
            )
        source = data_folder(data_dir, "mnist")
        images, labels = read_mnist(source, "train")
        parts = partition(labels, self.pattern, len(agents), self.partition, self.max_images)
        files = {}
        for agent, (hospital, rows) in enumerate(zip(agents, parts, strict=True)):
            pictures, digits = images[rows], labels[rows]
            if agent == 0 and self.add_test_images:
                more_images, more_labels = read_mnist(source, "t10k")
                chosen = user_test_images(more_labels, self.pattern)
                pictures = np.concatenate([pictures, more_images[chosen]])
                digits = np.concatenate([digits, more_labels[chosen]])
            path = folder / hospital / "images.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, images=pictures, labels=digits)
            files[hospital] = HospitalFiles(path)
        return files


def read_mnist(
    folder: Path, part: Literal["train", "t10k"]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 28, 28) and labels (n,) of one part, in file order; raises DataError."""
    path = existing_file(folder, f"{part}-labels-idx1-ubyte.gz")
    images = _read_idx(existing_file(folder, f"{part}-images-idx3-ubyte.gz"), dimensions=3)
    labels = _read_idx(path, dimensions=1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28) or np.any(labels > 9):
        raise DataError(
            f"{path} does not fit the images beside it: {len(labels)} labels up to"
            f" {labels.max(initial=0)}, and images of shape {images.shape}. Delete both files and"
            " run `erosion data mnist` again."
        )
    return images, labels.astype(np.int64)


def _read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """One idx file: 2 zero bytes, type, number of dimensions, big-endian lengths, the values."""
    damaged = DataError(
        f"{path} is not the MNIST file of that name. Delete it and run `erosion data mnist` again."
    )
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        raise damaged from None
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, 8, dimensions]):  # 8: unsigned bytes
        raise damaged
    shape = tuple(int(length) for length in np.frombuffer(content[4:head], dtype=">u4"))
    if len(content) - head != prod(shape):
        raise damaged
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)
