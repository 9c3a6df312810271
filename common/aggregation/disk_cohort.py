"""A cohort whose updates lie in files: memory does not grow with the number of hospitals.

store(folder, update)  as each update arrives and has been screened
rounds.advance(..., cohort_of=partial(DiskCohort, folder=folder))
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import BlockwiseCohort, Update
from erosion.common.aggregation.vectors import Block, block_places

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
    values.contiguous().numpy().tofile(path)
    mapped = torch.from_file(str(path), shared=False, size=values.numel())
    return mapped.reshape(values.shape)


@dataclass(frozen=True)
class DiskCohort(BlockwiseCohort):
    """A cohort of updates that `store` has put into `folder`.

    Its answers are those of a cohort in memory, bit by bit: the blocks are the same.
    """

    folder: Path = Path()

    def read(self, rows: Sequence[int]) -> Iterator[Block]:
        """Those updates, block by block, each block read over the last one."""
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
