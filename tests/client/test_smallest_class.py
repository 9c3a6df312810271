"""Studies are declined beforehand for few patients: of a class, an interval of time, a fold."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from erosion_client.consent.approvals import contracts_at
from erosion_client.finding import Severity
from erosion_client.preflight.study_checks import check_study_here
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.rounds.selection import fold_studies, trials
from erosion_common.study.study import Study
from tests.support.said import raises, says
from tests.support.sealed_study import sealed_study
from tests.support.small_study import (
    TEN_NUMBERS,
    TWO_NUMBERS,
    make_site,
    make_study,
    sixty_patients,
    twenty_patients,
)

DECLINED = (
    "a class, an interval of time in which a follow-up ends, or a category in an interaction has"
    " training patients there, but fewer than limits.min_class = {}"
)
GRADES = {**TWO_NUMBERS, "classes": ["0", "1", "2"]}
PRIVATE: dict[str, Any] = {"arms": ["fedavg"], "privacy": {"epsilon": 8, "learning_rate": 1.0}}


def site_of(
    folder: Path, *grades: int, name: str = "b", more: tuple[str, ...] = (), **limits: int
) -> Site:
    """So many patients of grade 0, 1 and 2, each with one row, and more rows."""
    of = [grade for grade, number in enumerate(grades) for _ in range(number)]
    rows = [f"p{i},{i + 1}.5,{(7 * i) % 61}.25,{grade}" for i, grade in enumerate(of)]
    text = "\n".join(["id,age,dose,ill", *rows, *more, ""])
    return make_site(folder, text, name=name, data={"patient": "id"}, limits=limits)


def followed(folder: Path, *times_and_events: tuple[float, int], least: int) -> Site:
    rows = [f"{i + 1}.5,{(7 * i) % 61}.25,{t},{e}" for i, (t, e) in enumerate(times_and_events)]
    text = "\n".join(["age,dose,days,dead", *rows, ""])
    return make_site(folder, text, name="b", limits={"min_class": least})


def survival(last: float = 30, **keys: Any) -> Study:
    task = {
        "kind": "tabular",
        "outcome": "survival",
        "target": {"time": "days", "event": "dead"},
        "cut_points": [10, 20, last],
        "features": ["age", "dose"],
    }
    return make_study(task=task, **keys)


@pytest.mark.parametrize(
    ("in_last", "least", "declined"),
    [(1, 1, False), (0, 2, False), (1, 2, True), (2, 2, False), (2, 3, True)],
)
def test_small_classes_decline(in_last: int, least: int, declined: bool, tmp_path: Path) -> None:
    site, study = site_of(tmp_path, 12, 12, in_last, min_class=least), make_study(task=GRADES)
    failed = [f.text for f in check_study_here(site, study) if f.outcome is Severity.FAILED]
    if not declined:
        Hospital(site).describe(study)
        assert not failed
        return
    with raises(Refusal, DECLINED.format(least)) as refusal:
        Hospital(site).describe(study)
    assert says(str(refusal.value), "intervals", "[privacy]")
    assert failed == [str(refusal.value)]


def test_patients_are_counted_and_not_their_rows(tmp_path: Path) -> None:
    study, rows = make_study(task=GRADES), ("p90,50,2,2", "p90,51,3,2")
    with raises(Refusal, DECLINED.format(2)):
        Hospital(site_of(tmp_path, 12, 12, 0, more=rows, min_class=2)).describe(study)
    two = (*rows, "p91,52,4,2")
    Hospital(site_of(tmp_path, 12, 12, 0, more=two, min_class=2)).describe(study)


def test_a_later_class_of_a_patient_hides_no_row_of_an_earlier_one(tmp_path: Path) -> None:
    """Of which the update has the row, whatever the patient counts as where it is tested on."""
    study = make_study(task=GRADES)
    Hospital(site_of(tmp_path, 0, 12, 12, min_class=2)).describe(study)
    with raises(Refusal, DECLINED.format(2)):
        Hospital(site_of(tmp_path, 0, 12, 12, more=("p20,50,2,0",), min_class=2)).describe(study)


def test_noise_is_a_way_out_for_a_peer_and_masks_are_not(tmp_path: Path) -> None:
    """The others of a sum may have nobody there; and a user's updates have no noise."""
    site = site_of(tmp_path, 30, 30, 1, min_class=2)
    Hospital(site, bytes(32)).describe(make_study(task=GRADES, **PRIVATE))
    user = site_of(tmp_path, 30, 30, 2, name="a", min_class=2, min_local_steps=1)  # one is tested
    with raises(Refusal, f"{DECLINED.format(2)}", "classes"):
        Hospital(user, bytes(32)).describe(make_study(task=GRADES, **PRIVATE))
    sealed = sealed_study(task={**TEN_NUMBERS, "classes": ["no", "yes", "unknown"]})
    table = sixty_patients("bob").replace(",yes", ",unknown", 1)
    Hospital(make_site(tmp_path, table, name="bob"))._prepare(sealed)
    with raises(Refusal, DECLINED.format(2)):
        Hospital(make_site(tmp_path, name="bob", limits={"min_class": 2}))._prepare(sealed)


