"""A test part of too few patients: what is said depends on how the study sets it aside."""

from pathlib import Path
from typing import Any

import pytest

from erosion_client.preflight.study_checks import check_study_here
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from tests.support.said import says
from tests.support.small_study import make_site, make_study

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


def test_a_table_that_declares_nobody_a_test_patient_is_a_finding(tmp_path: Path) -> None:
    site = make_site(tmp_path, patients(0))
    (found,) = [f for f in check_study_here(site, make_study(evaluation=DECLARED)) if f.remedy]
    assert found.what == "contract"
    assert says(found.text, "30 training", "0 test")
