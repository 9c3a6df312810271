"""GEMS over real gRPC: several exchanges in a round, and the numbers of the simulation."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import Federation, small_study

LOGISTIC = {"name": "logistic"}
NETWORK = {"name": "mlp", "hidden": [9, 6]}


@pytest.mark.parametrize(
    ("model", "arms", "steps"),
    [
        pytest.param(
            LOGISTIC,
            {
                "gems": {},
                "personal_gems": {},
                "in_a_ball": {"algorithm": "personal_gems", "balls": "user"},
            },
            ["train", "check"],
            id="logistic",
        ),
        pytest.param(
            NETWORK,
            {"network_gems": {"clusters": 4, "public_hospital": "carol"}},
            ["neurons", "neurons", "output", "tune", "check"],
            id="network",
        ),
    ],
)
def test_a_deployment_and_a_simulation_agree(
    tmp_path: Path, model: Any, arms: Any, steps: list[str]
) -> None:
    study = small_study(model=model, arms=arms, rounds=2)
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        simulated = federation.compare_with_simulation()
        records = list(federation.observer.records)
        report = federation.run_folder.report.read_text()
    for arm, expected in simulated.records.items():
        found = [record for record in records if record.arm == arm]
        assert [(r.outcome, r.note) for r in found] == [(r.outcome, r.note) for r in expected]
        assert [r.outcome for r in found] == ["done", "stopped"]
    for arm, ended in result.arms.items():  # an arm that its rule stops has a result
        assert (ended.rounds, ended.stopped) == (2, simulated.records[arm][-1].note)
        assert f"{arm} stopped in round 2: " in report
    first = records[0]
    assert [step.step for step in first.steps] == steps
    assert "by their own check" in first.note
    assert set(result.arms) == set(arms)