def test_a_hospital_that_is_asked_for_no_update_does_not_decline(tmp_path: Path) -> None:
    study = make_study(task=GRADES, arms=["local"])
    Hospital(site_of(tmp_path, 12, 12, 1, min_class=2)).describe(study)
    with raises(Refusal, DECLINED.format(2)):
        Hospital(site_of(tmp_path, 20, 20, 1, name="a", min_class=2)).describe(study)


def test_the_numbers_of_a_regression_are_no_classes(tmp_path: Path) -> None:
    task = {**TWO_NUMBERS, "outcome": "regression", "centre": 1, "spread": 1}
    del task["classes"]
    Hospital(site_of(tmp_path, 12, 12, 1, min_class=10)).describe(make_study(task=task))


@pytest.mark.parametrize(
    ("one", "declined"),
    [
        ((5, 1), False),  # as ten others
        ((15, 1), True),  # alone with the event in the second interval
        ((16, 0), True),  # seen for the second interval, and not for the third
        ((14, 0), False),  # seen for the first one alone, as ten others
        ((45, 1), False),  # seen for all three, as ten others
    ],
)
def test_an_interval_is_too_small(one: tuple[float, int], declined: bool, tmp_path: Path) -> None:
    others = [(5.0, 1), (12.0, 0), (40.0, 0)] * 10
    site = followed(tmp_path, *others, one, least=2)
    if declined:
        with raises(Refusal, DECLINED.format(2)):
            Hospital(site).describe(survival())
    else:
        Hospital(site).describe(survival())


@pytest.mark.parametrize("least", [1, 2])
def test_other_intervals_are_another_question_where_few_in_one_decline(
    least: int, tmp_path: Path
) -> None:
    site = followed(tmp_path, (5.0, 1), least=least)
    asked = {contracts_at(site, survival(last))["days"] for last in (30, 31, 32)}
    assert len(asked) == (1 if least == 1 else 3)


@pytest.mark.parametrize(
    "keys",
    [{"evaluation": {"folds": 3}}, {"selection": {"folds": 3}, "evaluation": {"test_share": 0.3}}],
)
def test_folds_and_trials_count_their_classes(keys: dict[str, Any], tmp_path: Path) -> None:
    study = make_study(task=GRADES, **keys)
    usual = Hospital(site_of(tmp_path, 20, 20, 10, name="a"))
    left = [usual._prepare(part).training_counts.smallest_part for part in parts_of(study)]
    fewest = min(left)
    assert left[0] > fewest  # of the largest fold the most are left here
    Hospital(site_of(tmp_path, 20, 20, 10, name="a", min_class=fewest)).describe(study)
    strict = Hospital(site_of(tmp_path, 20, 20, 10, name="a", min_class=fewest + 1))
    with raises(Refusal, "fold", f"{DECLINED.format(fewest + 1)}"):
        strict.describe(study)
    with raises(Refusal, "'small'", f"{DECLINED.format(fewest + 1)}"):
        strict._prepare(parts_of(study)[left.index(fewest)])


def parts_of(study: Study) -> list[Study]:
    if study.selection is None:
        return fold_studies(study)
    return [part for arm in study.arms for parts in trials(study, arm) for part in parts]


def twenty(folder: Path, **limits: int) -> Site:
    """Twenty patients, six of whom are tested on where there are no folds of all."""
    return make_site(folder, twenty_patients(), limits=limits)


