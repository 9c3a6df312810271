"""Weight Erosion in sealed rounds: after all its rounds the same as in plain ones."""

import dataclasses
import json
from pathlib import Path

import pytest

from erosion.simulation.testbed import study_path
from erosion_common.study.study import Study, load_study
from experiments.benchmarks import sealed_exactness

RESULTS = Path(sealed_exactness.__file__).parent / "results"


def quickly_evaluated(name: str) -> Study:
    """A shipped study, without references to train: each test looks only at its arms."""
    study = load_study(study_path(name))
    quick = study.evaluation.model_copy(update={"references": (), "bootstrap": 100})
    return study.model_copy(update={"evaluation": quick})


def test_a_sealed_study_is_the_plain_one_after_twelve_rounds() -> None:
    """All four others keep weight until the end."""
    study = quickly_evaluated("sealed")
    options = {"preset": "recommended"}
    found = sealed_exactness.compare(study, "weight_erosion", options, rounds=12)
    assert (found.rounds, found.parted) == (12, None)
    assert found.parameter < 1e-6
    assert found.weight < 1e-6  # of weights up to 5
    assert found.distance < 1e-5
    for plain, sealed in found.figures.values():
        assert sealed == pytest.approx(plain, abs=1e-6)


def test_where_sums_cannot_be_sealed_the_round_is_told() -> None:
    study = quickly_evaluated("breast-cancer")
    options = {"distance_penalty": 0.2}  # nobody has weight left after a few rounds
    found = sealed_exactness.compare(study, "weight_erosion", options, rounds=4)
    assert found.parted is not None
    assert found.parameter > 1e-4


@pytest.mark.parametrize("name", ["sealed_exactness", "sealed_exactness_mnist"])
def test_the_figures_that_are_quoted_can_be_repeated(name: str) -> None:
    kept = json.loads((RESULTS / f"{name}.json").read_text())
    assert kept["command"].startswith("python -m experiments.benchmarks.sealed_exactness")
    assert kept["commit"]
    fields = {field.name for field in dataclasses.fields(sealed_exactness.Apart)}
    assert set(kept["details"]) == fields | {"seed"}
