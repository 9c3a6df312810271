"""`import erosion` as a notebook uses it, and the page that explains it."""

import copy
import dataclasses
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import RegressorMixin, clone
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

import erosion
from erosion.simulation.testbed import study_path
from erosion_common.program.command_line import main
from tests.support.patience import PATIENCE
from tests.support.said import raises, says
from tests.support.saved_model import run_folder
from tests.support.small_study import TASK, TEN_NUMBERS, make_study, sixty_patients, with_missing
from tests.support.synthetic_run import make_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
STUDY = study_path("breast-cancer")
STUDY_KEYS = make_study().model_dump(mode="json")
UNTYPED: Any = erosion  # as a notebook has it
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture
def patients() -> pd.DataFrame:
    return pd.DataFrame({"id": [7, 8, 9], "sex": ["f", "m", "f"], "age": [50, 60, 30]})


def test_the_page_runs_from_top_to_bottom_and_its_models_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == 8
    page: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), page)
    run, simulated = page["run"], page["simulated"]
    references = ["ridge", "boosted_trees"]  # tuned models of the user's own patients
    assert list(run.arms.index) == ["weight_erosion", "fedavg", "local", *references]
    pd.testing.assert_frame_equal(run.arms, simulated.arms)  # a deployment and a simulation
    assert len(run.rounds) == 3 * (1 + 5)
    shared = ["arm", "round", "log_loss", "accuracy", "num_accepted"]
    pd.testing.assert_frame_equal(run.rounds[shared], simulated.rounds[shared])
    assert run.verdict == simulated.verdict == run.result.verdict.text
    assert (run.folder / "metrics.csv").exists()

    pd.testing.assert_frame_equal(run.predictions(), simulated.predictions())
    for arm, own in page["held_out"].groupby("arm"):
        found = run.arms.loc[arm]
        chances, is_ill = own["probability_malignant"], own["outcome"] == "malignant"
        assert len(own) == found["num_patients"]
        assert (own["predicted"] == own["outcome"]).mean() == pytest.approx(found["accuracy"])
        assert roc_auc_score(is_ill, chances) == pytest.approx(found["auroc"])
        assert brier_score_loss(is_ill, chances) == pytest.approx(found["brier"])
    table = page["table"]
    assert (table["diagnosis"].iloc[own["row"] - 1] == own["outcome"].to_numpy()).all()
    others = table.drop(table.index[page["own"]["row"] - 1])
    assert len(others) > 10
    with pytest.warns(UserWarning) as warned:  # noqa: PT030 - held against the numbers
        page["model"].predict(table)
    assert any(says(str(w.message), f"{len(others)} of", len(table)) for w in warned)
    path = run.folder / "testbed" / "home" / "patients.csv"
    capsys.readouterr()
    assert main(["predict", str(run.folder), str(path), "-o", "all.csv"]) == 0
    assert f"trained on {len(others)} of these {len(table)} rows" in capsys.readouterr().err
    page["patients"].to_csv("new.csv", index=False)
    assert main(["predict", str(run.folder), "new.csv", "-o", "predicted.csv"]) == 0
    assert "trained on" not in capsys.readouterr().err

    model, fedavg, patients = page["model"], page["fedavg"], page["patients"]
    probabilities = model.predict_proba(patients)
    assert probabilities.shape == (len(patients), 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert set(model.predict(patients)) == set(model.classes_)
    truth = patients["diagnosis"]
    assert set(truth) == set(model.classes_)
    assert model.score(patients, truth) > 0.8
    assert (fedavg.arm, fedavg.predict_proba(patients).tolist()) != (
        model.arm,
        probabilities.tolist(),
    )


def test_importing_erosion_imports_nothing_heavy() -> None:
    program = (
        "import sys; import erosion; dir(erosion);"
        "print(*(n for n in ('torch', 'numpy', 'pydantic', 'grpc', 'pandas') if n in sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert run.stdout.split() == []


def test_every_public_name_is_there_and_no_other() -> None:
    for name in erosion.__all__:
        assert getattr(erosion, name) is not None
    offered = {name for name in dir(erosion) if not name.startswith("_")}
    modules = {name for name in offered if isinstance(getattr(erosion, name), ModuleType)}
    assert offered - modules == set(erosion.__all__)
    assert all(getattr(erosion, name).__name__ == f"erosion.{name}" for name in modules)
    with raises(AttributeError, "attribute", "'fleet'"):
        _ = erosion.fleet


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: UNTYPED.load_study({**STUDY_KEYS, "rounds": 0}), "rounds = 0; it must be 1 or"),
        (lambda: UNTYPED.load_study(5), "study = 5; it must be the path"),
        (lambda: UNTYPED.simulate("breast-cancer", sites=5), "sites = 5; it must be paths"),
        (lambda: UNTYPED.simulate("breast-cancer", sites={1: "a"}), "of sites = 1; it must be a"),
        (lambda: UNTYPED.simulate("breast-cancer", sites="a" * 5000), "sites = a str; it must be"),
        (lambda: UNTYPED.simulate("breast-cancer", progress="no"), "progress = 'no'; it must be"),
        (lambda: UNTYPED.load_study("rounds = 3  # of mg/L\n" * 300), "not the content of a file"),
        (lambda: UNTYPED.read_run("a" * 5000), "folder = a str; it must be"),
        (lambda: UNTYPED.load_model("a\0"), "run_folder = 'a\\x00'; it must be a path"),
        (lambda: UNTYPED.simulate("breast-cancer", workers="a"), "workers = 'a'; it must be a"),
        (lambda: UNTYPED.simulate("breast-cancer", weights=5), "weights = 5; it must be a path"),
        (lambda: UNTYPED.testbed("breast-cancer", runs=5), "runs = 5; it must be a path"),
        (lambda: UNTYPED.testbed("breast-cancer", outputs=5), "outputs = 5; it must be a list"),
        (lambda: UNTYPED.read_run(5), "folder = 5; it must be a path"),
        (lambda: UNTYPED.load_model(5), "run_folder = 5; it must be a path"),
        (lambda: UNTYPED.load_model("run", arm=5), "arm = 5; it must be an arm's name"),
    ],
)
def test_a_wrong_argument_is_an_error(call: Callable[[], object], said: str) -> None:
    with pytest.raises(erosion.ErosionError) as problem:
        call()
    assert said in str(problem.value)