@pytest.mark.parametrize(
    ("keys", "limits", "said"),
    [
        ({"selection": {"folds": 5}}, {}, "fewer than 3 patients…selection.folds than 5"),
        ({"selection": {"folds": 50}}, {}, "fewer selection.folds than 50, or leave them out"),
        (
            {"selection": {"folds": 4}},
            {"min_patients": 12},  # of 14 a fold holds out 4
            "held out (selection.folds = 4):…fewer training patients than limits.min_patien",
        ),
        (
            {"evaluation": {"folds": 4}},
            {"min_patients": 16},
            "held out (evaluation.folds = 4):…fewer training patients than limits.min_patie",
        ),
    ],
)
def test_a_fold_of_too_few_patients_is_refused_before_any_ran(
    keys: dict[str, Any], limits: dict[str, int], said: str, tmp_path: Path
) -> None:
    site, study = twenty(tmp_path, **limits), make_study(**keys)
    with raises(Refusal, said):
        Hospital(site).describe(study)
    with closing(Records.existing(site)) as records:
        found = [finding.outcome for finding in check_study_here(site, study, records)]
    assert Severity.FAILED in found


def test_a_candidate_beyond_the_limits_is_refused_before_any_ran(tmp_path: Path) -> None:
    limits = {"min_local_steps": 3, "min_batch_size": 4}
    here = Hospital(make_site(tmp_path, sixty_patients("a"), limits=limits))

    def describe(*shares: float) -> None:
        candidates = {"fedfomo": [{"validation_share": share} for share in shares]}
        here.describe(
            make_study(
                arms=["fedfomo"],
                task=TWO_NUMBERS,
                training={"epochs": 1, "batch_size": 4},
                selection={"folds": 4, "candidates": candidates},
            )
        )

    describe(0.2, 0.3)
    with raises(Refusal, "selection.folds = 4", "limits.min_local_steps = 3", "fedfomo"):
        describe(0.2, 0.9)


@pytest.mark.parametrize(
    "keys",
    [
        {"selection": {"folds": 4}},
        {"selection": {"folds": 5, "method": "validation"}},  # the first of 14 in 5 has 3
        {"evaluation": {"folds": 6}},
    ],
)
def test_what_is_described_can_be_run_in_every_part(keys: dict[str, Any], tmp_path: Path) -> None:
    study, here = make_study(**keys), Hospital(twenty(tmp_path))
    here.describe(study)
    for part in parts_of(study):
        here._prepare(part)


@pytest.mark.parametrize(
    "keys",
    [
        {"selection": {"folds": 7}},
        {"evaluation": {"folds": 10}},
        {"selection": {"folds": 14}},
        {"selection": {"folds": 15}},
    ],
)
def test_a_fold_of_too_few_without_the_whole(keys: dict[str, Any], tmp_path: Path) -> None:
    """Of 14 and of 20 patients each fold has two, one or none, and no error tells which."""
    here = Hospital(twenty(tmp_path))
    for part in parts_of(make_study(**keys)):
        with raises(Refusal, "leaves", "3 patients"):
            here._prepare(part)


DECLARED = {"split_column": "part"}


def patients(num_tested: int) -> str:
    parts = ["test"] * num_tested + ["train"] * (30 - num_tested)
    rows = [
        f"{30 + 2 * i + 20 * (i % 2)},{'fm'[i // 2 % 2]},{i % 2},{part}"
        for i, part in enumerate(parts)
    ]
    return "\n".join(["age,sex,ill,part", *rows]) + "\n"


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"evaluation": DECLARED}, 'let the column part (evaluation.split_column) say "test" of'),
        ({"evaluation": {"test_share": 0.1}}, "raise evaluation.test_share"),
    ],
)
def test_a_remedy_for_few_helps(tmp_path: Path, changes: dict[str, Any], remedy: str) -> None:
    study = make_study(**changes)
    site = make_site(tmp_path, patients(4), limits={"min_cell": 8})
    with closing(Records.existing(site)) as records:
        found = [f for f in check_study_here(site, study, records) if f.what == "cells"]
    assert any(remedy in f"{finding.text} {finding.remedy}" for finding in found)
    with pytest.raises(Refusal) as refused:
        Hospital(site).describe(study)
    assert remedy in str(refused.value)
    assert "let the study have another user" in str(refused.value)
