"""A study with differential privacy as a whole: what its coordinator makes of noised updates."""

from pathlib import Path
from typing import Any

import pytest

from erosion.client.privacy.private_rounds import PrivateRounds
from erosion.client.training.hospital import Hospital
from erosion.common.protocol.messages import EvaluateRequest, TrainRequest
from erosion.common.rounds.records import RoundRecord
from tests.support.sealed_study import PEERS, USER, Line, hospitals, run_in, sealed_study


def _key(_self: PrivateRounds, request: TrainRequest | EvaluateRequest, arm: str) -> bytes:
    """Not of the study's digest, in which the studies of a test differ."""
    number = request.round if isinstance(request, TrainRequest) else 0
    return f"{arm} {number}".encode()


def rounds_of(
    folder: Path, known: dict[str, Hospital], arm: str, *, epsilon: float, **changes: Any
) -> list[RoundRecord]:
    """Of that arm, over these hospitals."""
    user = known[USER]
    limits = user.site.limits.model_copy(update={"min_local_steps": 1})
    user.site = user.site.model_copy(update={"limits": limits})
    study = sealed_study(
        arms={arm: {}, "local": {}},
        privacy={"epsilon": epsilon, "learning_rate": 2.0},
        scaling="user",
        **changes,
    )
    outcome, _ = run_in(folder, Line(study, known))
    return list(outcome.records[arm])


@pytest.mark.parametrize("arm", ["weight_erosion", "evidence_erosion"])
def test_what_is_taken_for_noise_does_not_depend_on_a_training_that_nobody_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    monkeypatch.setattr(PrivateRounds, "_key", _key)
    found = []
    for steps, batch_size in ((1, 2), (5, 60)):
        folder = tmp_path / str(steps)
        folder.mkdir()
        training = {"steps": steps, "batch_size": batch_size, "learning_rate": 0.5}
        records = rounds_of(
            folder, hospitals(folder), arm, epsilon=3.0, sealed=False, training=training
        )
        found.append(
            [
                (name, entry.samples_seen, entry.distance, entry.weight_after)
                for record in records
                for name, entry in record.hospitals.items()
                if name != USER
            ]
        )
    assert found[0] == found[1]
    assert {seen for _, seen, *_ in found[0]} == {60}
