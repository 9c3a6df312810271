"""The heart disease table: what pooled training sees, and a page from few cells."""

import os
from pathlib import Path

import pytest

from erosion.simulation.testbed import study_path
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, Values
from experiments.papers import fed_heart, fed_heart_published
from experiments.papers.flamby import ARMS


def test_every_cell_is_a_valid_study_with_all_arms() -> None:
    raw = load_study(study_path("heart-disease")).model_dump(mode="json")
    for plan in fed_heart.plans()[:4]:
        changed = raw | {"user": plan.config["user"], "arms": plan.config["arms"]}
        assert list(Study.model_validate(changed).arms) == list(ARMS)


def test_the_page_sets_ours_beside_the_published_figures() -> None:
    cells: dict[str, Cell] = {}
    arms = ["majority", "pooled", *ARMS]
    users = load_study(study_path("heart-disease")).hospitals
    for plan in fed_heart.plans():
        figures: Values = {
            arm: {"accuracy": 0.7 + 0.001 * place, "auroc": 0.8, "brier": 0.1}
            for place, arm in enumerate(arms)
        }
        again: Values = {arm: dict.fromkeys(users, 0.6) for arm in fed_heart_published.ARMS}
        found = again if "kind" in plan.config else {**figures, "patients": 16}
        cells[plan.name] = Cell(plan, found, "c0ffee", "command", 1.0)
    text = fed_heart.draw(cells).text
    assert "| its training repeated, FedAvg | 60.0 | 60.0 | 60.0 | 60.0 | 60.0 |" in text
    assert "random starts of its 5 seeds" in text
    assert "| FLamby, pooled | 78.3 | 76.4 | 75.0 | 64.4 | 73.5 |" in text
    assert "| majority | 70.0 | 70.0 | 70.0 | 70.0 | 70.0 |" in text
    assert "| local | 0.702 ± 0.000 | 0.800 ± 0.000 | 0.100 ± 0.000 |" in text
    assert "for all 72 together" in text  # 4 users x 3 of ours x 3 others x 2 metrics


def test_a_page_of_the_first_cells_alone_has_no_empty_table() -> None:
    plan = fed_heart.plans()[0]
    figures = {
        arm: {"accuracy": 0.7, "auroc": None, "brier": 0.1} for arm in ["majority", "pooled", *ARMS]
    }
    cell = Cell(plan, {**figures, "patients": 16}, "c0ffee", "command", 1.0)
    text = fed_heart.draw({plan.name: cell}).text
    assert "| majority | 70.0 |  |  |  |  |" in text
    assert "for all" not in text
    assert "repeated" not in text


@pytest.mark.data
@pytest.mark.skipif("EROSION_DATA" not in os.environ, reason="needs the data sets: EROSION_DATA")
def test_pooled_training_is_measured_on_the_same_patients() -> None:
    config = dict(fed_heart.plans()[2].config)  # Switzerland, the smallest
    config["arms"] = {"local": {}}
    found = fed_heart.run(config, Path(os.environ["EROSION_DATA"]), lambda: None)
    assert found["patients"] == 16
    assert found["majority"]["accuracy"] == 0.9375
    assert found["pooled"]["accuracy"] is not None


@pytest.mark.data
@pytest.mark.skipif("EROSION_DATA" not in os.environ, reason="needs the data sets: EROSION_DATA")
def test_flambys_training_has_flambys_patients_and_columns() -> None:
    parts = fed_heart_published._parts(Path(os.environ["EROSION_DATA"]))
    sizes = {hospital: (len(train[1]), len(test[1])) for hospital, (train, test) in parts.items()}
    assert sizes == {
        "cleveland": (199, 104),
        "hungary": (172, 89),
        "switzerland": (30, 16),
        "va": (85, 45),
    }
    for train, _ in parts.values():
        assert train[0].shape[1] == 13
        assert float(train[0].mean(dim=0).abs().max()) < 1e-6