@pytest.mark.parametrize("outputs", ["metric", ["metrics", "metric"]])
def test_a_misspelt_output_is_noticed_first(tmp_path: Path, outputs: list[str] | str) -> None:
    runs = tmp_path / "runs"
    with raises(erosion.ErosionError, "metric", "output"):
        erosion.testbed("breast-cancer", runs=runs, outputs=outputs)
    named = [outputs] if isinstance(outputs, str) else outputs
    flags = [f"--output={name}" for name in named]
    assert main(["testbed", "breast-cancer", "--runs", str(runs), *flags]) == 7
    assert main(["server", str(STUDY), "--insecure", "--runs", str(runs), *flags]) == 7
    assert not runs.exists()


def test_a_testbed_is_for_one_user_and_says_so_before_it_runs(tmp_path: Path) -> None:
    study = erosion.load_study("breast-cancer")
    runs = tmp_path / "runs"
    with raises(erosion.ErosionError, "every", "hospital"):
        erosion.testbed({**study.model_dump(), "user": "all"}, runs=runs)
    assert not runs.exists()
    with raises(erosion.ErosionError, "simulate(study.for_user(name))"):
        erosion.simulate({**study.model_dump(), "user": "all"}, {"home": tmp_path / "nix"})
    of_files = {**study.model_dump(), "user": "all", "testbed": None}
    with raises(erosion.ErosionError, "simulate(study.for_user(name), sites)"):
        erosion.simulate(of_files)


def test_a_part_of_a_run_for_every_user_says_that_its_verdict_is_its_own(tmp_path: Path) -> None:
    made = make_run(rounds=2)
    alone = erosion.read_run(made.write(tmp_path / "alone"))
    assert not any("comparison alone" in note for note in alone.notes)
    part = made.write(tmp_path / "run" / "users" / "home")
    (tmp_path / "run" / "study.toml").write_text("")
    told = erosion.read_run(part).notes[-1]
    assert told.startswith("This verdict looks at its own comparison alone.")
    assert told.endswith(f"{tmp_path}/run/report.html.")


def test_a_round_in_the_frame_is_the_model_after_it(tmp_path: Path) -> None:
    sites = {}
    for name in "ab":
        sites[name] = tmp_path / f"{name}.csv"
        sites[name].write_text(sixty_patients(name))
    arms = ["weight_erosion", "fedavg", "local", "apfl", "personal_intercept"]

    def after(rounds: int) -> erosion.Run:
        study = make_study(task=TEN_NUMBERS, rounds=rounds, arms=arms)
        return erosion.simulate(study, sites, progress=False)

    longest = after(3)
    metrics = ["log_loss", "accuracy", "num_patients"]
    for rounds in (1, 2, 3):
        found = longest.rounds[longest.rounds["round"] == rounds].set_index("arm")[metrics]
        pd.testing.assert_frame_equal(found, after(rounds).arms[metrics], check_names=False)
    start = longest.rounds[longest.rounds["round"] == 0].set_index("arm")
    assert start.loc["fedavg", "log_loss"] == start.loc["local", "log_loss"]
    assert set(start["outcome"]) == {"start"}


