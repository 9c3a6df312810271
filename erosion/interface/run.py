"""A run, simulated or read from its folder."""

import html
import io
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erosion.interface import plots
from erosion_common.errors import CheckpointError, ErosionError
from erosion_common.rounds.records import RoundRecord, curve_of
from erosion_common.study.study import Study
from erosion_common.support.software import install_command
from erosion_common.support.text import as_given

if TYPE_CHECKING:
    import pandas as pd

    from erosion.interface.models import Model
    from erosion_server.run.result import Result


def pandas() -> Any:
    """Return the package, which is an extra. Raises ErosionError."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise ErosionError(
            f"Frames need the package pandas: {install_command('notebook')}"
        ) from None
    return pd


INTERVALS = {"intervals"}
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
        rows = []
        for arm, ended in self.result.arms.items():
            of_arm = [record for record in self.records if record.arm == arm]
            found = {record.round: record for record in of_arm}
            for number, metrics in curve_of(of_arm, ended.rounds, ended.metrics):
                record = found.get(number, RoundRecord(arm, number, "done", "", {}))
                entries = record.hospitals.values()
                row = {
                    "arm": arm,
                    "round": number,
                    "outcome": record.outcome if number else "start",
                    "note": record.note,
                    "seconds": record.seconds,
                    "num_accepted": sum(entry.outcome == "accepted" for entry in entries),
                }
                rows.append(
                    row | ({} if metrics is None else metrics.model_dump(exclude=INTERVALS))
                )
        return pandas().DataFrame(rows)

    @cached_property
    def weights(self) -> "pd.DataFrame":
        """One row for each hospital in each round of each arm: weight, distance, outcome."""
        rows = []
        for record in self.records:
            place = {"arm": record.arm, "round": record.round}
            for hospital, entry in record.hospitals.items():
                values = asdict(entry)
                weight = values.pop("weight_after")
                for known in ("weight_before", "left_out", "code"):  # the row above, `reason`
                    del values[known]
                rows.append({**place, "hospital": hospital, "weight": weight, **values})
        return pandas().DataFrame(rows)

    @cached_property
    def arms(self) -> "pd.DataFrame":
        """One row for each arm and local reference: the final metrics with 95 % intervals."""
        arms = {arm: ended.metrics for arm, ended in self.result.arms.items()}
        rows = {}
        for arm, found in {**arms, **self.result.references}.items():
            row: dict[str, Any] = dict(found.model_dump(exclude=INTERVALS))
            for name, interval in found.intervals.items():
                row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
            rows[arm] = row
        frame: pd.DataFrame = pandas().DataFrame.from_dict(rows, orient="index")
        frame.index.name = "arm"
        return frame

    @cached_property
    def validation(self) -> "pd.DataFrame":
        """One row for each other hospital that was asked to measure the model, with intervals."""
        from erosion_server.output.report_validation import figure_of, measures

        rows = {}
        for name, found in self.result.validation.items():
            row: dict[str, Any] = {"role": found.role, "why_not": found.why_not}
            for measure in measures(self.result):
                if (each := figure_of(found, measure)) is not None:
                    row |= {
                        f"{measure.name}{end}": value
                        for end, value in zip(
                            ("", "_low", "_high"), (each.value, each.low, each.high), strict=True
                        )
                    }
            rows[name] = row
        frame: pd.DataFrame = pandas().DataFrame.from_dict(rows, orient="index")
        frame.index.name = "hospital"
        return frame

    def predictions(self, site: str | os.PathLike[str] | None = None) -> "pd.DataFrame":
        """Return each arm's held-out predictions: of every patient by a model that never saw it.

        One row for each patient, arm, and cut into folds, with the outcome. Patients' keys and
        classes are text, as written there and in the study. They are kept at the user's site alone.
        Metrics of them are the run's own.

        Args:
            site: The user's site file, of a run that was deployed; by default those of a testbed
                or a simulation are read.

        Raises:
            ErosionError: Where they are not there.
        """
        texts = ["patient", "image", "arm"]
        texts += ["predicted", "outcome"] * (self.study.task.predicts == "classes")
        frame: pd.DataFrame = pandas().read_csv(
            io.StringIO(self._held_out(site)),
            dtype=dict.fromkeys(texts, str),
            keep_default_na=False,  # a class may be called "NA"
        )
        for name in {*texts} & {*frame}:
            frame[name] = frame[name].map(as_given)
        return frame

    def _held_out(self, site: str | os.PathLike[str] | None) -> str:
        from erosion.interface.models import site_folder_of
        from erosion_client.evaluation.held_out import PREDICTIONS, run_folder_at, testbed_site
        from erosion_server.run.run_folder import RunFolder

        if self.folder is None:
            return self.held_out
        at_site = site_folder_of(site) or testbed_site(self.folder, self.study.user)
        path = run_folder_at(at_site, RunFolder(self.folder).run) / PREDICTIONS
        try:
            return path.read_text(encoding="utf-8")
        except OSError as problem:
            raise CheckpointError(
                f"The held-out predictions cannot be read from {path} ({problem.strerror})",
                remedy=f"They are at the site of {self.study.user} alone: give its site file"
                " (site=...), on a machine that can read what it keeps.",
            ) from None

    def model(self, arm: str | None = None) -> "Model":
        """Return the model of `arm`, or the run's best; see `erosion.load_model`."""
        from erosion.interface.models import load_model

        if self.folder is None:
            raise CheckpointError(
                "A simulation keeps no model",
                remedy="Run the study with erosion.testbed or deploy it.",
            )
        return load_model(self.folder, arm)

    plot_rounds, plot_weights, plot_arms = plots.plot_rounds, plots.plot_weights, plots.plot_arms
    plot_roc, plot_calibration = plots.plot_roc, plots.plot_calibration

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict, its notes, and the final metrics."""
        metrics = [each.name for each in type(self.study.task).metrics]
        table = self.arms[[name for name in metrics if name in self.arms]]
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return (
            f"<p>{html.escape(self.verdict)}</p><ul>{notes}</ul>{table.round(3).to_html(na_rep='')}"
        )

    def __repr__(self) -> str:
        where = f" in {self.folder}" if self.folder else ", simulated"
        return f"<Run of {self.study.name} for {self.study.user}{where}: {self.verdict}>"
