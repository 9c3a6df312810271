"""The heart disease table: what pooled training sees, and a page from few cells."""

import os
from pathlib import Path

import pytest

from experiments.papers import fed_heart, fed_heart_published


@pytest.mark.data
@pytest.mark.skipif("EROSION_DATA" not in os.environ, reason="needs the data sets: EROSION_DATA")
def test_pooled_training_is_measured_on_the_same_patients() -> None:
    config = dict(fed_heart.plans()[2].config)  # Switzerland, the smallest
    config["arms"] = {"local": {}}
    found = fed_heart.run(config, Path(os.environ["EROSION_DATA"]))
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
