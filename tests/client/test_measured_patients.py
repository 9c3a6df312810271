"""Figures of a user's test patients in two studies do not differ by those of a few patients."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erosion_client.dataset.load import KeptPatients
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.split import split_patients
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import TrainRequest
from erosion_common.rounds.selection import fold_studies, trials
from erosion_common.study.study import Study
from tests.support.said import raises
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
def test_a_column_does_not_single_out_one(tmp_path: Path, evaluation: dict[str, object]) -> None:
    """With a weight for age alone, two mean losses that differ in one patient are its age."""
    here = hospital(tmp_path, table(lacking=3))
    here._prepare(study_of("age", name="first", evaluation=evaluation)).begin()
    with raises(Refusal, "another", "study's"):
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
        with raises(Refusal, "nearly", "patients"):
            later._prepare(fold)


def test_trials_before_and_after_one_patient_came_are_not_both_run(tmp_path: Path) -> None:
    study = study_of(
        "age", selection={"folds": 3, "candidates": {"fedavg": [{"weighting": "uniform"}]}}
    )
    (folds,) = trials(study, "fedavg")
    hospital(tmp_path, table(90))._prepare(folds[0]).begin()
    later = hospital(tmp_path, table(91))
    for fold in folds:
        with raises(Refusal, "nearly", "patients"):
            later._prepare(fold)


def selecting(test_share: float, folds: int = 4, **keys: object) -> Study:
    return study_of(
        "age", evaluation={"test_share": test_share}, selection={"folds": folds}, **keys
    )


def trials_of(study: Study) -> list[Study]:
    return [trial for trials_ in trials(study, "fedavg") for trial in trials_]


def settled(study: Study) -> Study:
    """The study as it is run in the end."""
    return study.model_copy(update={"selection": None})


def test_no_trial_on_nearly_the_patients_of_another(tmp_path: Path) -> None:
    """A slightly larger test part moves every fold by one place: fold 0 is the other's fold 1."""
    here = hospital(tmp_path, table(120))
    one, other = selecting(0.30), selecting(0.31)
    lots = [
        split_patients(asked, "a", here._patients.of(asked).rows, here._patients.of(asked).targets)
        for asked in (trials_of(one)[1], trials_of(other)[0])
    ]
    assert len(np.setxor1d(lots[0].training, lots[1].training)) == 1
    here._prepare(trials_of(one)[1]).begin()
    for asked in (other, *trials_of(other)):
        with raises(Refusal, "study", "another"):
            here._prepare(asked)
    for asked in trials_of(selecting(0.31, seed=1)):
        here._prepare(asked).begin()


def test_the_trials_of_one_study_are_run_again_and_so_are_other_studies(tmp_path: Path) -> None:
    study = selecting(0.3)
    for run in ("first", "resumed", "another"):
        here = hospital(tmp_path, table(160))  # as a program that was started again
        for asked in (study, *trials_of(study), settled(study)):
            before = here._prepare(asked, run)
            if asked.selection is None:
                before.begin()
    for further in (selecting(0.3, name="second"), selecting(0.2, seed=3), selecting(0.3, folds=2)):
        for asked in (*trials_of(further), settled(further)):
            here._prepare(asked).begin()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.floats(0.15, 0.5), st.integers(2, 4)), min_size=2, max_size=3),
    st.integers(0, 2),
)
def test_trials_of_any_shares_and_folds_train_on_sets_that_are_the_same_or_differ_in_a_cell(
    tmp_path: Path, studies: list[tuple[float, int]], seed: int
) -> None:
    """Also those that the studies train on in the end, which trials without each fold add up to."""
    site = make_site(tmp_path, table(120), limits={"min_cell": 10})
    cells, kept = DisclosureControl(site, b"a site's own"), KeptPatients(site)
    trained: set[frozenset[int]] = set()
    for test_share, folds in studies:
        for asked in trials_of(selecting(test_share, folds, seed=seed)):
            try:
                dataset = LocalDataset(site, asked, cells, kept)
            except Refusal:
                continue
            dataset.begin()
            trained.add(frozenset(dataset.split.training.tolist()))
            trained.add(frozenset([*dataset.split.training, *dataset.split.test]))
    for one, other in combinations(trained, 2):
        assert max(len(one - other), len(other - one)) >= 10


def test_the_folds_are_without_a_patient_who_came_since_the_hospital_helped_another(
    tmp_path: Path,
) -> None:
    """Updates without each fold add up to one of all patients."""
    helped = study_of("age", user="b", name="helped")
    study = study_of("age", evaluation={"folds": 2})
    hospital(tmp_path, table(60))._prepare(helped).begin()
    later = hospital(tmp_path, table(61))
    trained = []
    for asked in (*fold_studies(study), study):
        dataset = later._prepare(asked)
        dataset.begin()
        trained.append(dataset.split.training.tolist())
    assert sorted(trained[0] + trained[1]) == trained[2] == list(range(60))


def test_after_the_folds_no_other_study_is_trained_on_a_patient_who_came(tmp_path: Path) -> None:
    hospital(tmp_path, table(60))._prepare(
        fold_studies(study_of("age", evaluation={"folds": 2}))[0]
    ).begin()
    helped = hospital(tmp_path, table(61))._prepare(study_of("age", user="b", name="helped"))
    assert helped.split.training.tolist() == list(range(60))


def request(study: Study, run: str) -> TrainRequest:
    return TrainRequest(study, "fedavg", 1, torch.zeros(4), None, run)


@pytest.mark.parametrize("before", ["described", "not begun", "declined"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_unused_patients_may_be_corrected(tmp_path: Path, name: str, before: str) -> None:
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
        with raises(Refusal, "min_local_steps"):
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
        with raises(Refusal, "nearly", "patients"):
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
    noted = here.disclosed()
    with raises(Refusal, "start", "new"):
        here._prepare(other, "first").begin()
    assert here.disclosed() == noted
    assert here._prepare(other, "second").num_training == 50
    here._prepare(other, "second").begin()


def test_the_same_values_are_measured_again_whatever_else_the_table_says() -> None:
    cells = DisclosureControl(make_site(Path(), limits={"min_cell": 10}))
    values, targets, groups = np.arange(40.0)[:, None], np.arange(40) % 2, np.arange(40)
    whole = np.arange(40, dtype=np.uint64) + np.uint64(10**15)
    cells.check_test_part("a", values, targets, groups, whole)
    corrected = np.where(np.arange(40) == 3, np.uint64(7), whole)
    cells.check_test_part("a", values, targets, groups, corrected)
    with raises(Refusal, "nearly", "patients"):
        cells.check_test_part("a", values * 2, targets, groups, corrected)
    cells.check_test_part("a", values * 2, targets, groups, whole)
