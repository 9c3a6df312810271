"""Folds and trials that a hospital would refuse are refused before the first of them runs."""

from pathlib import Path
from typing import Any

import pytest

from erosion_client.finding import Severity
from erosion_client.preflight.study_checks import check_study_here
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.rounds.selection import fold_studies, trials
from erosion_common.study.study import Study
from tests.support.said import raises
from tests.support.small_study import (
    TWO_NUMBERS,
    make_site,
    make_study,
    sixty_patients,
    twenty_patients,
)


def site_of(folder: Path, **limits: int) -> Site:
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
    site, study = site_of(tmp_path, **limits), make_study(**keys)
    with raises(Refusal, said):
        Hospital(site).describe(study)
    assert Severity.FAILED in [finding.outcome for finding in check_study_here(site, study)]


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
    study, here = make_study(**keys), Hospital(site_of(tmp_path))
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
    here = Hospital(site_of(tmp_path))
    for part in parts_of(make_study(**keys)):
        with raises(Refusal, "leaves", "3 patients"):
            here._prepare(part)


def parts_of(study: Study) -> list[Study]:
    if study.selection is None:
        return fold_studies(study)
    return [part for arm in study.arms for parts in trials(study, arm) for part in parts]


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
    found = {finding.what: finding for finding in check_study_here(site, study) if finding.remedy}
    assert remedy in found["cells"].remedy
    with pytest.raises(Refusal) as refused:
        Hospital(site).describe(study)
    assert remedy in str(refused.value)
