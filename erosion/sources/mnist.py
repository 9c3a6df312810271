"""The partition of MNIST over agents (Gengler, Beaussart, Yuan 2020, table I and notebook).

A pattern gives agent 0's share of each digit. Agent i has the pattern shifted left by i: its share
of digit c is pattern[(c + i) mod 10]. So the more alike two agents' digits, the nearer their
numbers, and with 100 agents nine others have exactly the user's pattern."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from math import ceil, floor, prod
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from erosion.sources.source import Arrays, Indices, SourceBase, data_folder, existing_file
from erosion_common.errors import DataError, StudyError
from erosion_common.study.study import Study

PatternName = Literal["A", "B", "C", "D", "E", "F", "G"]
PartitionName = Literal["disjoint", "reference"]

PATTERNS: dict[PatternName, tuple[float, ...]] = {  # share of the digits 0 to 9
    "A": (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1),
    "B": (0.0, 0.0, 0.0, 0.0, 0.2, 0.6, 0.2, 0.0, 0.0, 0.0),
    "C": (0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "D": (0.0, 0.0, 0.0, 0.4, 0.1, 0.0, 0.1, 0.4, 0.0, 0.0),
    "E": (0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.2, 0.1, 0.0, 0.0),
    "F": (0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.0),
    "G": (0.91, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
}

CHUNKS = 100  # of each digit, in the reference partition


def partition(
    labels: Indices,
    pattern: PatternName,
    num_agents: int,
    how: PartitionName,
    max_images: int | None = None,
) -> list[Indices]:
    """Row numbers of each agent's images, ascending; `num_agents` is a multiple of ten.

    `disjoint`: every image goes to exactly one agent, as the paper says. `reference`: what the
    authors' notebook does, where agents can share images. `max_images` keeps the first images of
    each digit, enough for about `max_images` at the agent with the same pattern.
    """
    share_out = _disjoint if how == "disjoint" else _reference
    parts: list[list[Indices]] = [[] for _ in range(num_agents)]
    for digit in range(10):
        rows = np.flatnonzero(labels == digit)
        shares = [PATTERNS[pattern][(digit + agent) % 10] for agent in range(num_agents)]
        for part, share, own in zip(parts, shares, share_out(rows, shares), strict=True):
            part.append(own if max_images is None else own[: round(max_images * share)])
    return [np.sort(np.concatenate(part)) for part in parts]


def _disjoint(rows: Indices, shares: Sequence[float]) -> list[Indices]:
    """Return one digit's images cut at the running sum of the agents' shares."""
    running = np.cumsum(shares) / np.sum(shares)
    cuts = np.rint(running * len(rows)).astype(int)
    return np.split(rows, cuts[:-1])


def _reference(rows: Indices, shares: Sequence[float]) -> list[Indices]:
    """Return one digit's images in 100 chunks; a demand of 12.5 chunks takes 13 of them.

    The next agent starts at the 13th again, so that chunk is used twice; the images behind the
    100th chunk are not used.
    """
    length = len(rows) // (CHUNKS - 1)
    chunks = [rows[length * i : length * (i + 1)] for i in range(CHUNKS)]
    parts, first = [], 0
    for share in shares:
        demand = CHUNKS * share / (len(shares) / 10)  # in chunks
        parts.append(np.concatenate([rows[:0], *chunks[first : first + ceil(demand)]]))
        first += floor(demand)
    return parts


def user_test_images(labels: Indices, pattern: PatternName) -> Indices:
    """Row numbers of agent 0's test images: the first of each digit, in the pattern's shares.

    `labels` are those of MNIST's 10,000 test images; the result has 922 (B) to 1038 (C) rows.
    """
    chosen = []
    for digit, share in enumerate(PATTERNS[pattern]):
        rows = np.flatnonzero(labels == digit)
        chosen.append(rows[: int(share * len(rows))])
    return np.sort(np.concatenate(chosen))


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

    def contents(self, study: Study, data_dir: Path | None) -> Iterator[tuple[str, Arrays]]:
        """Images (n, 28, 28) uint8 and labels (n,) int64."""
        agents = study.user_first
        if len(agents) % 10:
            raise StudyError(
                f"hospitals = {len(agents)} names; the source mnist shares out ten digits evenly"
                " only between 10, 20, 30, ... hospitals.",
                where=f"Study {study.name}",
            )
        if study.has_every_user and self.add_test_images:
            raise StudyError(
                "add_test_images is for a study with one user; leave it out where user ="
                f" {study.user!r}.",
                where=f"Study {study.name}",
            )
        source = data_folder(data_dir, "mnist")
        images, labels = read_mnist(source, "train")
        parts = partition(labels, self.pattern, len(agents), self.partition, self.max_images)
        for agent, (hospital, rows) in enumerate(zip(agents, parts, strict=True)):
            pictures, digits = images[rows], labels[rows]
            if agent == 0 and self.add_test_images:
                more_images, more_labels = read_mnist(source, "t10k")
                chosen = user_test_images(more_labels, self.pattern)
                pictures = np.concatenate([pictures, more_images[chosen]])
                digits = np.concatenate([digits, more_labels[chosen]])
            yield hospital, {"images": pictures, "labels": digits}


def read_mnist(
    folder: Path, part: Literal["train", "t10k"]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 28, 28) and labels (n,) of one part, in file order; raises DataError."""
    path = existing_file(folder, f"{part}-labels-idx1-ubyte.gz")
    images = _read_idx(existing_file(folder, f"{part}-images-idx3-ubyte.gz"), dimensions=3)
    labels = _read_idx(path, dimensions=1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28) or np.any(labels > 9):
        raise DataError(
            f"{path} does not fit its images: {len(labels)} labels up to"
            f" {labels.max(initial=0)}, and images of shape {images.shape}",
            remedy="Delete both files and run `erosion data mnist` again.",
        )
    return images, labels.astype(np.int64)


def _read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file: 2 zero bytes, type, number of dimensions, big-endian lengths, values."""
    damaged = DataError(
        f"{path} is not the MNIST file of that name",
        remedy="Delete it and run `erosion data mnist` again.",
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