def test_a_simulation_on_own_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study = make_study(rounds=2)
    draws = np.random.default_rng(5)
    sites = {}
    for name in study.hospitals:
        age = draws.normal(50, 10, size=40).round(1)
        frame = pd.DataFrame({"age": age, "sex": draws.choice(["f", "m"], 40)})
        frame["ill"] = (age + draws.normal(0, 5, 40) > 50).astype(int)
        frame.to_csv(tmp_path / f"{name}.csv")
        sites[name] = tmp_path / f"{name}.csv"
    found = erosion.simulate(study, sites, progress=False)
    assert len(found.rounds) == (1 + 2) * len(study.arms)  # the start, and two rounds
    assert " test patients" in found.verdict
    cross_fitted = make_study(rounds=4, evaluation={"folds": 2, "bootstrap": 100})
    tested = erosion.simulate(cross_fitted, sites, progress=False).verdict
    assert says(tested, "40 patients", "predicted")
    with raises(erosion.ErosionError, "name", "elsewhere"):
        erosion.simulate(study, {**sites, "elsewhere": tmp_path / "a.csv"}, progress=False)
    assert erosion.simulate(study, tmp_path, progress=False).verdict == found.verdict
    (tmp_path / "empty").mkdir()
    with raises(erosion.ErosionError, "data", "a"):
        erosion.simulate(study, tmp_path / "empty", progress=False)
    with raises(erosion.ErosionError, "keeps no"):
        found.model()
    assert "erosion.testbed" not in {record.name for record in caplog.records}
    alike = {**sites, study.hospitals[1]: sites[study.hospitals[0]]}
    erosion.simulate(study, alike, progress=False)  # two with the same patients
    assert "erosion.testbed" in {record.name for record in caplog.records}


def test_keys_and_classes_of_the_held_out_predictions_are_text_as_they_were(tmp_path: Path) -> None:
    run = erosion.read_run(make_run(rounds=4).write(tmp_path / "run"))
    lines = (
        "patient,cut,arm,predicted,outcome\n0012,0,fedavg,'+,NA\n'-A1,0,fedavg,0,'+\n1e5,0,a,NA,0"
    )
    found = dataclasses.replace(run, folder=None, held_out=lines).predictions()
    assert found["patient"].tolist() == ["0012", "-A1", "1e5"]
    assert found["outcome"].tolist() == ["NA", "+", "0"]
    assert found["predicted"].tolist() == ["+", "0", "NA"]
    assert found["cut"].tolist() == [0, 0, 0]


def test_a_run_is_read_as_frames(tmp_path: Path) -> None:
    made = make_run(rounds=4)
    run = erosion.read_run(made.write(tmp_path / "run"))
    assert len(run.rounds) == len(made.records) + len(run.study.arms)  # and every start
    weights = run.weights.set_index(["arm", "round", "hospital"])
    record = made.records[2]
    found = weights.loc[(record.arm, record.round, "alike")]
    assert found["weight"] == record.hospitals["alike"].weight_after
    assert found["distance"] == record.hospitals["alike"].distance
    assert run.arms.loc["fedavg", "accuracy_low"] < run.arms.loc["fedavg", "accuracy"]
    assert "better" in repr(run)
    with raises(erosion.ErosionError, "nix"):
        erosion.read_run(tmp_path / "nix")
    (tmp_path / "run" / "result.json").unlink()
    with raises(erosion.ErosionError, "did not"):
        erosion.read_run(tmp_path / "run")


