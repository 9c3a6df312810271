"""A run, simulated or read from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from erosion.common.errors import CheckpointError
from erosion.common.protocol.messages import FinalMetrics
from erosion.common.rounds.records import RoundRecord
from erosion.common.study.study import Study
from erosion.interface.frames import arms_frame, rounds_frame, weights_frame

if TYPE_CHECKING:
    import pandas as pd

    from erosion.interface.models import Model
    from erosion.server.run.result import Result


@dataclass(frozen=True, repr=False)
class Run:
    """What happened in a study for one user, and how it ended.

    Attributes:
        study: The study, every default filled in.
        verdict: Whether collaborating helped, in words.
        result: `result.json`; None for a simulation.
        folder: The run's folder; None for a simulation.
    """

    study: Study
    verdict: str
    result: "Result | None"
    folder: Path | None
    records: tuple[RoundRecord, ...] = field(default=())
    metrics: Mapping[str, FinalMetrics] = field(default_factory=dict)  # by arm

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row for each round of each arm: outcome, seconds, and the user's metrics."""
        return rounds_frame(self.records)

    @cached_property
    def weights(self) -> "pd.DataFrame":
        """One row for each hospital in each round of each arm: weight, distance, outcome."""
        return weights_frame(self.records)

    @cached_property
    def arms(self) -> "pd.DataFrame":
        """One row for each arm: the final metrics with their 95 % intervals."""
        return arms_frame(self.metrics)

    def model(self, arm: str | None = None) -> "Model":
        """The model of `arm`, or the run's best; see `erosion.load_model`."""
        from erosion.interface.models import load_model

        if self.folder is None:
            raise CheckpointError(
                "A simulation keeps no model. Run the study with erosion.testbed or deploy it."
            )
        return load_model(self.folder, arm)

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ", simulated"
        return f"<Run of {self.study.name} for {self.study.user}{where}: {self.verdict}>"
