"""The partition of MNIST over agents (Gengler, Beaussart, Yuan 2020, table I and notebook).

A pattern gives agent 0's share of each digit. Agent i has the pattern shifted left by i: its share
of digit c is pattern[(c + i) mod 10]. So the more alike two agents' digits, the nearer their
numbers, and with 100 agents nine others have exactly the user's pattern.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PatternName = Literal["A", "B", "C", "D", "E", "F", "G"]
PartitionName = Literal["disjoint", "reference"]
Indices = NDArray[np.int64]

PATTERNS: dict[PatternName, tuple[float, ...]] = {  # share of the digits 0 to 9
    "A": (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1),
    "B": (0.0, 0.0, 0.0, 0.0, 0.2, 0.6, 0.2, 0.0, 0.0, 0.0),
    "C": (0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "D": (0.0, 0.0, 0.0, 0.4, 0.1, 0.0, 0.1, 0.4, 0.0, 0.0),
    "E": (0.0, 0.0, 0.0, 0.1, 0.2, 0.4, 0.2, 0.1, 0.0, 0.0),
    "F": (0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.0),
    "G": (0.91, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
}

TEST_COUNTS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)  # MNIST's, of 0 to 9
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
    each digit, so many that the agent has about `max_images` and the same pattern.
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
    """One digit's images cut at the running sum of the agents' shares."""
    running = np.cumsum(shares) / np.sum(shares)
    cuts = np.rint(running * len(rows)).astype(int)
    return np.split(rows, cuts[:-1])


def _reference(rows: Indices, shares: Sequence[float]) -> list[Indices]:
    """One digit's images in 100 chunks; an agent with a demand of 12.5 chunks takes 13 of them.

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


def commonest_share(pattern: PatternName) -> float:
    """The share of the commonest digit among agent 0's test images."""
    labels = np.repeat(np.arange(10), TEST_COUNTS)
    counts = np.bincount(labels[user_test_images(labels, pattern)])
    return float(counts.max() / counts.sum())
