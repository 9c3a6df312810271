"""Predicting for new patients from a run folder."""

import csv
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import log_loss

import erosion
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.evaluation.final_figures import measure
from erosion_client.evaluation.predict import apply_model, load_saved_model, predict
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import CheckpointError, DataError
from erosion_common.program.command_line import main
from erosion_common.protocol import wire
from erosion_common.protocol.messages import EvaluateRequest
from erosion_common.support.text import harmless
from tests.support.said import raises, says
from tests.support.saved_model import PARAMETERS, run_folder
from tests.support.scans import write_dicom, write_nifti
from tests.support.small_study import make_site, make_study, with_missing


def data_file(folder: Path, text: str) -> Path:
    path = folder / "new.csv"
    path.write_text(text)
    return path


def six_decimals(text: str) -> str:
    """The last digits are the machine's own."""
    return re.sub(r"\d+\.\d+(?:e-?\d+)?", lambda number: f"{float(number[0]):.6f}", text)


@pytest.mark.parametrize("middle", [30, 70])
def test_no_false_ties(tmp_path: Path, capsys: pytest.CaptureFixture[str], middle: int) -> None:
    """Near 0 and near 1, where six decimals are the same for all of them."""
    ages = range(middle - 4, middle + 5)
    data = data_file(tmp_path, "sex,age\n" + "".join(f"f,{age}\n" for age in ages))
    predict(run_folder(tmp_path, parameters=10 * PARAMETERS), data, None)  # logits of -24 to 24
    lines = capsys.readouterr().out.splitlines()[1:]
    written = np.array([[float(cell) for cell in line.split(",")[:2]] for line in lines])
    applied = apply_model(load_saved_model(tmp_path), TableFile(path=data))
    np.testing.assert_array_equal(written, applied.predictions)
    assert len(set(written[:, 1])) == 9
    ill, task = np.arange(9) % 3 % 2, make_study().task
    found = measure(task, written, ill, ill)["auroc"]
    assert found == measure(task, applied.predictions, ill, ill)["auroc"]


def test_no_target_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_file(tmp_path, "sex,age\nf,50\nm,60\nf,30\n")
    predict(run_folder(tmp_path), data, None)
    assert six_decimals(capsys.readouterr().out) == (
        "probability_healthy,probability_ill,predicted\n"
        "0.500000,0.500000,healthy\n"
        "0.268941,0.731059,ill\n"  # 1 / (1 + exp(-1))
        "0.880797,0.119203,healthy\n"
    )
    predict(tmp_path, data, tmp_path / "out/predictions.csv")
    assert (tmp_path / "out/predictions.csv").read_text().count("\n") == 4


def test_words_for_the_target_are_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {**make_study().task.model_dump(mode="json"), "target": "ages"}
    source = TableFile(path=Path("unused"), columns={"ages": "Alt"}, values={"ages": {"ja": "1"}})
    data = data_file(tmp_path, "sex,age\nf,50\n")
    predict(run_folder(tmp_path, make_study(task=task)), data, None, source=source)
    assert capsys.readouterr().err == ""


def test_imputed_values_are_the_mean_and_dropped_patients_stay_empty(tmp_path: Path) -> None:
    for missing, line in (("impute", "0.500000,0.500000,healthy"), ("drop", ",,")):
        study = make_study(task=with_missing(missing))
        data = data_file(tmp_path, "age,sex\n60,f\n?,f\n")
        predict(run_folder(tmp_path, study), data, tmp_path / "out.csv")
        assert six_decimals((tmp_path / "out.csv").read_text()).splitlines()[2] == line


@pytest.mark.parametrize(
    ("farthest", "chances"),
    [
        (100.0, ["0.524979", "0.731059"]),
        (400.0, ["0.524979", "0.982014"]),  # 1 / (1 + exp(-400 / 100)): as far as in training
    ],
)
def test_values_far_away_are_cut_as_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], farthest: float, chances: list[str]
) -> None:
    scaling = {"mean": [50.0, 0.0], "deviation": [0.1, 1.0]}
    cut = {"deviations": farthest, "unscaled": 10.0}
    folder = run_folder(tmp_path, parameters=PARAMETERS / 100, scaling=scaling, cut=cut)
    predict(folder, data_file(tmp_path, "age,sex\n51,f\n90,f\n"), None)
    told = capsys.readouterr()
    lines = six_decimals(told.out).splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == chances
    assert says(told.err, "because", "100 deviations") == (farthest == 100)


