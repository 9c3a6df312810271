"""A simulation obeys a rule that stops, as a deployment does."""

from pathlib import Path

import torch

from erosion.simulation.simulated_testbed import side_by_side
from erosion.simulation.simulator import simulate
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import sites_of_testbed
from erosion_client.training.hospital import Hospital
from erosion_common.study.study import Study, load_study
from erosion_server.run.overview import EarlyStop

ROUND = 4  # in which it stops


def default_study() -> Study:
    """With fewer rounds, and two of its arms."""
    values = load_study(study_path("breast-cancer")).model_dump()
    eroding = {"algorithm": "weight_erosion", "cone": "stop", "cone_angle": 84}
    changes = {
        "rounds": 6,
        "arms": {"weight_erosion": eroding, "local": values["arms"]["local"]},
        "evaluation": {**values["evaluation"], "bootstrap": 100, "references": []},
        "federation": {**values["federation"], "round_deadline_seconds": 600.0},
    }
    return Study.model_validate({**values, **changes})


def test_the_default_study_with_a_narrow_cone_stops_and_its_other_arm_runs(tmp_path: Path) -> None:
    study = default_study()
    sites = sites_of_testbed(study, tmp_path, tmp_path, None, None)
    hospitals = {name: Hospital(site) for name, site in sites.items()}
    simulated = simulate(study, hospitals)
    stopped, other = simulated.finals["weight_erosion"], simulated.finals["local"]
    last = simulated.records["weight_erosion"][-1]
    assert stopped.stopped
    assert (stopped.round, last.round, last.outcome) == (ROUND, ROUND, "stopped")
    assert "fit into no cone of 84 degrees" in last.note
    assert (other.round, other.stopped) == (study.rounds, False)
    # The model reached is that of the rounds before.
    shorter = Study.model_validate({**study.model_dump(), "rounds": ROUND - 1})
    reached = simulate(shorter, hospitals).finals["weight_erosion"]
    assert torch.equal(stopped.params, reached.params)
    (line,) = side_by_side(study, {study.user: simulated}, seconds=1.0).users.values()
    assert line.stopped == {"weight_erosion": EarlyStop(round=ROUND, reason=last.note)}
    assert set(simulated.evaluation.arms) == {"weight_erosion", "local"}
