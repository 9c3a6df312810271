"""One round's updates, and the few questions that an algorithm may ask about them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from erosion_common.aggregation import vectors
from erosion_common.aggregation.vectors import Block, block_places
from erosion_common.sealed.phases import Hello
from erosion_common.support.files import naming

HospitalName = str  # a hospital's enrolled name, never Flower's node id


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one hospital returns for one round."""

    agent: HospitalName
    round: int
    # (dim,) float32, another app's of its model's type; parameters after local SGD minus before
    delta: Tensor
    num_samples: float  # training samples that it counts for; only another app's are a fraction
    samples_seen: float  # samples that this round's local steps used
    attachments: Mapping[str, Tensor] = field(default_factory=dict)
    hello: Hello | None = None  # of a sealed round, where `delta` is empty
    norm: float | None = None  # Euclidean, of delta; None where nobody has measured it
    attached_norms: Mapping[str, float] = field(default_factory=dict)
    # Euclidean, of the attachments that others train on
    steps: int | None = None  # mini-batches of this round; None where it did not say how many
    all_samples: float | None = None  # that the hospital has, |S_i|; None: those that it counts for


class Cohort(Protocol):
    """One round's accepted updates: the user's own first, then the peers by name."""

    @property
    def own(self) -> Update:
        """The user's own update."""
        ...

    @property
    def updates(self) -> Sequence[Update]:
        """Every accepted update, own first, then by name; the deltas may be absent from memory."""
        ...

    @property
    def peers(self) -> Sequence[HospitalName]:
        """The other hospitals' names, ascending; may be empty."""
        ...

    def own_norm(self) -> float:
        """Return |d_0|."""
        ...

    def norms(self) -> Tensor:
        """Return |d_i| of every update, own first: (n+1,) float64."""
        ...

    def distances_to_own(self) -> Tensor:
        """Return every peer's |d_i - d_0| / |d_0|: (n,) float64; infinite if |d_0| = 0 < |d_i|."""
        ...

    def gram(self) -> Tensor:
        """Return inner products of all updates, own first: (n+1, n+1) float64."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of weight times update, own first: weights (n+1,) -> (dim,)."""
        ...

    def blocks(self) -> Iterator[Block]:
        """Yield all updates block by block, in order: the block's place and every update's values.

        The values are n+1 tensors (width,) float32, own first, to be read and not changed, and only
        until the next part is asked for. This is for rules that need each coordinate separately
        (a median); its memory does not grow with the number of hospitals.
        """
        ...