UNLIKE_NOTE = re.compile("among the training patients|learned from")
UNLIKE = [
    ("6.5,60\n11.1,55\n", ["glucose: typically 8.8", "122 ± 27: another unit? [data.units]"]),
    ("118,60\n0,58\n120,61\n", ["0 more than 4,", "glucose 1 of 3 (122 ± 27). Look for slips"]),
    ("118,680\n130,58\n120,61\n", ["20 deviations", "age 1 of 3 (60 ± 10). Look for slips"]),
    ("6.5,60\n", ["glucose: typically 6.5"]),
    ("0,60\n", ["glucose: typically 0", "does 0 stand for missing values? [data.values]"]),
    ("118,60\n?,58\n200,80\n", []),
    ("118,108\n130,58\n", []),  # old
    ("480,60\n", []),  # very ill, and alone
    ("480,60\n" * 10, ["glucose: typically 480"]),
]


@pytest.mark.parametrize(("patients", "told"), UNLIKE)
@pytest.mark.parametrize("is_found", [True, False])
def test_patients_unlike_those_whom_the_model_learned_from_are_told_of(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    patients: str,
    told: list[str],
    is_found: bool,
) -> None:
    numbers = [{"name": "glucose"}, {"name": "age"}]
    study = make_study(task={**with_missing("impute"), "features": numbers})
    scaling = {"mean": [122.0, 60.0], "deviation": [27.0, 10.0] if is_found else [1.0, 1.0]}
    data = data_file(tmp_path, f"glucose,age\n{patients}")
    predict(run_folder(tmp_path, study, scaling=scaling), data, None)
    said = capsys.readouterr()
    noted = [note for note in said.err.splitlines() if UNLIKE_NOTE.search(note)]
    assert len(noted) == bool(told and is_found)
    assert all(text in noted[0] for text in told if noted)
    assert not UNLIKE_NOTE.search(said.out)


def test_missing_means_stand_in_without_scaling(tmp_path: Path) -> None:
    study = make_study(task=with_missing("impute"))
    folder = run_folder(tmp_path, study, scaling=None, missing_means=[1.0, 0.0])
    predict(folder, data_file(tmp_path, "age,sex\n?,f\n"), tmp_path / "out.csv")
    assert "0.731059,ill" in six_decimals((tmp_path / "out.csv").read_text())


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ("Alter,Geschlecht\n50,f\n", "[data.columns]"),
        ("age,sex\n500,f\n", "[data.units]"),  # in another unit
        ("age,sex\n50,W\n", "[data.values.sex]"),
    ],
)
def test_where_a_site_file_is_the_remedy_it_is_said_how_to_give_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, remedy: str
) -> None:
    data, folder, site = data_file(tmp_path, table), run_folder(tmp_path), tmp_path / "site.toml"
    site.write_text('name = "a"\ndata.path = "new.csv"\ncoordinator.address = "127.0.0.1:9092"\n')
    command = ["predict", str(folder), str(data)]
    assert main(command) == 4
    said = capsys.readouterr().err
    assert remedy in said
    assert said.endswith("give one with --site SITE.toml)\n")
    assert main([*command, "--site", str(site)]) == 4
    assert "--site" not in capsys.readouterr().err
    assert main([*command[:2], str(tmp_path / "absent.csv")]) == 4
    assert "--site" not in capsys.readouterr().err


