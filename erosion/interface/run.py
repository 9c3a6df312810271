"""A run, simulated or read from its folder."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from erosion_common.errors import CheckpointError, ErosionError
from erosion_common.protocol.messages import FinalMetrics
from erosion_common.rounds.records import RoundRecord, curve_of
from erosion_common.study.study import Study
from erosion_common.support.software import install_command

if TYPE_CHECKING:
    from erosion.interface.models import Model
    from erosion_server.run.result import ArmResult, Result


def pandas() -> Any:
    """Return the package, which is an extra. Raises ErosionError."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ErosionError(
            f"Frames need the package pandas: {install_command('notebook')}"
        ) from None
    return pd


def rounds_frame(records: Sequence[RoundRecord], arms: Mapping[str, "ArmResult"]) -> "pd.DataFrame":
    """Return one row for each round of each arm, and one for its start, round 0.

    The metrics are the user's, of the model after the round; those of the last are the final ones.
    """
    rows = []
    for arm, ended in arms.items():
        of_arm = [record for record in records if record.arm == arm]
        found = {record.round: _of_round(record) for record in of_arm}
        for number, metrics in curve_of(of_arm, ended.rounds, ended.metrics):
            measured = {} if metrics is None else metrics.model_dump(exclude={"intervals"})
            rows.append({"arm": arm, "round": number, **found.get(number, _START), **measured})
    return pandas().DataFrame(rows)


_START = {"outcome": "start", "note": "", "seconds": 0.0, "num_accepted": 0}


def _of_round(record: RoundRecord) -> dict[str, Any]:
    return {
        "outcome": record.outcome,
        "note": record.note,
        "seconds": record.seconds,
        "num_accepted": sum(e.outcome == "accepted" for e in record.hospitals.values()),
    }


def weights_frame(records: Sequence[RoundRecord]) -> "pd.DataFrame":
    """Return one row for each hospital in each round of each arm: weight, distance, outcome."""
    rows = []
    for record in records:
        for hospital, entry in record.hospitals.items():
            values = asdict(entry)
            weight = values.pop("weight_after")
            del values["weight_before"], values["left_out"]  # the row above and `reason` have them
            place = {"arm": record.arm, "round": record.round, "hospital": hospital}
            rows.append({**place, "weight": weight, **values})
    return pandas().DataFrame(rows)


def arms_frame(metrics: Mapping[str, FinalMetrics]) -> "pd.DataFrame":
    """Return one row for each arm: final metrics, with `_low` and `_high` of their intervals."""
    rows = {}
    for arm, found in metrics.items():
        row: dict[str, Any] = dict(found.model_dump(exclude={"intervals"}))
        for name, interval in found.intervals.items():
            row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        rows[arm] = row
    frame = pandas().DataFrame.from_dict(rows, orient="index")
    frame.index.name = "arm"
    return frame


def predictions_frame(text: str) -> "pd.DataFrame":
    """Return the held-out predictions of a CSV file."""
    frame: pd.DataFrame = pandas().read_csv(io.StringIO(text))
    return frame


OWN_COMPARISON = (
    "This verdict looks at its own comparison alone. Every hospital was the user, and where several"
    " are looked at, the p-values count that are adjusted for all of them:"
)


@dataclass(frozen=True, repr=False)
class Run:
    """What happened in a study for one user, and how it ended.

    Attributes:
        study: The study, every default filled in.
        result: What `result.json` holds.
        folder: The run's folder; None for a simulation.
        records: Every round of every arm.
        held_out: Of a simulation: the table of `predictions`, as CSV.
        overview: Where the run is one user's part of a study with every hospital as its user: the
            report on all of them.
    """

    study: Study
    result: "Result"
    folder: Path | None
    records: tuple[RoundRecord, ...] = ()
    overview: Path | None = None
    held_out: str = ""  # of a simulation: the table of `predictions`, as CSV

    @property
    def verdict(self) -> str:
        """Whether collaborating helped, in words."""
        return self.result.verdict.text

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes on the verdict: who took no part, which arm ended early, and so on."""
        from erosion_server.output.words import beside_verdict

        together = () if self.overview is None else (f"{OWN_COMPARISON} {self.overview}.",)
        return (*beside_verdict(self.result, named_in="run.result"), *together)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One row for each round of each arm: outcome, seconds, and the metrics of its model.

        The metrics are the user's, of the model after the round. Round 0 is the start, before any
        training; the last round's are the final ones, which `arms` has with their intervals.
        """
        return rounds_frame(self.records, self.result.arms)

    @cached_property
    def weights(self) -> "pd.DataFrame":
        """One row for each hospital in each round of each arm: weight, distance, outcome."""
        return weights_frame(self.records)

    @cached_property
    def arms(self) -> "pd.DataFrame":
        """One row for each arm and local reference: the final metrics with 95 % intervals."""
        arms = {arm: ended.metrics for arm, ended in self.result.arms.items()}
        return arms_frame({**arms, **self.result.references})

    def predictions(self, site: str | os.PathLike[str] | None = None) -> "pd.DataFrame":
        """Return each arm's held-out predictions: of every patient by a model that never saw it.

        One row for each patient, arm, and cut into folds, with the outcome. They are kept at the
        user's site alone. Metrics of them are the run's own.

        Args:
            site: The user's site file, of a run that was deployed; by default those of a testbed
                or a simulation are read.

        Raises:
            ErosionError: Where they are not there.
        """
        return predictions_frame(self._held_out(site))

    def _held_out(self, site: str | os.PathLike[str] | None) -> str:
        from erosion.interface.models import site_folder_of
        from erosion_client.evaluation.held_out import (
            PREDICTIONS,
            run_folder_at,
            testbed_site,
        )
        from erosion_server.run.run_folder import RunFolder

        if self.folder is None:
            return self.held_out
        at_site = site_folder_of(site) or testbed_site(self.folder, self.study.user)
        path = run_folder_at(at_site, RunFolder(self.folder).run) / PREDICTIONS
        try:
            return path.read_text(encoding="utf-8")
        except OSError as problem:
            raise CheckpointError(
                f"The held-out predictions cannot be read from {path} ({problem.strerror}). They"
                f" are at the site of {self.study.user} alone: give its site file (site=...), on a"
                " machine that can read what it keeps."
            ) from None

    def model(self, arm: str | None = None) -> "Model":
        """Return the model of `arm`, or the run's best; see `erosion.load_model`."""
        from erosion.interface.models import load_model

        if self.folder is None:
            raise CheckpointError(
                "A simulation keeps no model. Run the study with erosion.testbed or deploy it."
            )
        return load_model(self.folder, arm)

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ", simulated"
        return f"<Run of {self.study.name} for {self.study.user}{where}: {self.verdict}>"
