"""Noise for privacy under the masks of sealed rounds: the same round as in the clear.

Of one round: a sum whose last bits differ, as those of masks do, has other noise in the next.
"""

from pathlib import Path

import pytest

from erosion_client.training.privacy import PrivateRounds
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest
from erosion_common.rounds.study import StudyOutcome
from tests.support.sealed_study import PEERS, Line, hospitals, run_in, sealed_study

PRIVATE = {"privacy": {"epsilon": 8.0, "learning_rate": 2.0}, "scaling": "user"}


def _key(_self: PrivateRounds, request: TrainRequest | EvaluateRequest, arm: str) -> bytes:
    """Not of the study's digest, in which sealed and plain differ."""
    number = request.round if isinstance(request, TrainRequest) else 0
    return f"{arm} {number}".encode()


def run(folder: Path, arm: str, options: dict[str, object], *, sealed: bool = True) -> StudyOutcome:
    folder.mkdir()
    arms = {arm: options, "local": {}}
    study = sealed_study(sealed=sealed, rounds=1, arms=arms, **PRIVATE)
    sites = hospitals(folder)
    user = sites[study.user]
    user.site = user.site.model_copy(
        update={"limits": user.site.limits.model_copy(update={"min_local_steps": 1})}
    )
    return run_in(folder, Line(study, sites))[0]


@pytest.mark.parametrize(
    ("arm", "options"),
    [
        ("fedavg", {}),
        ("weight_erosion", {"distance_penalty": "auto", "erosion_share": 10}),
        ("evidence_erosion", {}),
    ],
)
def test_a_private_sealed_run_is_the_private_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str, options: dict[str, object]
) -> None:
    monkeypatch.setattr(PrivateRounds, "_key", _key)
    sealed = run(tmp_path / "sealed", arm, options)
    plain = run(tmp_path / "plain", arm, options, sealed=False)
    ours, theirs = sealed.finals[arm], plain.finals[arm]
    assert ours.params.numpy() == pytest.approx(theirs.params.numpy(), abs=1e-6)
    assert ours.weights == pytest.approx(theirs.weights, abs=1e-5)
    assert all(ours.weights[peer] > 0 for peer in PEERS)
