"""A cohort whose updates lie in files: memory does not grow with the number of hospitals.

store(folder, update)  as each update arrives and has been screened
rounds.advance(..., cohort_of=partial(DiskCohort, folder=folder))
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from common.cohort import BlockwiseCohort, Update
from common.vectors import Block, block_places


def store(folder: Path, update: Update) -> Update:
    """Write the update's values to `folder`, and return it with its delta mapped from there.

    A mapped tensor takes memory only where it is read, so such updates can be kept by the hundred.
    The file belongs to this round: the caller deletes the folder when the round is over. Agents'
    names are the study's, which are safe as file names.
    """
    path = _path(folder, update)
    update.delta.numpy().tofile(path)
    mapped = torch.from_file(str(path), shared=False, size=len(update.delta))
    return replace(update, delta=mapped)


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