@dataclass(frozen=True)
class BlockwiseCohort(ABC):
    """A cohort that reads the updates block by block for every answer."""

    own: Update
    others: Mapping[HospitalName, Update] = field(default_factory=dict)

    @abstractmethod
    def read(self, rows: Sequence[int]) -> Iterable[Block]:
        """Return those updates (by their place in `updates`), block by block."""

    @cached_property
    def peers(self) -> tuple[HospitalName, ...]:
        """The other hospitals' names, ascending."""
        return tuple(sorted(self.others))

    @cached_property
    def updates(self) -> tuple[Update, ...]:
        """Every accepted update, own first."""
        return (self.own, *(self.others[peer] for peer in self.peers))

    @cached_property
    def _own_norm_and_distances(self) -> Tensor:
        return vectors.own_norm_and_distances(self.read(range(len(self.updates))))

    def own_norm(self) -> float:
        """Return |d_0|."""
        return float(self._own_norm_and_distances[0])

    def norms(self) -> Tensor:
        """Return |d_i|, own first: (n+1,) float64."""
        return vectors.norms(self.read(range(len(self.updates))))

    def distances_to_own(self) -> Tensor:
        """Return |d_i - d_0| / |d_0| of every peer: (n,) float64."""
        own, *apart = self._own_norm_and_distances.tolist()
        # Two zero updates are equal: their distance is 0, not 0/0.
        relative = [0.0 if a == 0 else a / own if own else math.inf for a in apart]
        return torch.tensor(relative, dtype=torch.float64)

    def gram(self) -> Tensor:
        """Return inner products of all updates, own first: (n+1, n+1) float64."""
        return vectors.gram(self.read(range(len(self.updates))))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of weight times update, own first: (n+1,) -> (dim,) of their type."""
        factors: list[float] = weights.tolist()
        if len(factors) != len(self.updates):
            raise ValueError(f"{len(factors)} weights for {len(self.updates)} updates")
        rows = [row for row, factor in enumerate(factors) if factor]  # a weight of 0 costs nothing
        used = [factors[row] for row in rows]
        blocks, own = self.read(rows) if rows else (), self.own.delta
        return vectors.weighted_sum(blocks, used, len(own), own.dtype)

    def blocks(self) -> Iterator[Block]:
        """Yield all updates, block by block, own first."""
        return iter(self.read(range(len(self.updates))))


class MemoryCohort(BlockwiseCohort):
    """A cohort with all updates in memory."""

    def read(self, rows: Sequence[int]) -> list[Block]:
        """Return views of those updates, block by block."""
        deltas = [self.updates[row].delta for row in rows]
        places = block_places(len(deltas[0]), len(deltas))
        return [(place, tuple(delta[place] for delta in deltas)) for place in places]


def squared_distances(cohort: Cohort) -> Tensor:
    """Return |d_i - d_j|^2 of all its updates, own first: (n+1, n+1) float64."""
    gram = cohort.gram()
    squares = gram.diagonal()
    # A product of matrices is symmetric up to rounding only, and equal scores are to be equal.
    found = (squares[:, None] + squares - (gram + gram.T)).clamp(min=0.0)
    return found.fill_diagonal_(0.0)


LARGE = 2**14  # numbers; a smaller attachment is kept in memory


def store(folder: Path, update: Update) -> Update:
    """Write the update's values to `folder`, and return it with its arrays mapped from there.

    A mapped tensor takes memory only where it is read, and gives it back when others want it, so
    such updates can be kept by the hundred. The files belong to this round: the next update of the
    same hospital takes their place. Agents' names are the study's, which are safe as file names.
    """
    attachments = {
        name: values
        if values.numel() < LARGE
        else _mapped(folder / f"{update.agent}.{number}.f32", values)
        for number, (name, values) in enumerate(sorted(update.attachments.items()))
    }
    delta = _mapped(_path(folder, update), update.delta)
    return replace(update, delta=delta, attachments=attachments)


def _mapped(path: Path, values: Tensor) -> Tensor:
    if not values.numel():  # of a sealed round
        return values
    path.unlink(missing_ok=True)  # a new file, so that nothing that maps the old one sees it change
    with naming(path):
        path.write_bytes(values.contiguous().numpy().data)  # `tofile` may not notice a full disk
    mapped = torch.from_file(str(path), shared=False, size=values.numel())
    return mapped.reshape(values.shape)


@dataclass(frozen=True)
class DiskCohort(BlockwiseCohort):
    """A cohort of updates that `store` has put into `folder`.

    Its answers are those of a cohort in memory, bit by bit: the blocks are the same.
    """

    folder: Path = Path()

    def read(self, rows: Sequence[int]) -> Iterator[Block]:
        """Yield those updates, block by block, each block read over the last one."""
        # Reading, not mapping: pages of a map would count as ours until the kernel wants them back.
        paths = [_path(self.folder, self.updates[row]) for row in rows]
        places = list(block_places(len(self.own.delta), len(rows)))
        widest = max((place.stop - place.start for place in places), default=0)
        buffer = torch.empty(len(rows), widest)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]
            for place in places:
                part = buffer[:, : place.stop - place.start]
                for file, row in zip(files, part, strict=True):
                    wanted = 4 * len(row)
                    if file.readinto(row.numpy()) != wanted:
                        raise OSError(f"{file.name} ends before its {len(self.own.delta)} values")
                yield place, tuple(part)


def _path(folder: Path, update: Update) -> Path:
    return folder / f"{update.agent}.f32"
