"""Held-out predictions stay at the user's own site, as a table that its figures can be had from."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss

import erosion
from erosion_client.training.hospital import Hospital
from erosion_common.program.command_line import main
from erosion_common.protocol import wire
from erosion_common.protocol.messages import EvaluateRequest
from tests.support.saved_model import run_folder
from tests.support.small_study import make_site, make_study

TASK = {"kind": "tabular", "target": "ill", "classes": ["no", "yes"], "features": ["age"]}


def table(num_patients: int = 60) -> str:
    """Every third patient came twice; no two rows are nearly alike."""
    draws = np.random.default_rng(4)
    lines = ["key,age,ill"]
    for patient in range(num_patients):
        age = 20 + 1.1 * patient
        ill = "yes" if age + draws.normal(0, 15) > 55 else "no"
        for visit in range(1 + (patient % 3 == 0)):
            lines.append(f"patient-{patient},{age + 0.55 * visit:.2f},{ill}")
    return "\n".join(lines) + "\n"


def user(folder: Path, text: str | None = None, **data: Any) -> Hospital:
    state = {"state": str(folder / "state")}
    return Hospital(make_site(folder, text or table(), data=data, compute=state))


def written(folder: Path) -> Path:
    (found,) = (folder / "state" / "a" / "runs").iterdir()
    return found


def evaluate(hospital: Hospital, run: str = "20260101T120000-mine", **changes: Any) -> bytes:
    """What leaves, as it travels."""
    study = make_study(task=TASK, **changes)
    models = {"fedavg": torch.tensor([-0.05, 0.05, 3, -3]), "local": torch.zeros(4)}
    result = hospital.evaluate(EvaluateRequest(study, models, None, run))
    return repr(wire.encode_result(result)).encode()


def test_the_table_names_each_patient_once_for_each_arm_and_does_not_leave(tmp_path: Path) -> None:
    sent = evaluate(user(tmp_path, patient="key"))
    folder = written(tmp_path)
    rows = list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        *("patient", "cut", "fold", "arm"),
        *("probability_no", "probability_yes", "predicted", "outcome"),
    ]
    assert set(Counter((row["patient"], row["arm"]) for row in rows).values()) == {1}
    truth = {row["key"]: row["ill"] for row in csv.DictReader(table().splitlines())}
    assert all(truth[row["patient"]] == row["outcome"] for row in rows)
    assert {row["probability_yes"] for row in rows if row["arm"] == "local"} == {"0.5"}
    assert b"patient-" not in sent
    for path in (folder, *folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_without_a_key_a_patient_is_its_first_row_in_the_table(tmp_path: Path) -> None:
    text = table().replace("key,", "", 1).replace("patient-", "")
    lines = [line.partition(",")[2] for line in text.splitlines()[1:]]
    evaluate(user(tmp_path, "\n".join(["age,ill", *lines]) + "\n"))
    for row in csv.DictReader((written(tmp_path) / "predictions.csv").read_text().splitlines()):
        assert lines[int(row["row"]) - 1].endswith(f",{row['outcome']}")


def test_nobody_can_be_read_from_what_is_kept_of_those_trained_on(tmp_path: Path) -> None:
    hospital = user(tmp_path, patient="key")
    evaluate(hospital, "one")
    evaluate(hospital, "other")
    kept = [
        json.loads((folder / "trained_on.json").read_text())["hashes"]
        for folder in (tmp_path / "state" / "a" / "runs").iterdir()
    ]
    assert len(kept) == 2
    assert not set(kept[0]) & set(kept[1])
    assert {len(each) for each in kept[0]} == {10}


def test_the_disk_does_not_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erosion_client.evaluation.held_out.MOST_RUNS", 5)
    hospital = user(tmp_path, patient="key")
    for run in range(9):
        evaluate(hospital, f"../{run}", arms=["fedavg", "local"])
    assert len(list((tmp_path / "state" / "a" / "runs").iterdir())) == 5
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"a"}


@pytest.mark.parametrize("evaluation", [{}, {"folds": 3, "repeats": 2}])
@pytest.mark.parametrize("workers", [1, 2])
def test_figures_from_the_table(tmp_path: Path, evaluation: dict[str, int], workers: int) -> None:
    sites = []
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(table())
        sites.append(tmp_path / f"{name}.toml")
        sites[-1].write_text(
            f'name = "{name}"\n[coordinator]\naddress = "127.0.0.1:9092"\n'
            f'[data]\npath = "{name}.csv"\npatient = "key"\n'
        )
    study = make_study(task=TASK, rounds=2, evaluation=evaluation)
    run = erosion.simulate(study, sites, progress=False, workers=workers)
    held_out = run.predictions()
    for arm, own in held_out.groupby("arm"):
        found = run.arms.loc[arm]
        assert own["patient"].nunique() == found["num_patients"]
        clipped = own["probability_yes"].clip(0.01, 0.99)
        assert log_loss(own["outcome"] == "yes", clipped) == pytest.approx(found["log_loss"])
        assert (own["predicted"] == own["outcome"]).mean() == pytest.approx(found["accuracy"])
        in_folds = own.groupby("cut")["fold"].nunique().to_dict()
        assert in_folds == ({1: 3, 2: 3} if evaluation else {0: 1})
        pd.testing.assert_series_equal(
            own.groupby("patient")["outcome"].nunique().eq(1),
            own.groupby("patient").size() > 0,
            check_names=False,
        )
    assert not (tmp_path / "state").exists()


def test_trained_patients_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hospital = user(tmp_path, patient="key")
    evaluate(hospital, "mine")
    tested = {
        row["patient"]
        for row in csv.DictReader((written(tmp_path) / "predictions.csv").read_text().splitlines())
    }
    head, *lines = table().splitlines()
    new = [line for line in lines if line.partition(",")[0] in tested]
    (tmp_path / "new.csv").write_text("\n".join([head, *new]) + "\n")
    site = tmp_path / "site.toml"
    site.write_text(
        'name = "a"\n[coordinator]\naddress = "127.0.0.1:9092"\n'
        '[data]\npath = "a.csv"\npatient = "key"\n'
    )
    run = tmp_path / "run"
    run.mkdir()
    run_folder(run, make_study(task=TASK), torch.zeros(4), user="a", run="mine", scaling=None)

    def said(*arguments: str) -> str:
        assert main(["predict", str(run), *arguments, "-o", str(tmp_path / "out.csv")]) == 0
        return capsys.readouterr().err

    trained = len(lines) - len(new)
    assert f"trained on {trained} of these {len(lines)} rows" in said("--site", str(site))
    assert "trained on" not in said(str(tmp_path / "new.csv"), "--site", str(site))
    assert "trained on" not in said(str(tmp_path / "a.csv"))
    model = erosion.load_model(run, site=site)
    with pytest.warns(UserWarning, match=f"trained on {trained} of these {len(lines)} rows"):
        model.predict(pd.read_csv(tmp_path / "a.csv"))
