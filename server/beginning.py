"""What a run decided at its beginning, so that a resumed run goes on by the same decisions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from common.choosing import Choice
from common.errors import CheckpointError
from common.files import write_atomically
from common.messages import Scaling
from common.settings import Settings
from server.run_folder import RunFolder


class _Choice(Settings):
    settings: dict[str, Any]
    rounds: int
    log_loss: float | None


class Beginning(Settings):
    """`beginning.json`: written when the hospitals are together and before the first round."""

    format: int = 1
    started: str  # ISO 8601, UTC
    scaling: Scaling | None  # pooled over the hospitals that were there
    choices: dict[str, _Choice]  # by arm

    @classmethod
    def of(cls, started: str, scaling: Scaling | None, choices: Mapping[str, Choice]) -> Self:
        """Gather what was decided."""
        kept = {
            arm: _Choice(settings=dict(c.settings), rounds=c.rounds, log_loss=c.log_loss)
            for arm, c in choices.items()
        }
        return cls(started=started, scaling=scaling, choices=kept)

    def chosen(self) -> dict[str, Choice]:
        """What every arm is run with."""
        return {
            arm: Choice(kept.settings, kept.rounds, kept.log_loss)
            for arm, kept in self.choices.items()
        }

    def write(self, path: Path) -> None:
        """Put it into the run folder."""
        write_atomically(path, self.model_dump_json(indent=2) + "\n")


def read_beginning(folder: RunFolder) -> Beginning | None:
    """None where the run ended before its first round. Raises CheckpointError."""
    try:
        return Beginning.model_validate_json(folder.beginning.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise CheckpointError(
            f"{folder.beginning} cannot be read ({problem}). Start the study anew."
        ) from None
