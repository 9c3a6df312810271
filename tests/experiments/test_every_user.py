"""Every hospital as the user in turn."""

from pathlib import Path

import pytest

from erosion.simulation.every_user import for_every_user, side_by_side
from erosion.simulation.simulator import simulate
from erosion_client.training.hospital import Hospital
from erosion_common.errors import StudyError
from tests.support.small_study import make_site, make_study, twenty_patients


def test_every_hospital_gets_a_model_and_a_line_of_its_own(tmp_path: Path) -> None:
    text = {"a": twenty_patients(), "b": twenty_patients(older=5)}
    hospitals = {
        name: Hospital(make_site(tmp_path, text[name], name=name, file=f"{name}.csv"))
        for name in text
    }
    study = make_study(
        arms=["personal_intercept", "local"], rounds=2, evaluation={"bootstrap": 100}
    )
    simulations = for_every_user(study, hospitals)
    assert {user: s.evaluation.hospital for user, s in simulations.items()} == {"a": "a", "b": "b"}
    personal = [s.personal["personal_intercept"] for s in simulations.values()]
    assert not personal[0].equal(personal[1])
    found = side_by_side(study, simulations, seconds=1.0)
    assert found.arms == ["personal_intercept", "local"]
    for user, simulation in simulations.items():
        assert found.users[user].arms == simulation.evaluation.arms
        assert found.users[user].weights[user] == 1.0


def test_a_simulation_is_of_one_user(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="every hospital as its user"):
        simulate(make_study(user="all"), {})