def test_a_frame_is_predicted_in_its_order(tmp_path: Path, patients: pd.DataFrame) -> None:
    model = erosion.load_model(run_folder(tmp_path))
    check_is_fitted(model)
    patients.attrs["read from"] = tmp_path  # no JSON
    assert list(model.classes_) == ["healthy", "ill"]
    assert list(model.feature_names_in_) == ["age", "sex"]
    np.testing.assert_allclose(model.predict_proba(patients)[:, 1], [0.5, 0.731059, 0.119203], 1e-5)
    assert list(model.predict(patients)) == ["healthy", "ill", "healthy"]
    assert list(make_pipeline(model).predict(patients)) == ["healthy", "ill", "healthy"]
    assert clone(model) is model
    with raises(erosion.ErosionError, "run.predictions()"):
        model.fit(patients, [1, 0, 1])
    one_year_older = patients.assign(age=patients["age"] + 1)
    chances, older = (model.predict_proba(f)[:, 1] for f in (patients, one_year_older))
    grown = np.log(older / (1 - older)) - np.log(chances / (1 - chances))
    assert list(model.coef_names_) == ["age", "sex=m"]
    np.testing.assert_allclose(grown, model.coef_[0], rtol=1e-4)
    assert model.score(patients, ["healthy", "ill", "ill"]) == pytest.approx(2 / 3)
    kept = pickle.dumps(model)  # as joblib keeps a pipeline or hands it to another process
    for again in (pickle.loads(kept), copy.deepcopy(model)):  # noqa: S301 - our own
        np.testing.assert_array_equal(again.predict_proba(patients), model.predict_proba(patients))


def test_what_a_model_cannot_use_is_explained(tmp_path: Path, patients: pd.DataFrame) -> None:
    model = erosion.load_model(run_folder(tmp_path))
    with raises(erosion.ErosionError, "DataFrame", "columns"):
        model.predict([[1, 2]])
    with raises(erosion.ErosionError, "elsewhere.DataFrame", "to_pandas"):
        model.predict(type("DataFrame", (), {"__module__": "elsewhere.frame"})())
    with raises(erosion.ErosionError, "none", "age, sex"):
        model.predict(patients.set_axis(pd.MultiIndex.from_product([patients, [""]]), axis=1))
    with raises(erosion.ErosionError, "1", "2", ": age."):
        model.predict(patients[["sex"]])
    with raises(erosion.ErosionError, "frame", "cannot", "column age"):
        model.predict(pd.DataFrame({"age": [50, "60"], "sex": ["f", "m"]}))
    with raises(erosion.ErosionError, "none", "age, sex"):
        model.predict(pd.DataFrame([[50, "f"]]))
    with raises(erosion.ErosionError, "Duplicate column"):
        model.predict(patients[["age", "age", "sex"]])
    with raises(erosion.ErosionError, "frame", "cannot", "complex"):
        model.predict(pd.DataFrame({"age": [1j], "sex": ["f"]}))
    with raises(erosion.ErosionError, "frame"):
        model.predict(pd.DataFrame({"age": [10**30], "sex": ["f"]}))
    with raises(erosion.ErosionError, "model", "'x'"):
        erosion.load_model(tmp_path, arm="x")


def test_a_row_without_a_needed_value_has_no_prediction(tmp_path: Path) -> None:
    model = erosion.load_model(run_folder(tmp_path, make_study(task=with_missing("drop"))))
    frame = pd.DataFrame({"age": [60, None], "sex": ["f", "f"]})
    assert list(model.predict(frame)) == ["ill", None]
    assert np.isnan(model.predict_proba(frame)[1]).all()
    alone = pd.DataFrame({"age": [np.nan], "sex": ["f"]})
    assert list(model.predict(alone)) == [None]
    assert np.isnan(model.predict_proba(alone)).all()


def test_models_of_numbers_and_times(tmp_path: Path, patients: pd.DataFrame) -> None:
    features = {"kind": "tabular", "features": TASK["features"]}
    number = {**features, "outcome": "regression", "target": "days", "centre": 10, "spread": 2}
    study = make_study(task=number)
    (tmp_path / "number").mkdir()
    one_output = torch.tensor([1.0, 0.0, 0.0])  # the scaled age
    model = erosion.load_model(run_folder(tmp_path / "number", study, one_output))
    assert isinstance(model, RegressorMixin)
    assert model.predict(patients).tolist() == pytest.approx([10, 12, 6])  # 10 + 2 scaled ages

    time = {
        **features,
        "outcome": "survival",
        "target": {"time": "days", "event": "died"},
        "cut_points": [10, 20],
    }
    study = make_study(task=time)
    (tmp_path / "time").mkdir()
    two_outputs = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    model = erosion.load_model(run_folder(tmp_path / "time", study, two_outputs))
    event_free = model.predict_event_free(patients)
    assert event_free.shape == (3, 2)  # at each cut point
    assert (event_free[:, 1] < event_free[:, 0]).all()
    np.testing.assert_array_equal(model.predict(patients), 1 - event_free[:, 1])
    assert model.predict(patients).argsort().tolist() == [2, 0, 1]  # the older, the worse