def test_another_hospitals_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, folder, site = data_file(tmp_path, "sex,age\nf,50\n"), run_folder(tmp_path), "site.toml"
    command = ["predict", str(folder), str(data)]
    said = {}
    for name in ("alice", "bob"):
        (tmp_path / site).write_text(
            f'name = "{name}"\ndata.path = "new.csv"\ncoordinator.address = "127.0.0.1:9092"\n'
        )
        assert main([*command, "--site", str(tmp_path / site)]) == 0
        said[name] = capsys.readouterr()
    assert said["alice"].out == said["bob"].out
    assert main([*command, "-o", str(data / "below")]) == 74
    assert said["alice"].err == ""
    assert said["bob"].err == (
        "Noted: this model was made for alice; its predictions for bob's patients were not"
        " measured\n"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "is of format 2; erosion "),
        ({"later": True}, "later is not a known key"),
        ({"scaling": {"mean": [0.0], "deviation": [1.0]}}, "scales another number of columns"),
        ({"model": {"name": "mlp"}}, "model.safetensors does not fit model.json"),
        ({"task": with_missing("impute"), "scaling": None}, "does not say by what"),
    ],
)
def test_a_bad_model_card(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as problem:
        predict(run_folder(tmp_path, **changes), data_file(tmp_path, "age,sex\n1,f\n"), None)
    assert message in str(problem.value)


def test_a_folder_without_a_model_is_explained(tmp_path: Path) -> None:
    with raises(CheckpointError, "There is", "model.json", "folder"):
        predict(tmp_path, tmp_path / "new.csv", None)
    run_folder(tmp_path)
    (tmp_path / "model.json").write_text("[")
    with raises(CheckpointError, "be read"):
        predict(tmp_path, tmp_path / "new.csv", None)
    run_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with raises(CheckpointError, "be read"):
        predict(tmp_path, tmp_path / "new.csv", None)


def test_patients_keep_their_ids_by_the_sites_key(tmp_path: Path) -> None:
    data = data_file(tmp_path, "pid,Alter,sex\np7,50,f\np8,?,m\n")
    source = TableFile(path=Path("unused"), columns={"age": "Alter"}, patient="pid")
    folder = run_folder(tmp_path, make_study(task=with_missing("drop")))
    predict(folder, data, tmp_path / "out.csv", source=source)
    lines = six_decimals((tmp_path / "out.csv").read_text()).splitlines()
    assert lines[0] == "pid,probability_healthy,probability_ill,predicted"
    assert lines[1:] == ["p7,0.500000,0.500000,healthy", "p8,,,"]


@pytest.mark.parametrize("key", [None, "pid"])
def test_lines_without_a_patient_keep_their_place(tmp_path: Path, key: str | None) -> None:
    data = data_file(tmp_path, "pid,age,sex\np1,60,f\n,,\n\np2,30,f\n")
    source = TableFile(path=data, patient=key)
    predict(run_folder(tmp_path), None, tmp_path / "out.csv", source=source)
    lines = six_decimals((tmp_path / "out.csv").read_text()).splitlines()[1:]
    first, second, nothing = "0.268941,0.731059,ill", "0.880797,0.119203,healthy", ",,"
    if key is not None:
        first, second, nothing = f"p1,{first}", f"p2,{second}", f",{nothing}"
    assert lines == [first, nothing, nothing, second]


def test_nobody_who_can_be_predicted_is_no_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, make_study(task=with_missing("drop")))
    predict(folder, data_file(tmp_path, "age,sex\n?,f\n"), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1:] == [",,"]


def test_the_patients_own_file_is_not_overwritten(tmp_path: Path) -> None:
    data = data_file(tmp_path, "sex,age\nf,50\n")
    with raises(DataError, "patients'", "file"):
        predict(run_folder(tmp_path), data, tmp_path / "." / "new.csv")
    assert data.read_text() == "sex,age\nf,50\n"


def test_what_is_no_ordinary_file_is_written_to_and_stays(tmp_path: Path) -> None:
    data = data_file(tmp_path, "sex,age\nf,50\n")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        predict(run_folder(tmp_path), data, tmp_path / "pipe")
        assert os.read(reader, 1000).endswith(b"0.5,0.5,healthy\n")
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_without_a_file_the_sites_own_source_is_read(tmp_path: Path) -> None:
    data = data_file(tmp_path, "age,sex\n50,f\n")
    predict(run_folder(tmp_path), None, tmp_path / "out.csv", source=TableFile(path=data))
    assert "0.500000,0.500000,healthy" in six_decimals((tmp_path / "out.csv").read_text())
    with raises(DataError, "patients", "named"):
        predict(tmp_path, None, None)


