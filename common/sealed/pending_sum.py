"""What a coordinator must remember of a sum that it began, should it be killed.

Sites put an update into one sum only. A coordinator that comes back asks for the same sum again,
of the same hospitals with the same weights; nothing else would be answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from erosion.common.errors import CheckpointError
from erosion.common.sealed import fields
from erosion.common.settings.base import Settings
from erosion.common.support.files import write_atomically


class PendingSum(Settings):
    """The sum of one round: no update and nothing that takes off a mask."""

    round: int
    roster: tuple[str, ...]  # by name
    distances: dict[str, fields.ExactFloat]
    told: dict[str, fields.ExactFloat]  # weights
    delivered: tuple[str, ...] | None = None  # None: leg 4 was not begun


class PendingSums(Protocol):
    """Keeps the sum of the newest round of one arm."""

    def load(self) -> PendingSum | None:
        """What was saved last."""
        ...

    def save(self, pending: PendingSum) -> None:
        """On disk when this returns."""
        ...


@dataclass(slots=True)
class PendingInMemory:
    """For simulations."""

    pending: PendingSum | None = None

    def load(self) -> PendingSum | None:
        """What was saved last."""
        return self.pending

    def save(self, pending: PendingSum) -> None:
        """Until the program ends."""
        self.pending = pending


@dataclass(frozen=True, slots=True)
class PendingFile:
    """For deployments."""

    path: Path

    def load(self) -> PendingSum | None:
        """What was saved last. Raises CheckpointError."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return PendingSum.model_validate_json(text)
        except ValidationError:
            raise CheckpointError(
                f"{self.path} is not a record of a sealed sum. Restore it, or delete it: the round"
                " that it was about is then skipped."
            ) from None

    def save(self, pending: PendingSum) -> None:
        """On disk when this returns."""
        write_atomically(self.path, pending.model_dump_json() + "\n", mode=0o600)


def continues(pending: PendingSum | None, round_number: int) -> bool:
    """Whether a sum of that round was begun by a coordinator that did not end it."""
    return pending is not None and pending.round == round_number


def members_of(weights: Mapping[str, float]) -> list[str]:
    """Who has weight, by name."""
    return sorted(name for name, weight in weights.items() if weight > 0)
