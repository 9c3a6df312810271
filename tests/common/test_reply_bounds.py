"""The bound on an answer follows from what was asked, and an honest answer fits."""

import pytest
import torch

from erosion_common.algorithms.base import UPDATES, Brings, RoundStart, TensorTerms
from erosion_common.compression.codec import KINDS, compress
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import describe, read_description
from erosion_common.protocol.messages import TrainReply, TrainResult
from erosion_common.rounds.bounds import most_reply_bytes
from erosion_common.rounds.evaluation import evaluate_request
from erosion_common.rounds.exchange import train_requests
from erosion_common.rounds.round import first_state
from tests.support.federation import small_study
from tests.support.scripted import trained

ROOM = 200  # bytes beside the numbers themselves


def num_bytes(record: object) -> int:
    """As the coordinator counts them before it takes any in."""
    records, _ = describe(record)  # type: ignore[arg-type]
    return read_description(records).num_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 5, 255, 256, 257, 1000])
def test_an_update_fits_however_it_is_compressed_and_nothing_much_larger_does(
    dim: int, kind: str
) -> None:
    header = TrainReply(
        hospital="a", arm="fedavg", round=1, num_samples=1, samples_seen=1, seconds=0.0
    )
    delta, packed = compress(torch.randn(dim), kind)  # type: ignore[arg-type]
    found = num_bytes(wire.encode_train_result(TrainResult(header, delta, {}, packed)))
    assert 0 < found <= most_reply_bytes(UPDATES, dim) <= 4 * dim + ROOM


def test_tensors_of_any_length_are_bound_by_how_many_values_they_may_have() -> None:
    terms = TensorTerms((None, 3), torch.uint8, most_values=300)
    brings = Brings(tensors={"whole": TensorTerms((2, 5)), "open": terms})
    assert 300 + 40 <= most_reply_bytes(brings, dim=10**6) <= 300 + 40 + ROOM
    assert most_reply_bytes(Brings(), dim=10**6) == 0


@pytest.mark.parametrize("arm", ["fedavg", "scaffold", "evidence_erosion"])
def test_a_request_says_what_its_answers_need_attachments_included(arm: str) -> None:
    study = small_study(arms={arm: {}})
    algorithm = study.arms[arm].build(study.build_context)
    state = first_state(algorithm, torch.zeros(10))
    ask = next(
        algorithm.begin(state.algorithm_state, RoundStart(1, "alice", ("alice",), state.params))
    )
    request = train_requests(study, arm, state, ask, ["alice"])["alice"]
    found = num_bytes(wire.encode_train_result(trained("alice", request)))
    assert request.most_reply_bytes is not None
    assert found <= request.most_reply_bytes <= found + ROOM * 3


def test_final_figures_may_bring_everybodys_model_for_every_arm() -> None:
    study = small_study(arms={"ensemble": {}, "fedavg": {}})
    finals = {
        arm: first_state(study.arms[arm].build(study.build_context), torch.zeros(10))
        for arm in study.arms
    }
    request = evaluate_request(study, finals, scaling=None)
    whole = sum(4 * 10 * len(study.hospitals) for _ in study.arms)
    assert request.most_reply_bytes is not None
    assert whole <= request.most_reply_bytes <= whole + 2 * ROOM
