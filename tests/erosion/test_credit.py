"""What the ledger of contributions is no proof of."""

from pathlib import Path

import torch
from torch import Tensor

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_server.run.findings import contributions
from tests.support.small_study import TWO_NUMBERS, make_site, make_study, sixty_patients


class Rider(Hospital):
    """Sends back what the model moved by in the round before, and trains on nobody."""

    last: Tensor | None = None

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        result = super().answer(request)
        assert isinstance(result, TrainResult)
        assert request.parameters is not None
        before, self.last = self.last, request.parameters
        moved = torch.zeros_like(self.last) if before is None else self.last - before
        return TrainResult(result.header, moved, result.attachments)


def test_who_sends_back_the_models_last_move_gets_the_most_credit(tmp_path: Path) -> None:
    """As the threat model admits: b trains, on patients of the user's population."""
    study = make_study(
        hospitals=["a", "b", "c"],
        rounds=30,
        task=TWO_NUMBERS,
        training={"steps": 5, "batch_size": 8, "learning_rate": 0.1},
        arms={"weight_erosion": {"preset": "recommended"}},
    )
    kinds = {"a": Hospital, "b": Hospital, "c": Rider}
    hospitals = {
        name: kind(make_site(tmp_path, sixty_patients(name), name=name, file=f"{name}.csv"))
        for name, kind in kinds.items()
    }
    done = simulate(study, hospitals, clock=timeless)
    ledger = contributions(study.hospitals, done.records["weight_erosion"])
    assert ledger["c"].weight_sum > ledger["b"].weight_sum
