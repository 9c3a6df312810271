"""The notebooks of `docs/` run from top to bottom, on fewer rounds."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

import erosion
from erosion_common.program.command_line import main
from erosion_common.rounds.records import HospitalRecord
from tests.support.synthetic_run import make_run

pytestmark = pytest.mark.usefixtures("few_candidates")
DOCS = Path(__file__).resolve().parents[2] / "docs"


def run_all(name: str, folder: Path, patch: pytest.MonkeyPatch, **constants: str) -> dict[str, Any]:
    """The names that a notebook ends with."""
    patch.chdir(folder)
    mpl.use("Agg")
    namespace: dict[str, Any] = {}
    notebook = json.loads((DOCS / name).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []  # they would be of another version
        text = "".join(cell["source"])
        for constant, value in constants.items():
            text = text.replace(constant, value)
        commands = re.findall(r"(?m)^!erosion (.*)$", text)
        for command in commands:
            assert main(shlex.split(command)) == 0
        if not commands:
            exec(compile(text, name, "exec"), namespace)
    plt.close("all")
    return namespace


def test_tables_become_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_all("own-tables.ipynb", tmp_path, monkeypatch, **{"ROUNDS = 20": "ROUNDS = 1"})
    run = found["run"]
    assert all(record.outcome == "done" for record in run.records)
    for arm in run.result.arms:
        assert found["aurocs"][arm] == pytest.approx(run.arms.loc[arm, "auroc"])
    assert (tmp_path / "figures.svg").stat().st_size > 10_000


def test_methods_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {"ROUNDS, SEEDS = 20, range(3)": "ROUNDS, SEEDS = 1, range(2)"}
    found = run_all("comparing-methods.ipynb", tmp_path, monkeypatch, **fewer)
    assert list(found["losses"]) == [0, 1]
    assert (found["differences"].loc["local"] == 0).all()
    assert (tmp_path / "methods.svg").stat().st_size > 10_000


def test_plots_draw_the_runs_figures_on_the_given_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("Agg")
    base = erosion.load_study("breast-cancer").model_dump()
    run = erosion.simulate(erosion.load_study({**base, "rounds": 2}), progress=False)
    _, axes = plt.subplots()
    assert run.plot_rounds(ax=axes) is axes
    lines: dict[Any, Any] = {line.get_label(): line for line in axes.lines}
    assert set(lines) == {*run.result.arms, *run.result.references}
    assert lines["fedavg"].get_ydata()[-1] == run.arms.loc["fedavg", "log_loss"]
    of_home: Any = {line.get_label(): line for line in run.plot_weights().lines}["home"]
    assert set(of_home.get_ydata()) == {1.0}
    points: Any = run.plot_arms("auroc").lines[0]
    assert list(points.get_xdata()) == list(run.arms["auroc"])
    curve = run.plot_roc("malignant").lines[0]
    auroc = float(run.arms.loc["weight_erosion", "auroc"])
    assert f"{auroc:.2f}" in str(curve.get_label())
    observed: Any = run.plot_calibration("malignant", bins=4).lines[1]
    assert len(observed.get_ydata()) == 4
    wrongs: list[tuple[Any, dict[str, Any]]] = [
        (run.plot_rounds, {"metric": "speed"}),
        (run.plot_weights, {"arm": "nobody"}),
        (run.plot_weights, {"arm": ["local"]}),
        (run.plot_roc, {"event": "ill"}),
        (run.plot_roc, {"ax": plt}),
        *((run.plot_calibration, {"bins": wrong}) for wrong in (0, 2.5, True)),
    ]
    for plot, wrong in wrongs:
        with pytest.raises(erosion.ErosionError):
            plot(**wrong)
    assert "<table" in run._repr_html_()
    assert not any(note in run.verdict for note in run.notes)  # a suspected leak is said once
    plt.close("all")


def test_a_class_that_is_a_number_is_drawn_by_it(tmp_path: Path) -> None:
    mpl.use("Agg")
    tables = {name: tmp_path / f"{name}.csv" for name in ("home", "alike")}
    for shift, path in enumerate(tables.values()):
        path.write_text("x,ill\n" + "".join(f"{i * 7 % 40 + shift},{i % 2}\n" for i in range(40)))
    task = {"kind": "tabular", "target": "ill", "classes": ["0", "1"], "features": ["x"]}
    study = {"name": "numbers", "user": "home", "hospitals": [*tables], "rounds": 1, "task": task}
    training = {"steps": 2, "batch_size": 8}
    options = {"model": {"name": "logistic"}, "training": training}
    study |= {**options, "evaluation": {"references": []}, "arms": {"local": {}}}
    run = erosion.simulate(study, tables, progress=False)
    events: list[Any] = [1, "1"]
    number, text = (np.array(run.plot_roc(event).lines[0].get_data()) for event in events)
    assert (number == text).all()
    plt.close("all")


def test_weights_are_drawn_where_the_rule_left_the_users_out(tmp_path: Path) -> None:
    mpl.use("Agg")
    run = erosion.read_run(make_run(rounds=2).write(tmp_path / "run"))
    records = tuple(
        replace(
            record,
            hospitals={**record.hospitals, "home": HospitalRecord("accepted", weight_after=0.0)},
        )
        for record in run.records
    )
    axes = replace(run, records=records).plot_weights()
    assert ("home" in run.plot_weights().get_ylabel(), "home" in axes.get_ylabel()) == (True, False)
    lines: Any = axes.lines
    drawn = {line.get_label(): [*line.get_ydata()] for line in lines}
    of_alike = [r.hospitals["alike"].weight_after for r in records if r.arm == "weight_erosion"]
    assert (drawn["home"], drawn["alike"]) == ([0.0, 0.0], of_alike)
    plt.close("all")
