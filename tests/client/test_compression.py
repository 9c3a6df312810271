"""A hospital's compressed updates, and what it keeps of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_client.training.hospital import Hospital
from erosion_common.compression.codec import compress, compress_with_feedback
from erosion_common.protocol import wire
from erosion_common.protocol.messages import TrainRequest, TrainResult
from erosion_common.study.study import Study
from tests.support.small_study import make_site, make_study, twenty_patients

DIM = 6


def study(compression: str, arms: Any = None) -> Study:
    return make_study(
        arms=arms or {"fedavg": {}, "scaffold": {}},
        training={"steps": 3, "batch_size": 4, "learning_rate": 0.1},
        federation={"compression": compression},
    )


def hospital(folder: Path) -> Hospital:
    folder.mkdir(exist_ok=True)
    return Hospital(make_site(folder, twenty_patients(), compute={"state": folder / "state"}))


def answer(
    at: Hospital, number: int, kind: str = "int8", arm: str = "fedavg", run: str = "run"
) -> TrainResult:
    parameters = 0.1 * torch.randn(DIM, generator=torch.Generator().manual_seed(number))
    result = at.answer(TrainRequest(study(kind), arm, number, parameters, None, run))
    assert isinstance(result, TrainResult)
    return result


def test_an_update_is_what_the_coordinator_will_have(tmp_path: Path) -> None:
    result = answer(hospital(tmp_path), 1)
    sent = wire.decode_train_result(wire.encode_result(result), "int8", DIM)
    assert torch.equal(sent.delta, result.delta)
    exact = answer(hospital(tmp_path / "other"), 1, "none")
    assert exact.packed is None
    assert torch.equal(result.delta, compress(exact.delta, "int8")[0])


def test_what_the_first_update_left_over_comes_with_the_second(tmp_path: Path) -> None:
    compressed, exact = hospital(tmp_path), hospital(tmp_path / "other")
    error, without = None, []
    for number in range(1, 7):
        plain = answer(exact, number, "none").delta
        expected, _, error = compress_with_feedback(plain, error, "int8")
        assert torch.equal(answer(compressed, number).delta, expected)
        without.append(torch.equal(expected, compress(plain, "int8")[0]))
    assert not all(without)


def test_asked_again_it_answers_the_same_also_after_a_restart(tmp_path: Path) -> None:
    site = hospital(tmp_path)
    answer(site, 1)
    second = answer(site, 2)
    assert torch.equal(answer(site, 2).delta, second.delta)
    started_anew = hospital(tmp_path)
    assert torch.equal(answer(started_anew, 2).delta, second.delta)


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_what_a_method_keeps_is_not_disturbed(tmp_path: Path, kind: str) -> None:
    compressed, exact = hospital(tmp_path), hospital(tmp_path / "other")
    for number in (1, 2):
        got, plain = (
            answer(at, number, k, "scaffold") for at, k in ((compressed, kind), (exact, "none"))
        )
        assert got.attachments.keys() == plain.attachments.keys()
        for name, tensor in plain.attachments.items():
            assert torch.equal(got.attachments[name], tensor)
