"""Outputs that a run can be given: each follows the same run, and what it leaves is read back."""

import csv
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import erosion
from erosion_common.errors import RunError
from erosion_common.rounds.events import ArmStarted, RoundFinished
from erosion_common.settings.packages import installed_names
from erosion_server.output.charts import metric_points
from erosion_server.output.events import StudyFailed, StudyStarted
from erosion_server.output.metrics_csv import MetricsCsv
from erosion_server.output.mlflow_runs import MlflowRuns
from erosion_server.output.registry import OUTPUTS, open_outputs
from erosion_server.output.run_data import read_run
from erosion_server.output.tensorboard_files import TensorboardFiles
from erosion_server.run.run_folder import RunFolder
from tests.support.refusals import refused
from tests.support.synthetic_run import make_run, play

RUN = make_run(rounds=4)


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tracking store of MLflow's own, in a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return (tmp_path / "tracking").as_uri()


def runs_of(tracking: str) -> dict[str, Any]:
    """MLflow's runs by their names."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking)
    experiment = client.get_experiment_by_name("breast-cancer")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in found}) == len(found)
    return {run.info.run_name: run for run in found}


@pytest.mark.parametrize("name", [*OUTPUTS, *installed_names("output")])
def test_every_output_of_the_registry_opens_and_is_told_of_a_run(
    name: str, tmp_path: Path, tracking: str
) -> None:
    folder = RUN.write(tmp_path / "run")
    places = {"mlflow": f"={tracking}", "notify": "=true", "tensorboard": f"={tmp_path}/board"}
    where = places.get(name, "")
    (opened,) = open_outputs([f"{name}{where}"]).values()
    with closing(opened) as observer:
        play(observer, RUN, folder)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (["unheard-of"], ", ".join(OUTPUTS)),
        (["metrics", "metrics"], "metrics"),
        (["metrics=somewhere"], "metrics"),
        (["tensorboard"], "tensorboard=FOLDER"),
        (["tensorboard=/dev/null/x"], "/dev/null/x"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_run(wanted: list[str], named: str) -> None:
    with refused(RunError, named):
        open_outputs(wanted)


def curve_in_csv(folder: Path, tracking: str, arm: str) -> dict[int, float]:
    del tracking
    lines = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    return {
        int(line["round"]): float(line["value"])
        for line in lines
        if (line["arm"], line["quantity"]) == (arm, "log_loss")
    }


def curve_in_mlflow(folder: Path, tracking: str, arm: str) -> dict[int, float]:
    from mlflow import MlflowClient

    del folder
    history = MlflowClient(tracking).get_metric_history(
        runs_of(tracking)[arm].info.run_id, "log_loss"
    )
    assert len({point.step for point in history}) == len(history)
    return {point.step: point.value for point in history}


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """What TensorBoard's files in a folder hold, by its record format: tag, step, value."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += 12 + length + 4
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return found


def curve_in_tensorboard(folder: Path, tracking: str, arm: str) -> dict[int, float]:
    del tracking
    found = [one for one in scalars(folder.parent / "board" / "run" / arm) if one[0] == "log_loss"]
    assert len({step for _, step, _ in found}) == len(found)
    return {step: value for _, step, value in found}


def curve_in_python(folder: Path, tracking: str, arm: str) -> dict[int, float]:
    del tracking
    frame = erosion.read_run(folder).rounds.query("arm == @arm")
    return dict(zip(frame["round"].tolist(), frame["log_loss"].tolist(), strict=True))


def curve_in_the_report(folder: Path, tracking: str, arm: str) -> dict[int, float]:
    del tracking
    points = metric_points(read_run(RunFolder(folder)), arm, "log_loss")
    return {number: value for number, value in points if value is not None}


