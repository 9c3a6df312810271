"""The state of a strategy between two starts: one file, as a run's checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erosion.flower.arrangement import Values
from erosion_common.errors import CheckpointError, RunError
from erosion_common.formats.tensor_file import read_with_header
from erosion_common.rounds import checkpoint
from erosion_common.rounds.records import RunState

_ARM = "erosion.flower"


@dataclass(frozen=True, slots=True)
class _Kept:
    """The rule's own state, and what else the next round depends on."""

    rule: Any
    names: Mapping[str, str] = field(default_factory=dict)  # by node id
    rest: Mapping[str, Tensor] = field(default_factory=dict)  # buffers and counters


@dataclass(frozen=True, slots=True)
class Saved:
    """Written before every round, so that a round that was cut off is done again."""

    path: Path

    def write(
        self, state: RunState, names: Mapping[int, str], rest: Mapping[str, Values], digest: str
    ) -> None:
        """Replace the file. Raises RunError."""
        kept = _Kept(
            state.algorithm_state,
            {str(node): name for node, name in names.items()},
            {name: torch.tensor(values) for name, values in rest.items()},
        )
        try:
            checkpoint.save(
                self.path, replace(state, algorithm_state=kept), arm=_ARM, study_digest=digest
            )
        except OSError as problem:
            raise RunError(
                f"The state cannot be written to {self.path}: {problem.strerror or problem}",
                remedy="Put that right and start again; the last round that was written is there.",
            ) from None

    def read(
        self, first: RunState, rest: Mapping[str, Values], digest: str
    ) -> tuple[RunState, dict[int, str], dict[str, Values]]:
        """Return the state, the names by node, buffers and counters. Raises CheckpointError.

        `first` and `rest`: those of a fresh run, for their types.
        """
        template = replace(first, algorithm_state=_Kept(first.algorithm_state))
        if self._header().get("study") != digest:
            raise CheckpointError(
                f"{self.path} is the state of another model, rule, user or number of rounds",
                remedy="Give those that it was written with, or name another file.",
            )
        state = checkpoint.load(self.path, template, arm=_ARM, study_digest=digest)
        kept = state.algorithm_state
        if kept.rest.keys() != rest.keys() or len(state.params) != len(first.params):
            raise CheckpointError(f"{self.path} does not hold the arrays of this model.")
        return (
            replace(state, algorithm_state=kept.rule),
            {int(node): name for node, name in kept.names.items()},
            {name: kept.rest[name].numpy() for name in rest},
        )

    def model(
        self, first: Tensor, rest: Mapping[str, Values], digest: str
    ) -> tuple[Tensor, dict[str, Values]]:
        """Parameters, buffers and counters alone. Raises CheckpointError. As for `read`."""
        state, _, kept = self.read(RunState(0, first, None), rest, digest)
        return state.params, kept

    def rounds(self) -> int:
        """Return how many rounds it has; 0 where there is no file. Raises CheckpointError."""
        return int(self._header()["state"]["round"]) if self.path.exists() else 0

    def _header(self) -> dict[str, Any]:
        try:
            header, _ = read_with_header(self.path)
            int(header["state"]["round"])
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise CheckpointError(
                f"{self.path} cannot be read ({problem})",
                remedy="Name another file to start again.",
            ) from None
        return header
