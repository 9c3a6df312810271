"""The Titanic experiment's corrected runs, written as a study file of this program."""

import csv
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals, source
from erosion.sources.titanic import (
    AUTHORS_SEED,
    BATCH_SIZE,
    FEATURES,
    hospitals_of,
    load_passengers,
    split_indices,
)
from erosion_client.training.hospital import Hospital
from erosion_common.errors import DataError
from erosion_common.learning.models import first_parameters
from erosion_common.study.study import Study, load_study
from experiments.papers import titanic

USER, ROUNDS = "to-20", 8
EROSION = {"distance_penalty": 0.01, "size_penalty": 0.2}


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up passengers, with hospitals of which one has two mini-batches and others one."""
    monkeypatch.setitem(source.ROWS, "titanic3.csv", 601)
    draw = random.Random(1)
    path = tmp_path / "data" / "titanic" / "titanic3.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["pclass", "survived", "sex", "age", "sibsp", "parch", "fare", "embarked"])
        for number in range(600):
            sex = draw.choice(["female", "male"])
            survived = int(draw.random() < (0.7 if sex == "female" else 0.3))
            age = "" if number % 6 == 0 else draw.choice([10, 19, 25, 28, 30, 33, 34, 40, 60])
            written = [draw.choice("123"), survived, sex, age, draw.randrange(2), 0]
            writer.writerow([*written, f"{draw.uniform(5, 100):.2f}", draw.choice("CQS")])
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("old", "new"), [("survived", "lived"), (",10,", ",ten,"), ("\r\n1,0,", "\r\n1,,")]
)
def test_a_table_with_another_cell_than_published_is_named(
    data_dir: Path, old: str, new: str
) -> None:
    path = data_dir / "titanic" / "titanic3.csv"
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    with pytest.raises(DataError, match=r"titanic3.csv is not the table .* Fetch it again"):
        load_passengers(data_dir)


def as_study() -> Study:
    """Its loss goes over both outputs, so its gradient is half of ours: rate and penalty follow."""
    raw = load_study(study_path("titanic")).model_dump(mode="json")
    batch_size = BATCH_SIZE["AGE_STRICT"]
    erosion = {**EROSION, "size_unit": "completed_passes", "batch_size": batch_size}
    rate = titanic.RATES["corrected"]["local"] / 2
    return Study.model_validate(
        raw
        | {
            "user": USER,
            "rounds": ROUNDS,
            "model": {"name": "logistic", "start_deviation": 1 / 3},
            "training": {
                "steps": 1,
                "batch_size": batch_size,
                "order": "sequential",
                "learning_rate": rate,
                "weight_decay": 2 * titanic.PENALTY,
            },
            "arms": {"weight_erosion": erosion, "fedavg": {"weighting": "uniform"}, "local": {}},
        }
    )


def test_the_papers_runs_can_be_written_as_a_study(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = as_study()
    files = make_hospitals(study, tmp_path / "made", data_dir)
    hospitals = {n: Hospital(site_of(n, file, min_local_steps=1)) for n, file in files.items()}
    found = simulate(study, hospitals, clock=timeless)

    start = first_parameters(study.model, (len(FEATURES),), 2, study.seed)
    matrix, bias = start[:-2].reshape(2, len(FEATURES)), start[-2:]  # theirs is the transpose
    theirs = torch.cat([matrix.T.flatten(), bias])
    monkeypatch.setattr(titanic, "_first_parameters", lambda seed: theirs.clone())
    passengers = load_passengers(data_dir)
    rows = split_indices(passengers, "AGE_STRICT", AUTHORS_SEED)
    config: dict[str, Any] = {"mode": "corrected", "split": "AGE_STRICT", "seed": 0, **EROSION}
    config |= {"rounds": ROUNDS, "rates": titanic.RATES["corrected"]}
    for scheme in titanic.SCHEMES:
        expected = titanic._train(scheme, hospitals_of(passengers, rows, 0), 0, config)
        ended = found.finals[scheme].params
        flat = torch.cat([ended[:-2].reshape(2, len(FEATURES)).T.flatten(), ended[-2:]])
        assert flat.tolist() == pytest.approx(expected["parameters"], abs=1e-4)
        last = found.evaluation.arms[scheme]["accuracy"]
        assert last == pytest.approx(expected["accuracy"][-1], abs=1e-5)
    weights = found.finals["weight_erosion"].weights
    peers = [weights[name] for name in study.hospitals if name != USER]
    assert peers == pytest.approx(expected["weights"][-1], abs=1e-4)
    assert 0 < min(peers) < max(peers) < 1
