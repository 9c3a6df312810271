"""A coordinator's records of sealed rounds: the one it is at, and sums that did not fit.

Every hospital signed what it put under its masks. When a person there opens the masks, anybody can
see what that was, and how far from the user's update it really is.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import safetensors.torch
from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.base import SealedMeasure
from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import without_checksum, write_json
from erosion_common.formats.tensor_file import metadata, read_with_header
from erosion_common.sealed import fields
from erosion_common.sealed.legs import HelloKeys, Lengths, ReceiptSaid
from erosion_common.sealed.masks import BUCKETS
from erosion_common.sealed.paillier import MOST_BITS
from erosion_common.sealed.roster import RoundContext, View
from erosion_common.settings.base import Settings
from erosion_common.support.files import MOST_KEPT_BYTES, read_named, write_atomically


class ContextOf(Settings):
    """A `RoundContext` as JSON."""

    study: str
    run: str
    arm: str
    round: int
    attempt: fields.Attempt
    received: fields.Hash

    @classmethod
    def of(cls, context: RoundContext) -> "ContextOf":
        """Return the form that is kept."""
        return cls(
            study=context.study,
            run=context.run,
            arm=context.arm,
            round=context.round,
            attempt=context.attempt,
            received=context.received,
        )

    @property
    def context(self) -> RoundContext:
        """As it is used."""
        return RoundContext(self.study, self.run, self.arm, self.round, self.attempt, self.received)


class Evidence(Settings):
    """One round. The user's own update is in a second file."""

    version: Literal[3] = 3
    context: ContextOf
    roster: dict[str, HelloKeys]
    asked: fields.Hash  # of leg 2
    weights: dict[str, fields.ExactFloat]
    scale: fields.ExactFloat
    distances: dict[str, fields.ExactFloat]  # as they were claimed
    delivered: dict[str, ReceiptSaid]
    apart: float  # |M - W g_0|
    at_most: float  # what the claimed distances allow
    claims: Literal["distances", "lengths"] = "distances"  # with lengths: |M|, and what they allow
    lengths: dict[str, Lengths] = Field(default_factory=dict)  # as they were claimed
    places: list[tuple[int, int, float]] = Field(default_factory=list)  # of the measure

    @property
    def view(self) -> View:
        """The view that the hospitals got."""
        return View(self.asked, self.weights, self.scale)

    @property
    def measure(self) -> SealedMeasure:
        """What the distances are of."""
        return SealedMeasure(tuple((slice(a, b), weight) for a, b, weight in self.places))


_EVIDENCE = "-evidence.json"


class PendingRound(Settings):
    """A round from its leg 2 on: no update of another hospital, and nothing that takes off a mask.

    A site gives one distance in a round and puts its update into one sum. A coordinator that was
    killed and comes back asks the same again, and gets the same answers; nothing else would be
    answered.
    """

    round: int
    attempt: fields.Attempt
    roster: dict[str, HelloKeys]
    primes: tuple[fields.Hexadecimal, fields.Hexadecimal]  # of the user's Paillier key
    # The question, one value after the other: as many as a sketch, twice as long as a modulus.
    sealed_own: fields.Hexadecimal = Field(max_length=BUCKETS * 2 * MOST_BITS // 8)
    distances: dict[str, fields.ExactFloat] = Field(default_factory=dict)
    told: dict[str, fields.ExactFloat] | None = None  # weights; None: leg 3 was not begun
    delivered: tuple[str, ...] | None = None  # None: leg 4 was not begun


class SumRecords(Protocol):
    """Keeps them for one arm."""

    def pending(self) -> PendingRound | None:
        """Return the newest round that asked for distances."""
        ...

    def begin(self, pending: PendingRound) -> None:
        """Kept when this returns."""
        ...

    def suspect(self, evidence: Evidence, own: Tensor) -> None:
        """Keep what an audit needs, with the user's own update."""
        ...


@dataclass(slots=True)
class RecordsInMemory:
    """For simulations."""

    last: PendingRound | None = None
    suspected: list[tuple[Evidence, Tensor]] = field(default_factory=list)

    def pending(self) -> PendingRound | None:
        """Return the newest."""
        return self.last

    def begin(self, pending: PendingRound) -> None:
        """Until the program ends."""
        self.last = pending

    def suspect(self, evidence: Evidence, own: Tensor) -> None:
        """Until the program ends."""
        self.suspected.append((evidence, own))


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """For deployments: files of one arm in a run's folder."""

    folder: Path
    arm: str

    def pending(self) -> PendingRound | None:
        """Return the newest. Raises CheckpointError."""
        return _read(self._pending, PendingRound)

    def begin(self, pending: PendingRound) -> None:
        """On disk when this returns."""
        write_json(self._pending, pending, mode=0o600)

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
            return evidence, read_with_header(self._own, is_needed=False)[1]["own"]
        except (OSError, KeyError, ValueError) as problem:
            raise CheckpointError(
                f"{self._own} cannot be read ({problem}). Without the user's own update of that"
                " round no distance can be checked; restore the file from a backup."
            ) from None

    @property
    def _pending(self) -> Path:
        return self.folder / f"{self.arm}-round.json"

    @property
    def _evidence(self) -> Path:
        return self.folder / f"{self.arm}{_EVIDENCE}"

    @property
    def _own(self) -> Path:
        return self.folder / f"{self.arm}-own-update.safetensors"


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
        values = without_checksum(json.loads(text))
        return form.model_validate_json(json.dumps(values))
    except (ValueError, AttributeError, RecursionError):  # pydantic's is the first
        raise CheckpointError(
            f"{path} is not what this program wrote there, or another version did. Restore it from"
            " a backup; without it, delete it: the round that it is about is then skipped."
        ) from None