CURVES = (
    curve_in_csv,
    curve_in_mlflow,
    curve_in_tensorboard,
    curve_in_python,
    curve_in_the_report,
)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_curve_goes_from_the_untrained_model_to_the_final_figures(
    rounds: int, tmp_path: Path, tracking: str
) -> None:
    run = make_run(rounds=rounds)
    folder = run.write(tmp_path / "run")
    for observer in (MetricsCsv(), MlflowRuns(tracking), TensorboardFiles(tmp_path / "board")):
        with closing(observer):
            play(observer, run, folder)
    for arm, ended in run.result.arms.items():
        measured = {
            record.round - 1: record.user_metrics["log_loss"]
            for record in run.records
            if record.arm == arm and record.user_metrics is not None
        }
        assert list(measured) == list(range(rounds))
        for read in CURVES:
            near = 1e-6 if read is curve_in_tensorboard else 1e-15
            whole = measured | {rounds: ended.metrics["log_loss"]}
            assert read(folder, tracking, arm) == pytest.approx(whole, rel=near), read.__name__


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path: Path) -> None:
    folder = RUN.write(tmp_path / "run")
    own = [record for record in RUN.records if record.arm == "weight_erosion"]
    for part in (own[:2], own[2:]):
        with closing(TensorboardFiles(tmp_path / "board")) as observer:
            observer.notify(StudyStarted(RUN.study, "127.0.0.1:1", folder))
            observer.notify(ArmStarted("weight_erosion", 4))
            for record in part:
                observer.notify(RoundFinished(record))
    (arm,) = (tmp_path / "board" / RunFolder(folder).run).iterdir()
    assert len([*arm.iterdir()]) == 2
    weights = {step: value for tag, step, value in scalars(arm) if tag == "weight/miscoded"}
    known = {record.round: record.hospitals["miscoded"].weight_after for record in own}
    assert weights == pytest.approx(known, rel=1e-6)


def test_a_line_that_a_killed_coordinator_began_is_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for record in RUN.records[:2]:
        observer = MetricsCsv()
        observer.notify(StudyStarted(RUN.study, "127.0.0.1:1", tmp_path))
        observer.notify(RoundFinished(record))
        observer.close()
        path.write_text(path.read_text() + "2026-01-01T00:00:00.000+00:00,fed")
    *whole, begun = path.read_text().split("\n")
    assert begun.endswith(",fed")
    assert {len(line.split(",")) for line in whole} == {8}


def test_mlflow_has_a_run_for_each_arm_with_the_curves(tmp_path: Path, tracking: str) -> None:
    from mlflow import MlflowClient

    folder = RUN.write(tmp_path / "run")
    (folder / "finish.safetensors").touch()
    with closing(MlflowRuns(tracking)) as observer:
        play(observer, RUN, folder)
    runs = runs_of(tracking)
    whole = runs.pop("breast-cancer for home")
    assert set(runs) == set(RUN.study.arms)
    assert whole.data.params["model.name"] == "logistic"
    assert whole.data.tags["erosion.verdict"] == RUN.result.verdict.text
    assert {run.info.status for run in (whole, *runs.values())} == {"FINISHED"}
    arm = runs["weight_erosion"]
    assert arm.data.tags["mlflow.parentRunId"] == whole.info.run_id
    assert float(arm.data.params["distance_penalty"]) > 0
    final = RUN.result.arms["weight_erosion"].metrics.model_dump()
    assert arm.data.metrics["log_loss"] == final["log_loss"]
    client = MlflowClient(tracking)
    curve = client.get_metric_history(arm.info.run_id, "weight/miscoded")
    own = [record for record in RUN.records if record.arm == "weight_erosion"]
    assert {point.step: point.value for point in curve} == {
        record.round: record.hospitals["miscoded"].weight_after for record in own
    }
    kept = {file.path for file in client.list_artifacts(whole.info.run_id)}
    assert {"result.json", "study.toml", "report.html", "model.safetensors"} <= kept
    assert "finish.safetensors" in kept


@pytest.mark.parametrize("name", ["run", "Anna's run"])
def test_a_resumed_study_goes_on_with_its_mlflow_runs(
    tmp_path: Path, tracking: str, name: str
) -> None:
    own = [record for record in RUN.records if record.arm == "weight_erosion"]
    for part in (own[:2], own[2:]):
        with closing(MlflowRuns(tracking)) as observer:
            observer.notify(StudyStarted(RUN.study, "127.0.0.1:1", tmp_path / name))
            observer.notify(ArmStarted("weight_erosion", 4))
            for record in part:
                observer.notify(RoundFinished(record))
        assert {run.info.status for run in runs_of(tracking).values()} == {"KILLED"}
    assert set(runs_of(tracking)) == {"breast-cancer for home", "weight_erosion"}


def test_a_study_that_fails_is_a_failed_mlflow_run(tmp_path: Path, tracking: str) -> None:
    with closing(MlflowRuns(tracking)) as observer:
        observer.notify(StudyStarted(RUN.study, "127.0.0.1:1", tmp_path))
        observer.notify(StudyFailed("away"))
    (run,) = runs_of(tracking).values()
    assert run.info.status == "FAILED"
    assert run.data.tags["erosion.reason"] == "away"
