"""A round that is undone leaves nothing behind, neither at the coordinator nor at the hospitals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.study.study import Study
from tests.support.small_study import make_site, make_study

RUINED = 4  # the round in which b sends far too much


class Remembering(Hospital):
    """What it keeps as each round begins."""

    kept: dict[int, dict[str, Tensor]]

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        self.kept[request.round] = dict(self.keeps(request))
        return super().answer(request)


class Ruinous(Hospital):
    """Its update of one round is 19 times as long as the parameters, which screening lets pass."""

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        result = super().answer(request)
        if request.round != RUINED or not isinstance(result, TrainResult):
            return result
        assert request.parameters is not None
        drawn = torch.randn(result.delta.shape, generator=torch.Generator().manual_seed(1))
        return replace(result, sent=drawn / drawn.norm() * (19 * request.parameters.norm()))


def table(seed: int) -> str:
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(80, 4))
    y = 50 + 10 * (x[:, 0] + x[:, 1] ** 2 / 2) + 3 * draws.normal(size=80)
    lines = [",".join(f"{value:.6f}" for value in row) for row in np.column_stack([x, y])]
    return "\n".join(["x0,x1,x2,x3,y", *lines]) + "\n"


def study_of(arm: dict[str, Any], learning_rate: float) -> Study:
    return make_study(
        hospitals=["a", "b", "c"],
        rounds=8,
        task={
            "kind": "tabular",
            "outcome": "regression",
            "target": "y",
            "centre": 50,
            "spread": 10,
            "features": [f"x{number}" for number in range(4)],
        },
        model={"name": "mlp", "hidden": [32, 32]},
        training={"steps": 20, "batch_size": 16, "learning_rate": learning_rate},
        arms={"arm": arm},
        evaluation={"bootstrap": 100},
    )


@pytest.mark.parametrize(
    ("arm", "learning_rate"),
    [
        ({"algorithm": "personal_intercept"}, 0.05),
        ({"algorithm": "fedavg", "own_parameters": ["output_layer"]}, 0.1),
        ({"algorithm": "ditto"}, 0.05),
        ({"algorithm": "apfl"}, 0.1),
        ({"algorithm": "scaffold"}, 0.1),
    ],
)
def test_hospitals_go_back_to_what_they_kept_before(
    tmp_path: Path, arm: dict[str, Any], learning_rate: float
) -> None:
    kinds = {"a": Remembering, "b": Ruinous, "c": Remembering}
    sites = {
        name: kind(make_site(tmp_path, table(seed), name=name, file=f"{name}.csv"))
        for seed, (name, kind) in enumerate(kinds.items())
    }
    user, peer = sites["a"], sites["c"]
    assert isinstance(user, Remembering)
    assert isinstance(peer, Remembering)
    user.kept, peer.kept = {}, {}
    outcome = simulate(study_of(arm, learning_rate), sites, clock=timeless)
    records = outcome.records["arm"]
    assert [record.undoes for record in records if record.undoes] == [RUINED]
    shown = next(record.round for record in records if record.undoes)
    assert [r.outcome for r in records] == [
        "skipped" if r.round == shown else "done" for r in records
    ]
    for site in (user, peer):
        before, after = site.kept[RUINED + 1], site.kept[shown + 1]
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert user.kept[shown + 1], "the user keeps something in all of these"
