"""A coordinator's records of sealed rounds: the one it is at, and sums that did not fit.

Every hospital signed what it put under its masks. When a person there opens the masks, anybody can
see what that was, and how far from the user's update it really is.
"""

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

import safetensors.torch
from pydantic import Field
from torch import Tensor

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import with_checksum, without_checksum, write_json
from erosion_common.formats.tensor_file import metadata, read_with_header
from erosion_common.sealed import phases
from erosion_common.sealed.masks import BUCKETS
from erosion_common.sealed.phases import Hello, Receipt, RoundContext, View
from erosion_common.sealed.power_residues import MOST_BITS
from erosion_common.settings.base import Settings
from erosion_common.support.files import (
    MOST_KEPT_BYTES,
    cut_to_whole_lines,
    naming,
    read_named,
    write_atomically,
)


class Evidence(Settings):
    """One round. The user's own update is in a second file."""

    version: Literal[3] = 3
    context: RoundContext
    roster: dict[str, Hello]
    asked: phases.Hash  # of phase 2
    weights: dict[str, phases.ExactFloat]
    scale: phases.ExactFloat
    distances: dict[str, phases.ExactFloat]  # as they were claimed
    delivered: dict[str, Receipt]
    apart: float  # |M - W g_0|
    at_most: float  # what the claimed distances allow

    @property
    def view(self) -> View:
        """The view that the hospitals got."""
        return View(self.asked, self.weights, self.scale)


_EVIDENCE = "-evidence.json"


class PendingRound(Settings):
    """A round from phase 2 on: no update of another hospital, and nothing that takes off a mask.

    A site gives one distance in a round and puts its update into one sum. A coordinator that was
    killed and comes back asks the same again, and gets the same answers; nothing else would be
    answered.
    """

    round: int
    attempt: phases.AttemptId
    roster: dict[str, Hello]
    primes: tuple[phases.Hexadecimal, phases.Hexadecimal]  # of the user's key for distances
    # The question, one value after the other: as many as a sketch, as long as a modulus.
    sealed_own: phases.Hexadecimal = Field(max_length=BUCKETS * MOST_BITS // 8)
    distances: dict[str, phases.ExactFloat] = Field(default_factory=dict)
    weights: dict[str, phases.ExactFloat] | None = None  # None: phase 3 was not begun
    delivered: tuple[str, ...] | None = None  # None: phase 4 was not begun


_PROGRESS = {"distances", "weights", "delivered"}


def _line_of(pending: PendingRound, include: set[str] | None = None) -> str:
    values = pending.model_dump(mode="json", include=include)
    return json.dumps(with_checksum(values)) + "\n"


class SumRecords:
    """Keeps them for one arm, in memory: a simulation's. `RecordFiles` are on the disk."""

    def __init__(self) -> None:
        self.last: PendingRound | None = None
        self.suspected: list[tuple[Evidence, Tensor]] = []

    def pending(self) -> PendingRound | None:
        """Return the newest round that asked for distances. Raises CheckpointError."""
        return self.last

    def begin(self, pending: PendingRound) -> None:
        """Kept when this returns."""
        self.last = pending

    def suspect(self, evidence: Evidence, own: Tensor) -> None:
        """Keep what an audit needs, with the user's own update."""
        self.suspected.append((evidence, own))


class RecordFiles(SumRecords):
    """For deployments: files of one arm in a run's folder."""

    def __init__(self, folder: Path, arm: str) -> None:
        super().__init__()
        self._pending = folder / f"{arm}-round.json"
        self._evidence = folder / f"{arm}{_EVIDENCE}"
        self._own = folder / f"{arm}-own-update.safetensors"

    def pending(self) -> PendingRound | None:
        """Return the newest. Raises CheckpointError."""
        if self.last is None:  # of an earlier program
            cut_to_whole_lines(self._pending)
            self.last = _read(self._pending, PendingRound)
        return self.last

    def begin(self, pending: PendingRound) -> None:
        """Write the question and flush it; append its progress without a flush.

        A coordinator that lost the progress asks the same again, and gets the same distances.
        """
        if pending.weights is None:
            write_atomically(self._pending, _line_of(pending), mode=0o600)
        else:
            with naming(self._pending), self._pending.open("a", encoding="ascii") as file:
                file.write(_line_of(pending, include=_PROGRESS))
        self.last = pending

    def suspect(self, evidence: Evidence, own: Tensor) -> None:
        """Two files, which only their owner may read."""
        tensors = {"own": own.contiguous()}
        content = safetensors.torch.save(tensors, metadata=metadata({}, tensors))
        write_atomically(self._own, content, mode=0o600)
        write_json(self._evidence, evidence, mode=0o600)

    def evidence(self) -> tuple[Evidence, Tensor] | None:
        """Read the evidence that `suspect` kept. Raises CheckpointError."""
        evidence = _read(self._evidence, Evidence)
        if evidence is None:
            return None
        try:
            return evidence, read_with_header(self._own)[1]["own"]
        except (OSError, KeyError, ValueError) as problem:
            raise CheckpointError(
                f"{self._own} cannot be read ({problem})",
                remedy="Without the user's own update of that round no distance can be checked;"
                " restore the file from a backup.",
            ) from None


def arms_in(folder: Path) -> list[str]:
    """Return the arms with evidence there."""
    return sorted(path.name.removesuffix(_EVIDENCE) for path in folder.glob(f"*{_EVIDENCE}"))


S = TypeVar("S", bound=Settings)


def _read(path: Path, form: type[S]) -> S | None:
    try:
        text = read_named(path, most_bytes=MOST_KEPT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}.") from None
    try:
        values: dict[str, Any] = {}
        for part in text.splitlines() if form is PendingRound else [text]:
            values |= without_checksum(json.loads(part))
        return form.model_validate_json(json.dumps(values))
    except (ValueError, AttributeError, RecursionError):  # pydantic's is the first
        raise CheckpointError(
            f"{path} is not what this program wrote there, or another version did",
            remedy="Restore it from a backup; without it, delete it: the round that it is about"
            " is then skipped.",
        ) from None
