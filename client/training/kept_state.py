"""State that a hospital keeps between the rounds of an arm: personal models, control variates.

It never leaves the site and outlives the program. It belongs to one run of one study: a coordinator
that begins anew finds nothing kept. Of the last round both ends are kept, so that a round which is
asked for again, by a coordinator that was interrupted, starts from where it started the first time.
"""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import safetensors.torch

from erosion.common.errors import CheckpointError, SiteError
from erosion.common.learning.local_work import Tensors
from erosion.common.support.files import write_atomically

VERSION = 1
MOST_FILES = 100  # arms of studies; beyond, the one that was used longest ago goes


@dataclass(frozen=True, slots=True)
class StateKey:
    """Whose state it is."""

    study: str  # digest
    arm: str
    run: str


@dataclass(frozen=True, slots=True, eq=False)
class _LastRound:
    place: StateKey
    round: int = 0
    before: Tensors = field(default_factory=dict)
    after: Tensors = field(default_factory=dict)


class KeptState:
    """The state of every study and arm that this hospital takes part in."""

    def __init__(self, folder: Path | None) -> None:
        """Files in `folder`; None: in memory, and lost with the program."""
        self._folder = folder
        self._in_memory: dict[tuple[str, str], _LastRound] = {}  # by study and arm

    def before(self, place: StateKey, round_number: int) -> Tensors:
        """What that round starts from: nothing in a run's first round. Raises CheckpointError."""
        last = self._load(place)
        if last.place.run != place.run or last.round > round_number:
            return {}
        return last.before if last.round == round_number else last.after

    def keep(self, place: StateKey, round_number: int, before: Tensors, after: Tensors) -> None:
        """Note that the round went from `before` to `after`. Raises SiteError."""
        if not before and not after:
            return  # most methods keep nothing
        last = _LastRound(place, round_number, _on_cpu(before), _on_cpu(after))
        if self._folder is None:
            self._in_memory[place.study, place.arm] = last
            return
        path = self._path(self._folder, place)
        is_new = not path.exists()
        try:
            write_atomically(path, _encoded(last), mode=0o600)
            if is_new:
                _prune(self._folder)
        except OSError as problem:
            raise SiteError(
                f"What this study keeps at the site cannot be written to {path}: {problem}."
                " Name a folder that can be written to: compute.state in the site file."
            ) from None

    def _load(self, place: StateKey) -> _LastRound:
        nothing = _LastRound(place)
        if self._folder is None:
            return self._in_memory.get((place.study, place.arm), nothing)
        path = self._path(self._folder, place)
        try:
            return _decoded(path) if path.exists() else nothing
        except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as problem:
            raise CheckpointError(
                f"{path} cannot be read ({problem}). Delete it: the site then starts this arm of"
                " the study afresh."
            ) from None

    @staticmethod
    def _path(folder: Path, place: StateKey) -> Path:
        return folder / place.study[:16] / f"{place.arm}.safetensors"


def _prune(folder: Path) -> None:
    """Let go of the oldest studies' state, so that the disk does not fill over the years."""
    files = sorted(folder.glob("*/*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[:-MOST_FILES]:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another arm's is there
            path.parent.rmdir()


def _encoded(last: _LastRound) -> bytes:
    tensors = {
        f"{when}/{name}": tensor
        for when, kept in (("before", last.before), ("after", last.after))
        for name, tensor in kept.items()
    }
    place = last.place
    header = {
        "version": VERSION,
        "place": [place.study, place.arm, place.run],
        "round": last.round,
    }
    content: bytes = safetensors.torch.save(tensors, metadata={"erosion": json.dumps(header)})
    return content


def _decoded(path: Path) -> _LastRound:
    with safetensors.safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["erosion"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']}, expected {VERSION}")

    def of(when: str) -> Tensors:
        prefix = f"{when}/"
        return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}

    return _LastRound(StateKey(*header["place"]), int(header["round"]), of("before"), of("after"))


def _on_cpu(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
