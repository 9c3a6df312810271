"""The survival table of six regions: pairs by hand, a page from few cells, and one small cell."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from erosion.simulation.testbed import study_path
from erosion.sources import source
from erosion.sources.flamby import REGIONS
from erosion_common.study.study import Study, load_study
from erosion_common.tasks.inputs import TabularTask
from experiments.cells import Cell, Values
from experiments.papers import fed_tcga, flamby

ARMS = [fed_tcga.KAPLAN_MEIER, flamby.POOLED, *fed_tcga.ARMS]
PATIENTS = 51  # of each region, as Canada has


def figures_of(c_index: float | None, integrated_brier: float) -> Values:
    return {"harrell_c": c_index, "uno_c": c_index, "integrated_brier": integrated_brier}


def alike(c_index: float | None) -> Values:
    """Every arm's figures, with the numbers of patients and pairs."""
    counts = {"patients": 11, "deaths": 1, "pairs": 0 if c_index is None else 3}
    return {arm: figures_of(c_index, 0.2) for arm in ARMS} | counts


def test_pairs_that_can_be_compared_by_hand() -> None:
    # The one who died on day 3 is outlived by those of day 5 (two), and by who was followed to
    # day 3 and lived; the one who died on day 5 by none: the other of day 5 died, too.
    days = np.array([2.0, 3.0, 3.0, 5.0, 5.0])
    died = np.array([False, True, False, True, True])
    assert fed_tcga.comparable_pairs(days, died) == 3
    assert fed_tcga.comparable_pairs(days, np.zeros(5, dtype=bool)) == 0


def test_the_plan_is_flambys_split_and_a_hundred_others_for_each_region() -> None:
    names = [plan.name for plan in fed_tcga.plans()]
    assert names[:6] == [f"{region}-flamby" for region in REGIONS]
    assert len(names) == 6 * 101
    assert names[-1] == "canada-split100"


def test_of_the_brier_score_less_is_better_and_a_split_without_pairs_is_left_out() -> None:
    cells: dict[str, Cell] = {}
    plans = [plan for plan in fed_tcga.plans() if plan.config["user"] == "canada"][1:9]
    for place, plan in enumerate(plans):
        figures = dict(alike(0.75 if place < 3 else None))
        figures["evidence_erosion"] = figures_of(figures["local"]["harrell_c"], 0.1 + 1e-4 * place)
        cells[plan.name] = Cell(plan, figures, "c0ffee", "command", 1.0)
    text = fed_tcga.draw(cells).text
    assert "for all 18 together" in text  # 1 user x 3 of ours x 3 others x 2 metrics
    assert "canada 8 (C-index 3)." in " ".join(text.split())
    assert "| C-index: better | C-index: worse | integrated Brier: better |" in text
    assert "| canada | 0 | 0 | 3 | 0 |" in text
    assert "Uno's C (3 splits)" in text
    assert "| local | 0.750 ± 0.000 | 0.750 ± 0.000 | 0.200 ± 0.000 |" in text


def write_regions(folder: Path, *, days_in_canada: int = 4000) -> None:
    """Six regions of 51 patients, 11 of whom are tested; of Canada's nobody dies among these."""
    task = load_study(study_path(fed_tcga.STUDY)).task
    assert isinstance(task, TabularTask)
    columns = [feature.name for feature in task.features]
    generator = np.random.default_rng(0)
    table, parts = [["pid", *columns, "E", "T"]], [["pid", "fold", "fold2"]]
    for number, region in enumerate(REGIONS):
        for patient in range(PATIENTS):
            name, part = f"{region}{patient}", "test" if patient < 11 else "train"
            cells = generator.integers(0, 2, len(columns))
            dies = patient % 3 == 0 and (region, part) != ("canada", "test")
            days = generator.integers(1, days_in_canada if region == "canada" else 4000)
            table.append([name, *map(str, cells), str(float(dies)), str(float(days))])
            parts.append([name, part, f"{part}_{number}"])
    (folder / "tcga-brca").mkdir()
    for name, rows in (("brca.csv", table), ("train_test_split.csv", parts)):
        with (folder / "tcga-brca" / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)


@pytest.fixture(autouse=True)
def short_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds, without local references, which no figure of the table is of."""
    study_of = fed_tcga.study_of

    def shorter(config: Values) -> Study:
        values = study_of(config).model_dump(mode="json")
        values["evaluation"] |= {"bootstrap": 100, "references": []}
        return Study.model_validate(values | {"rounds": 2})

    monkeypatch.setattr(fed_tcga, "study_of", shorter)


@pytest.mark.parametrize(("user", "ranks"), [("europe", True), ("canada", False)])
def test_a_test_part_without_a_pair_has_no_c_index_and_everything_else(
    user: str, ranks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ROWS", {})
    write_regions(tmp_path)
    (plan,) = (plan for plan in fed_tcga.plans() if plan.name == f"{user}-flamby")
    figures = fed_tcga.run({**plan.config, "arms": {"local": {}}}, tmp_path)
    assert figures["patients"] == 11
    assert figures["deaths"] == (4 if ranks else 0)
    assert (figures["pairs"] > 0) == ranks
    for arm in ("local", fed_tcga.KAPLAN_MEIER, flamby.POOLED):
        assert (figures[arm]["harrell_c"] is not None) == ranks
        assert 0 < figures[arm]["integrated_brier"] < 1
    assert ("local_c_index" in figures) == ranks


def test_pooled_training_is_measured_beside_the_user_s_own_training_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody in Canada was followed to the second cut point, so no integrated score is of it."""
    monkeypatch.setattr(source, "ROWS", {})
    write_regions(tmp_path, days_in_canada=700)
    config = {**fed_tcga.plans()[5].config, "arms": {"local": {}}}
    figures = fed_tcga.run(config, tmp_path)
    for arm in ("local", fed_tcga.KAPLAN_MEIER, flamby.POOLED):
        assert figures[arm]["integrated_brier"] is None


@pytest.mark.data
@pytest.mark.skipif("EROSION_DATA" not in os.environ, reason="needs the data sets: EROSION_DATA")
def test_the_pairs_are_those_of_flambys_published_figures() -> None:
    """Its C-indices on Canada's test patients are thirds, on the West's hundred-and-eighths."""
    plan = fed_tcga.plans()[5]
    config = {**plan.config, "arms": {"local": {}}}
    found = fed_tcga.run(config, Path(os.environ["EROSION_DATA"]))
    assert (found["patients"], found["deaths"], found["pairs"]) == (11, 1, 3)
    assert found[fed_tcga.KAPLAN_MEIER]["harrell_c"] == 0.5
