"""Figures of a user's test patients in two studies do not differ by those of a few patients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from erosion.client.cells.cells import Cells
from erosion.client.site_file import Site
from erosion.client.training.hospital import Hospital
from erosion.common.errors import Refusal
from erosion.common.protocol.messages import TrainRequest
from erosion.common.rounds.cross_fitting import fold_studies
from erosion.common.rounds.model_selection import trials
from erosion.common.study.study import Study
from tests.support.small_study import make_site, make_study

ARMS = ["fedavg", "local"]


def table(num: int = 60, *, lacking: int | None = None) -> str:
    """One patient lacks the dose, where that is said; every third is a test patient."""
    draws = np.random.default_rng(1).uniform(20, 80, num).tolist()
    lines = [
        f"{age:.3f},{'' if number == lacking else number % 7},{['train', 'test'][number % 3 == 0]}"
        f",{int(age > 50)}"
        for number, age in enumerate(draws)
    ]
    return "\n".join(["age,dose,part,ill", *lines]) + "\n"


def study_of(*columns: str, **keys: object) -> Study:
    task = {
        "kind": "tabular",
        "target": "ill",
        "classes": ["0", "1"],
        "features": list(columns),
        "missing": "drop",
    }
    return make_study(task=task, arms=ARMS, **keys)


def hospital(folder: Path, text: str) -> Hospital:
    site = make_site(
        folder, text, limits={"min_cell": 10}, compute={"state": str(folder / "state")}
    )
    return Hospital(site, secret=b"a site's own")


@pytest.mark.parametrize(
    "evaluation", [{"split_column": "part"}, {"folds": 2}], ids=["declared test part", "folds"]
)
def test_one_who_lacks_another_studys_column_is_not_told_apart(
    tmp_path: Path, evaluation: dict[str, object]
) -> None:
    """With a weight for age alone, two mean losses that differ in one patient are its age."""
    here = hospital(tmp_path, table(lacking=3))
    here._prepare(study_of("age", name="first", evaluation=evaluation)).begin()
    with pytest.raises(Refusal, match="another study's columns leave them out"):
        here.describe(study_of("age", "dose", name="second", evaluation=evaluation))


def test_a_study_of_other_columns_is_measured_on_the_same_patients(tmp_path: Path) -> None:
    here = hospital(tmp_path, table())
    evaluation = {"split_column": "part"}
    for columns in (("age",), ("age", "dose"), ("age",)):
        here._prepare(study_of(*columns, evaluation=evaluation)).begin()


def test_folds_before_and_after_one_patient_came_are_not_both_measured(tmp_path: Path) -> None:
    study = study_of("age", evaluation={"folds": 2, "repeats": 2})
    here = hospital(tmp_path, table(60))
    for fold in fold_studies(study):
        here._prepare(fold).begin()
    here._prepare(study).begin()
    later = hospital(tmp_path, table(61))
    for fold in fold_studies(study):
        with pytest.raises(Refusal, match="nearly these test patients"):
            later._prepare(fold)


def test_trials_before_and_after_one_patient_came_are_not_both_run(tmp_path: Path) -> None:
    study = study_of(
        "age", selection={"folds": 3, "candidates": {"fedavg": [{"weighting": "uniform"}]}}
    )
    (folds,) = trials(study, "fedavg")
    hospital(tmp_path, table(90))._prepare(folds[0]).begin()
    later = hospital(tmp_path, table(91))
    for fold in folds:
        with pytest.raises(Refusal, match="nearly these test patients"):
            later._prepare(fold)


def request(study: Study, run: str) -> TrainRequest:
    return TrainRequest(study, "fedavg", 1, torch.zeros(4), None, run)


@pytest.mark.parametrize("before", ["described", "not begun", "declined"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_who_was_only_looked_at_may_be_corrected_before_the_training(
    tmp_path: Path, name: str, before: str
) -> None:
    """Nobody was trained or measured on yet, so no two updates differ by those corrected."""
    study = study_of("age", evaluation={"test_share": 0.5})
    site = make_site(tmp_path, table(), name=name, file="t.csv", limits={"min_cell": 10})
    here = Hospital(site, secret=b"a site's own")
    if before == "described":
        here.summarise(study)
    elif before == "not begun":
        here.describe(study, "first")
    else:
        least = {**site.limits.model_dump(), "min_local_steps": 6}
        here.site = Site.model_validate({**site.model_dump(), "limits": least})
        with pytest.raises(Refusal, match="min_local_steps"):
            here.train(request(study, "first"))
        here.site = site
    lines = table().splitlines()
    lines[1:5] = [line.replace(".", ".9", 1) for line in lines[1:5]]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    here.describe(study, "second")
    here.train(request(study, "second"))
    assert here._prepare(study, "second").num_training == (30 if name == "a" else 60)
    here._prepare(study, "third")
    (tmp_path / "t.csv").write_text(table())
    if name == "a":
        with pytest.raises(Refusal, match="nearly these test patients"):
            here.describe(study, "fourth")
    else:
        here.describe(study, "fourth")
        assert here._prepare(study, "fourth").num_training == 50


def test_a_study_that_another_one_overtook_is_not_begun(tmp_path: Path) -> None:
    """Of whom it would be trained was looked at before the other one was."""
    evaluation = {"test_share": 0.5}
    here = Hospital(
        make_site(tmp_path, table(lacking=3), name="b", file="b.csv", limits={"min_cell": 10})
    )
    one = study_of("age", name="one", evaluation=evaluation)
    other = study_of("age", "dose", name="other", evaluation=evaluation)
    here.describe(one, "first")
    here.describe(other, "first")
    here._prepare(one, "first").begin()
    noted = here.told()
    with pytest.raises(Refusal, match="start a new run"):
        here._prepare(other, "first").begin()
    assert here.told() == noted
    assert here._prepare(other, "second").num_training == 50
    here._prepare(other, "second").begin()


def test_the_same_values_are_measured_again_whatever_else_the_table_says() -> None:
    cells = Cells(make_site(Path(), limits={"min_cell": 10}))
    values, targets, groups = np.arange(40.0)[:, None], np.arange(40) % 2, np.arange(40)
    whole = np.arange(40, dtype=np.uint64) + np.uint64(10**15)
    cells.check_test_part("a", values, targets, groups, whole)
    corrected = np.where(np.arange(40) == 3, np.uint64(7), whole)
    cells.check_test_part("a", values, targets, groups, corrected)
    with pytest.raises(Refusal, match="nearly these test patients"):
        cells.check_test_part("a", values * 2, targets, groups, corrected)
    cells.check_test_part("a", values * 2, targets, groups, whole)
