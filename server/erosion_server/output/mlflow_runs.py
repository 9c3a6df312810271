"""MLflow: a run for the study and, below it, one for each arm.

An arm's run has its settings as parameters and every round's figures as metrics, so that MLflow's
comparison of runs shows the arms as curves in one chart. The study's run has the verdict and the
files. A resumed study continues its runs, which it finds by their tags.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from erosion_common.rounds.events import ArmFinished, ArmStarted, RoundFinished
from erosion_common.study.study import Study
from erosion_common.support.software import install_command
from erosion_server.output.events import RunEvent, RunFinished, StudyFailed, StudyStarted
from erosion_server.output.observers import Observer
from erosion_server.output.round_facts import Figure, figures_of, final_figures_of
from erosion_server.run.result import Result, study_as_run
from erosion_server.run.run_folder import RunFolder

RUN_TAG, ARM_TAG, PARENT_TAG = "erosion.run", "erosion.arm", "mlflow.parentRunId"
FOLDER_TAG = "erosion.folder"
STUDY_TAG = "erosion.study"  # digest
# MLflow retries for many minutes by default; the operator's values go before these.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
AT_ONCE = 100  # parameters or metrics of one call


def open_output(where: str) -> Observer:
    """`where` is a tracking address; "" leaves it to MLflow, that is, MLFLOW_TRACKING_URI."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow  # noqa: F401 - imported now, so that a missing one is reported at once
    except ModuleNotFoundError:
        raise ValueError(f"needs the package mlflow: {install_command('mlflow')}") from None
    return MlflowRuns(where or None)


class MlflowRuns:
    """Sends every event to the tracking server; raises the server's errors."""

    def __init__(self, tracking_uri: str | None) -> None:
        """The server is first asked when the study starts."""
        self._tracking_uri = tracking_uri
        self._client: Any = None  # MlflowClient
        self._experiment = ""
        self._study: Study | None = None
        self._study_run = ""  # MLflow's id; "" where none is open
        self._arm_runs: dict[str, str] = {}

    def notify(self, event: RunEvent) -> None:
        """Pass on what concerns arms and results."""
        match event:
            case StudyStarted(study, _, run_folder):
                self._start(study, run_folder)
            case ArmStarted(arm, rounds, False):
                self._start_arm(arm, rounds)
            case RoundFinished(record, False):
                self._log_metrics(self._arm_runs[record.arm], figures_of(record))
            case ArmFinished(arm):
                self._client.set_terminated(self._arm_runs[arm])
            case RunFinished(result, run_folder):
                self._finish(result, RunFolder(run_folder))
            case StudyFailed(reason):
                self._end("FAILED", reason)

    def close(self) -> None:
        """A study that is still open was interrupted."""
        self._end("KILLED", "")

    def _start(self, study: Study, run_folder: Path) -> None:
        from mlflow import MlflowClient

        if self._client is None:
            self._client = MlflowClient(self._tracking_uri)
        self._end("KILLED", "")  # of the user before
        self._study = study
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or study.name
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        # MLflow's filters know no ' in a text.
        run = RunFolder(run_folder).run.replace("'", "%27")
        # A study that is corrected before its run begins is another one in the same folder.
        tags = {RUN_TAG: run, STUDY_TAG: study.digest, ARM_TAG: ""}
        self._study_run = self._open(tags, f"{study.name} for {study.user}")
        self._client.set_tag(self._study_run, FOLDER_TAG, str(run_folder.resolve()))
        settings = study.model_dump(mode="json", exclude={"task", "arms", "testbed", "hospitals"})
        settings["num_hospitals"] = len(study.hospitals)
        self._log_params(self._study_run, settings)

    def _start_arm(self, arm: str, rounds: int) -> None:
        assert self._study is not None
        tags = {RUN_TAG: self._study_run, ARM_TAG: arm, PARENT_TAG: self._study_run}
        run = self._arm_runs[arm] = self._open(tags, arm)
        self._log_params(run, {"rounds": rounds})
        if self._study.selection is None:  # else they are known with the result
            self._log_params(run, self._study.arms[arm].model_dump(mode="json"))

    def _finish(self, result: Result, folder: RunFolder) -> None:
        assert self._study is not None
        settings = study_as_run(self._study, result).arms
        for arm in result.arms:
            if arm in self._arm_runs:
                self._log_params(self._arm_runs[arm], settings[arm].model_dump(mode="json"))
                final = [figure for of, figure in final_figures_of(result) if of == arm]
                self._log_metrics(self._arm_runs[arm], final)
        of_references = [
            figure._replace(quantity=f"{name}/{figure.quantity}")
            for name, figure in final_figures_of(result)
            if name in result.references
        ]
        self._log_metrics(self._study_run, of_references)
        self._client.set_tag(self._study_run, "erosion.verdict", result.verdict.text)
        for path in (
            *(folder.study, folder.result, folder.report, folder.contributions),
            *(folder.model, folder.model_card),
            *([folder.finish] if folder.finish.exists() else []),
        ):
            self._client.log_artifact(self._study_run, str(path))
        self._end("FINISHED", "")

    def _open(self, tags: Mapping[str, str], name: str) -> str:
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items() if value)
        found = self._client.search_runs([self._experiment], wanted, max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        made = self._client.create_run(self._experiment, tags=dict(tags), run_name=name)
        return str(made.info.run_id)

    def _end(self, status: str, reason: str) -> None:
        if self._study_run:
            if reason:
                self._client.set_tag(self._study_run, "erosion.reason", reason)
            if status != "FINISHED":
                for run in self._arm_runs.values():
                    if self._client.get_run(run).info.status == "RUNNING":
                        self._client.set_terminated(run, status)
            self._client.set_terminated(self._study_run, status)
        self._study_run, self._arm_runs = "", {}

    def _log_params(self, run: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(run).data.params  # MLflow refuses to change them
        params = [Param(k, v) for k, v in flattened(values) if k not in known]
        for part in _parts(params):
            self._client.log_batch(run, params=part)

    def _log_metrics(self, run: str, figures: Iterable[Figure]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [
            Metric("/".join(filter(None, (what, hospital))), value, now, step)
            for step, _, what, hospital, value in figures
        ]
        for part in _parts(metrics):
            self._client.log_batch(run, metrics=part)


def _parts(values: list[Any]) -> Iterator[list[Any]]:
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `model.name`; lists as text, nothing for what is not set."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name}.")
        elif isinstance(value, Iterable) and not isinstance(value, str):
            yield name, ", ".join(map(str, value))[:500]
        elif value is not None:
            yield name, str(value)[:500]