def test_another_arms_model_can_be_named(tmp_path: Path) -> None:
    data = data_file(tmp_path, "age,sex\n50,f\n")
    (tmp_path / "models/local").mkdir(parents=True)
    run_folder(tmp_path / "models/local", scaling={"mean": [40.0, 0.0], "deviation": [10.0, 1.0]})
    run_folder(tmp_path)
    predict(tmp_path, data, tmp_path / "out.csv", arm="local")
    assert "0.731059,ill" in six_decimals((tmp_path / "out.csv").read_text())
    with raises(CheckpointError, "model", "'x'"):
        predict(tmp_path, data, None, arm="x")


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+2", "'=1+2"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-x", "'-x"),
        ("\tx", "'\tx"),
        ("-0.5", "-0.5"),
        ("+3", "+3"),
        ("p1", "p1"),
        ("", ""),
    ],
)
def test_no_cell_is_a_formula(cell: str, written: str) -> None:
    assert harmless(cell) == written


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
    monkeypatch.setattr("erosion_client.evaluation.held_out.MOST_RUNS", 2)
    hospital = user(tmp_path, patient="key")
    for run in range(4):
        evaluate(hospital, f"../{run}", arms=["fedavg", "local"])
    assert len(list((tmp_path / "state" / "a" / "runs").iterdir())) == 2
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"a"}


@pytest.mark.parametrize(("evaluation", "workers"), [({}, 2), ({"folds": 3, "repeats": 2}, 1)])
def test_figures_from_the_table(tmp_path: Path, evaluation: dict[str, int], workers: int) -> None:
    sites = []
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(table())
        sites.append(tmp_path / f"{name}.toml")
        sites[-1].write_text(
            f'name = "{name}"\n[coordinator]\naddress = "127.0.0.1:9092"\n'
            f'[data]\npath = "{name}.csv"\npatient = "key"\n'
        )
    study = make_study(task=TASK, rounds=4, evaluation=evaluation)
    run = erosion.simulate(study, sites, progress=False, workers=workers)
    held_out = run.predictions()
    assert set(run.rounds["num_patients"]) == {held_out["patient"].nunique()}
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
    elsewhere = tmp_path / "other.toml"  # the same hospital's file, as it stands next to a testbed
    elsewhere.write_text(f'{site.read_text()}[compute]\nstate = "elsewhere"\n')
    assert "trained on" not in said("--site", str(elsewhere))
    shutil.copytree(tmp_path / "state", run / "testbed" / "a" / "state")
    assert f"trained on {trained} of" in said("--site", str(elsewhere))
    model = erosion.load_model(run, site=site)
    with pytest.warns(UserWarning, match=f"trained on {trained} of these {len(lines)} rows"):
        model.predict(pd.read_csv(tmp_path / "a.csv"))


# -- images ----------------------------------------------------------------------------------------

SCANS = make_study(
    task={"kind": "image", "target": "label", "classes": ["cold", "warm"], "shape": [1, 6, 8]}
)
OF_PIXELS = torch.linspace(-0.2, 0.2, 98)  # of a logistic model
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # suffix of a scan, and keys of the site file
    "images": (".png", {"patient_pattern": "^(.+?)_"}),
    "dicom": (".dcm", {"window": [40, 400]}),
    "nifti": (".nii.gz", {"plane": "axial", "patient_pattern": "^(.+?)_"}),
}


