"""Columns that are known only after the outcome are asked about, repeated and named first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion.simulation.simulated_testbed import side_by_side
from erosion.simulation.simulator import simulate
from erosion_client.scaffold.column_roles import is_known_afterwards
from erosion_client.training.hospital import Hospital
from erosion_common.program.command_line import main
from erosion_common.study.study import Study
from erosion_server.coordination.run_end import result_of
from erosion_server.output.words import beside_verdict
from erosion_server.run.result import Result
from tests.support.drafts import drafted, site_of
from tests.support.said import says
from tests.support.small_study import make_site, make_study

NUM = 240


def table(seed: int = 0) -> dict[str, list[object]]:
    """Age tells something; the others what the test says."""
    draws = np.random.default_rng(seed)
    age = draws.normal(60, 9, NUM).round(1)
    risk = (age - 60) / 9 + draws.normal(0, 2, NUM)
    died = risk > 0.4
    days = (900 * np.exp(-risk / 3)).round(0)
    return {
        "age": age.tolist(),
        "height": draws.normal(170, 9, NUM).round(1).tolist(),
        "died": np.where(died, "yes", "no").tolist(),
        "risk": (10 + risk).round(3).tolist(),
        "days": days.tolist(),
        "ward": draws.choice(["p", "q"], NUM).tolist(),
        "bill": np.where(died, draws.normal(9, 1, NUM), draws.normal(4, 1, NUM)).round(2).tolist(),
        "ph": [f"{7 + x / 50:.2f}" if d else "" for x, d in zip(draws.normal(size=NUM), died,
                                                                strict=True)],
        "form": np.where(died, "B17", np.where(draws.random(NUM) < 0.5, "A1", "A2")).tolist(),
        "score": (50 + 7 * risk + draws.normal(0, 0.5, NUM)).round(2).tolist(),
        "months": ((days + draws.normal(0, 9, NUM)) / 30).round(1).tolist(),
        "Verweildauer (Tage)": draws.integers(1, 30, NUM).tolist(),
    }  # fmt: skip


def text_of(rows: dict[str, list[object]], *names: str) -> str:
    lines = zip(*(rows[name] for name in names), strict=True)
    return "\n".join([",".join(names), *(",".join(map(str, line)) for line in lines)]) + "\n"


def questions(study_file: Path) -> set[str]:
    """The columns that a draft asks about."""
    lines = [line.strip() for line in study_file.read_text(encoding="utf-8").splitlines()]
    return {line.removeprefix("# ? ").split(":")[0] for line in lines if line.startswith("# ? ")}


def test_late_columns_are_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("age", "height", "bill", "ph", "form", "Verweildauer (Tage)", "died")
    drafted(tmp_path, text_of(table(), *names), "died")
    suspected = {"bill", "ph", "form", "Verweildauer (Tage)"}
    assert questions(tmp_path / "study.toml") == suspected
    site = site_of(tmp_path)
    capsys.readouterr()
    main(["check", str(site), "--study", str(tmp_path / "study.toml")])
    told = " ".join(capsys.readouterr().out.split())
    assert {name for name in names if f"column {name}:" in told} == suspected
    assert {name for name in names if f"asks: {name}:" in told} == suspected


def test_numbers_and_times_have_leaks_too(tmp_path: Path) -> None:
    for folder, names, target, more in (
        ("number", ("age", "score", "risk"), "risk", ()),
        ("time", ("age", "months", "days", "died"), "died", ("--time", "days")),
    ):
        (tmp_path / folder).mkdir()
        drafted(tmp_path / folder, text_of(table(), *names), target, *more)
        assert questions(tmp_path / folder / "study.toml") == {names[1]}


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *[(name, True) for name in (
            "LOS", "length_of_stay", "LengthOfStay", "icu_days", "discharge_disposition_id",
            "Date of death", "Entlassungsart", "Verweildauer", "durée de séjour", "décès",
            "fecha de alta", "días de estancia", "óbito", "giorni degenza", "ligduur", "vårdtid",
            "30d readmission", "deceased", "data zgonu", "yatış süresi", "дата_смерти",
            "длительность госпитализации",
            "死亡日期", "在院日数", "ημερομηνία_θανάτου", "مدة_الإقامة", "complicanze", "dödsdatum",
        )],
        *[(name, False) for name in (
            "age", "loss", "previous_readmissions", "family history of death", "blood pressure",
            "возраст", "入院日",
            "todo", "admission type", "sort", "closed", "altas", "deadlift", "Vorher verstorben",
        )],
    ],
)  # fmt: skip
def test_names_in_several_languages_tell_late_columns(name: str, is_one: bool) -> None:
    assert is_known_afterwards(name) == is_one


def study_of(task: str, *features: str, **changes: Any) -> Study:
    tasks: dict[str, dict[str, Any]] = {
        "died": {"target": "died", "classes": ["no", "yes"]},
        "risk": {"outcome": "regression", "target": "risk", "centre": 10.0, "spread": 2.2},
        "days": {
            "outcome": "survival", "cut_points": [300, 600, 900, 1200],
            "target": {"time": "days", "event": "died", "happened": ["yes"], "censored": ["no"]},
        },
    }  # fmt: skip
    kinds: dict[str, Any] = {"form": {"name": "form", "categories": ["A1", "A2", "B17"]}}
    return make_study(
        task={
            "kind": "tabular",
            "missing": "impute",
            "features": [kinds.get(name, name) for name in features],
            **tasks[task],
        },
        scaling="federated",
        training={"epochs": 5, "batch_size": 8},
        rounds=5,
        **changes,
    )


def result(folder: Path, study: Study) -> Result:
    hospitals = {}
    for seed, name in enumerate(study.hospitals):
        rows = table(seed)
        hospitals[name] = Hospital(
            make_site(folder, text_of(rows, *rows), name=name, file=f"{name}.csv")
        )
    outcome = simulate(study, hospitals)
    found = result_of(outcome, "2026-01-02T03:04:05+00:00", 1.0)
    beside = side_by_side(study, {study.user: outcome}, 1.0)
    assert beside.users[study.user].leak == found.leak
    assert found.leak is None or found.leak.sentence(found.task) in beside.verdict
    return found


@pytest.mark.parametrize(
    ("task", "leak", "folds"),
    [
        ("died", "bill", None),
        ("died", "ph", 2),
        ("died", "form", None),
        ("risk", "score", 2),
        ("days", "months", None),
    ],
)
def test_a_report_names_leaks(tmp_path: Path, task: str, leak: str, folds: int | None) -> None:
    evaluation = {"folds": folds} if folds else {}
    honest = result(tmp_path, study_of(task, "age", "height", evaluation=evaluation))
    assert honest.leak is None
    found = result(tmp_path, study_of(task, "age", "height", leak, evaluation=evaluation))
    assert found.leak is not None
    if found.leak.column is None:  # the models are better still, and too good
        assert found.leak.figure > 0.99
    else:
        assert found.leak.column == leak
        assert leak in found.verdict.text.partition("?")[0]
    assert found.verdict.text.startswith(found.leak.sentence(found.task))
    assert found.leak.sentence(found.task) not in beside_verdict(found, named_in="result.json")
    assert Result.model_validate_json(found.model_dump_json()).leak == found.leak


def test_a_leak_in_two_columns_shows_in_the_references_alone(tmp_path: Path) -> None:
    task = {"target": "ill", "classes": ["0", "1"], "features": ["came", "left"]}
    references: dict[str, Any] = {"references": ["ridge"]}
    study = make_study(task={"kind": "tabular", **task}, rounds=2, evaluation=references)
    hospitals = {}
    for seed, name in enumerate(study.hospitals):
        draw = np.random.default_rng(seed)
        ill, came = np.arange(120) % 2, draw.normal(0, 40, 120)
        left = came + 4 * ill + draw.normal(0, 0.3, 120)
        columns = {"came": came.tolist(), "left": left.tolist(), "ill": ill.tolist()}
        text = text_of(columns, *columns)
        hospitals[name] = Hospital(make_site(tmp_path, text, name=name, file=f"{name}.csv"))
    found = result_of(simulate(study, hospitals), "2026-01-02T03:04:05+00:00", 1.0)
    assert found.leak is not None
    assert found.leak.arm in found.references
    assert found.verdict.text.endswith(found.leak.sentence(found.task))


def test_a_class_may_lack_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With three classes, the draft ended as a fault of this program."""
    (tmp_path / "north.csv").write_text(
        "age,stage,size\n"
        + "".join(
            f"{30 + i % 50},{'abc'[i % 3]},{'' if i % 3 == 2 else 20 * (i % 3) + i % 7}\n"
            for i in range(90)
        )
    )
    assert main(["study", "new", str(tmp_path / "north.csv"), "--target", "stage"]) == 0
    assert says(capsys.readouterr().out, "size: alone it predicts", "AUROC")
