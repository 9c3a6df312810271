"""The check of what training may use."""

from pathlib import Path

import pytest
import torch

from erosion_client.finding import Severity
from erosion_client.preflight.site_checks import check_compute
from tests.support.said import says
from tests.support.small_study import make_site


def test_a_device_that_is_not_there_is_found_before_a_study_begins(tmp_path: Path) -> None:
    assert check_compute(make_site(tmp_path)).outcome == Severity.OK
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    found = check_compute(make_site(tmp_path, compute={"device": "cuda"}))
    assert found.outcome == Severity.FAILED
    assert says(found.text, "compute.device", '"cuda"')
    assert found.remedy.startswith('write device = "cpu"')
