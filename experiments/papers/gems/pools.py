"""Patients of the GEMS experiments: one pool, and the nodes that it is divided among by label."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Which labels each node has: the paper's for ten classes. For the seven of HAM10000 it does not
# say; these are ours.
LABELS: dict[tuple[int, int], Sequence[Sequence[int]]] = {
    (10, 2): ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)),
    (10, 3): ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9)),
    (10, 5): ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)),
    (7, 2): ((0, 1, 2, 3), (4, 5, 6)),
    (7, 3): ((0, 1), (2, 3), (4, 5, 6)),
    (7, 5): ((0,), (1,), (2,), (3, 4), (5, 6)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Inputs with their labels."""

    inputs: Tensor  # (n, d) float32
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def of_labels(self, labels: Sequence[int]) -> "Samples":
        """Those of some classes."""
        return self.only(torch.isin(self.labels, torch.tensor(labels)))

    def only(self, rows: Tensor) -> "Samples":
        """Some rows, by number or by a mask."""
        return Samples(self.inputs[rows], self.labels[rows])

    def drawn(self, count: int, generator: torch.Generator) -> "Samples":
        """Some at random, without replacement."""
        return self.only(torch.randperm(len(self), generator=generator)[:count])


@dataclass(frozen=True, slots=True)
class Pool:
    """All that an experiment is made of."""

    train: Samples
    validation: Samples
    test: Samples
    classes: int

    def nodes(self, count: int) -> list[tuple[Samples, Samples]]:
        """Each node's training and validation part; the test part is everyone's."""
        groups = LABELS[self.classes, count]
        return [(self.train.of_labels(own), self.validation.of_labels(own)) for own in groups]