def write_scan(path: Path, number: int) -> None:
    pixels = np.random.default_rng(number).integers(0, 256, (6, 8), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(pixels).save(path)
    elif path.suffix == ".dcm":
        write_dicom(path, pixels.astype(np.uint16) + 1000, PatientID=f"p{number}")
    else:
        write_nifti(path, np.repeat(pixels[::-1].T[:, :, None], 3, axis=2).astype(np.int16))


def predicted_images(run: Path, *arguments: str) -> dict[str, str]:
    """The last class's probability of each image, by `erosion predict`."""
    out = run.parent / "out.csv"
    assert main(["predict", str(run), *arguments, "-o", str(out)]) == 0
    rows = [*csv.DictReader(out.read_text().splitlines())]
    return {row["image"]: row["probability_warm"] for row in rows}


def measured_images(folder: Path, site: Path) -> dict[str, float]:
    """The held-out probability of each image by the site's own hand, and a run beside it."""
    models = {"fedavg": OF_PIXELS, "local": OF_PIXELS}
    Hospital(load_site(site)).evaluate(EvaluateRequest(SCANS, models, None, "mine"))
    (folder / "run").mkdir()
    run_folder(folder / "run", SCANS, OF_PIXELS, user="a", run="mine", scaling=None)
    text = (written(folder) / "predictions.csv").read_text()
    rows = [row for row in csv.DictReader(text.splitlines()) if row["arm"] == "fedavg"]
    return {row["image"]: float(row["probability_warm"]) for row in rows}


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_predicted_as_they_were_measured(tmp_path: Path, kind: str) -> None:
    suffix, keys = KINDS[kind]
    for number in range(30):
        label = ("cold", "warm")[number % 2]
        write_scan(tmp_path / "own" / label / f"p{number}_x{suffix}", number)
    site = tmp_path / "site.toml"
    data = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    site.write_text(
        'name = "a"\ncoordinator.address = "127.0.0.1:9092"\nlimits.min_cell = 3\n'
        f'[data]\nsource = "{kind}"\npath = "own"\n{data}'
    )
    measured = measured_images(tmp_path, site)
    assert len(measured) >= 8
    new = tmp_path / "new"
    for place in measured:  # without classes, in folders of another kind, under other names
        (new / "today").mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "own" / place, new / "today" / f"{Path(place).name[1:]}")
    expected = {f"today/{Path(place).name[1:]}": p for place, p in measured.items()}
    with_site = ("--site", str(site))

    def found(*arguments: str) -> dict[str, float]:
        chances = predicted_images(tmp_path / "run", *arguments, *with_site)
        return {place: float(chance) for place, chance in chances.items()}

    assert found(str(new)) == pytest.approx(expected, abs=1e-6)
    of_site = {place: chance for place, chance in found().items() if place in measured}
    assert of_site == pytest.approx(measured, abs=1e-6)  # the site's own, whatever their class
    first, *_ = expected
    assert found(str(new / first)) == pytest.approx({Path(first).name: expected[first]}, abs=1e-6)
    (new / "list.csv").write_text(f"file,ward\n{first},7\n")
    assert found(str(new / "list.csv")) == pytest.approx({first: expected[first]}, abs=1e-6)


def test_an_archive_of_images_needs_no_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, images = tmp_path / "run", np.zeros((3, 1, 6, 8), np.uint8)
    run.mkdir()
    run_folder(run, SCANS, OF_PIXELS, scaling=None)
    np.savez(tmp_path / "new.npz", images=images)
    found = predicted_images(run, str(tmp_path / "new.npz"))
    bias = float(OF_PIXELS[97] - OF_PIXELS[96])  # of black pixels
    assert [*map(float, found.values())] == pytest.approx([1 / (1 + np.exp(-bias))] * 3)
    assert [*found] == ["number 0", "number 1", "number 2"]
    assert "trained on" not in capsys.readouterr().err


def test_what_is_no_new_image_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, new, site = tmp_path / "run", tmp_path / "new", tmp_path / "site.toml"
    run.mkdir()
    run_folder(run, SCANS, OF_PIXELS, scaling=None)

    def refusal(*arguments: Any) -> str:
        assert main(["predict", str(run), *map(str, arguments)]) in (4, 6)
        return capsys.readouterr().err

    assert "--site" in refusal()
    assert str(new) in refusal(new)
    new.mkdir()
    assert "no images" in refusal(new)
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(new / "a.png")
    assert "--site" in (said := refusal(new))
    assert "5 x 5" in said
    (new / "a.png").rename(new / "a_mask.png")
    assert "a_mask.png" in refusal(new)
    (new / "list.csv").write_text("file\nabsent.png\n")
    assert "absent.png" in refusal(new / "list.csv")
    (new / "list.csv").write_text("name\na_mask.png\n")
    assert "'file'" in refusal(new / "list.csv")
    site.write_text('name = "a"\ncoordinator.address = "127.0.0.1:9092"\ndata.path = "a.csv"\n')
    assert "a.csv" in refusal(new, "--site", site)
    with raises(CheckpointError, "frame"):
        erosion.load_model(run)


def test_many_images_are_predicted_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    run = run_folder(tmp_path / "run", SCANS, OF_PIXELS, scaling=None)
    for number in range(7):
        write_scan(tmp_path / "new" / f"{number}.png", number)
    whole = predicted_images(run, str(tmp_path / "new"))
    monkeypatch.setattr("erosion_client.evaluation.predict.PIXELS_AT_ONCE", 100)
    parts = predicted_images(run, str(tmp_path / "new"))
    assert {k: float(v) for k, v in parts.items()} == pytest.approx(
        {k: float(v) for k, v in whole.items()}, abs=1e-7
    )
