"""Presets of Weight Erosion: what they stand for, and that a good hospital keeps its weight."""

import tempfile
from pathlib import Path

from erosion.flower.rules import rule_of
from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.weight_erosion import PRESETS, WeightErosion
from erosion_common.errors import StudyError
from erosion_common.rounds.selection import SelectedSettings, chosen
from erosion_common.settings.base import validate
from erosion_common.study.study import Study, load_study, study_from_json
from experiments.papers.rules import EXPLORED, SLOW
from tests.support.refusals import refused
from tests.support.small_study import make_study


def test_the_papers_preset_is_what_the_keys_stand_at() -> None:
    assert WeightErosion(preset="paper").model_dump() == WeightErosion().model_dump()


def test_the_recommended_preset_is_the_rule_that_was_measured_with_a_longer_share() -> None:
    measured = WeightErosion.model_validate({**EXPLORED[SLOW], "erosion_share": 3.0})
    assert WeightErosion(preset="recommended") == measured


def test_a_key_beside_the_preset_goes_before_it() -> None:
    arm = WeightErosion(preset="recommended", erosion_share=0.5, own_parameters=())
    assert (arm.erosion_share, arm.own_parameters) == (0.5, ())
    assert (arm.distance_penalty, arm.weighting) == ("auto", "samples")


def test_what_travels_are_the_values_and_not_the_preset() -> None:
    study = make_study(arms={"weight_erosion": {"preset": "recommended"}, "local": {}})
    text = study.canonical_json()
    assert "preset" not in text
    received = study_from_json(text)
    assert received == study
    arm = received.arms["weight_erosion"]
    assert isinstance(arm, WeightErosion)
    assert arm.distance_penalty == PRESETS["recommended"]["distance_penalty"]


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with refused(StudyError, "preset = 'fast'", "'paper'", "'recommended'"):
        validate(WeightErosion, {"preset": "fast"}, "The arm", StudyError)
    with refused(StudyError, "preset"):
        validate(WeightErosion, {"preset": ["paper"]}, "The arm", StudyError)


def test_a_candidate_may_be_a_preset() -> None:
    """It takes the place of the arm's own values, which are there although nobody wrote them."""
    study = make_study(
        arms={"weight_erosion": {"preset": "recommended"}, "local": {}},
        selection={"candidates": {"weight_erosion": [{"preset": "paper"}, {}]}},
    )
    choice = SelectedSettings({"preset": "paper"}, 3, 0.1)
    nothing = SelectedSettings({}, 3, 0.1)
    after = chosen(study, {"weight_erosion": choice, "local": nothing})
    assert after.arms["weight_erosion"].model_dump() == WeightErosion().model_dump()
    as_it_is = chosen(study, {"weight_erosion": nothing, "local": nothing})
    assert as_it_is.arms == study.arms


def test_what_stays_at_a_site_is_its_own_affair_in_stock_flower() -> None:
    rule = rule_of("weight_erosion", {"preset": "recommended"})
    assert isinstance(rule, WeightErosion)
    assert (rule.own_parameters, rule.distance_penalty) == ((), "auto")


def test_every_preset_says_all_that_another_may_have_said() -> None:
    assert len({frozenset(values) for values in PRESETS.values()}) == 1


def test_a_hospital_with_the_users_patients_keeps_its_weight_and_a_miscoded_one_loses_it() -> None:
    study = load_study(study_path("breast-cancer"))
    values = study.model_dump(mode="json")
    values["arms"] = {
        "recommended": {"algorithm": "weight_erosion", "preset": "recommended"},
        "paper": {"algorithm": "weight_erosion", "preset": "paper"},
    }
    values["evaluation"]["compare"] = None
    study = Study.model_validate(values)
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), None)
        hospitals = {name: Hospital(site_of(name, file)) for name, file in files.items()}
        found = simulate(study, hospitals, clock=timeless)
    recommended, paper = found.finals["recommended"].weights, found.finals["paper"].weights
    assert recommended["alike"] > 0.3
    assert recommended["miscoded"] == 0
    assert set(paper.values()) == {1.0, 0.0}  # the user's own, and everybody else's
