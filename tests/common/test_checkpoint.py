"""A state comes back from its file as it went in, however its tensors lie in memory."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from erosion_common.errors import CheckpointError
from erosion_common.formats.tensor_file import read_tensors
from erosion_common.rounds import checkpoint
from erosion_common.rounds.records import RunState

VALUES = torch.arange(10.0)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (VALUES[2:5], VALUES[2:5]),  # the same memory twice
        (VALUES[::2], (VALUES[1:3], torch.zeros(0), torch.zeros(0))),
        (VALUES, VALUES.expand(2, 10)),
    ],
)
def test_views_and_shared_tensors(tmp_path: Path, params: torch.Tensor, kept: Any) -> None:
    state = RunState(round=3, params=params, algorithm_state=kept)
    checkpoint.save(tmp_path / "state", state, arm="a", study_digest="d")
    back = checkpoint.load(tmp_path / "state", state, arm="a", study_digest="d")
    assert back.round == 3
    torch.testing.assert_close(back.params, params)
    torch.testing.assert_close(back.algorithm_state, kept)


def test_a_bit_that_the_disk_lost_is_noticed_wherever_it_was(tmp_path: Path) -> None:
    state = RunState(round=3, params=VALUES, algorithm_state=(VALUES + 1,))
    path = tmp_path / "state"
    checkpoint.save(path, state, arm="a", study_digest="d")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            back = checkpoint.load(path, state, arm="a", study_digest="d")
        except CheckpointError:
            continue
        # What is left of a name that nobody reads, or of the spaces between.
        assert torch.equal(back.params, VALUES)
        assert torch.equal(back.algorithm_state[0], VALUES + 1)
        assert back.round == 3


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    state = RunState(round=3, params=VALUES, algorithm_state=None)
    path = tmp_path / "state"
    checkpoint.save(path, state, arm="a", study_digest="d")
    about, tensors = read_tensors(path)
    checksum, _, header = about["erosion"].partition(" ")
    assert len(checksum) == 8
    for entries in ({"erosion": header}, {"other": header}, None):
        safetensors.torch.save_file(tensors, path, metadata=entries)
        with pytest.raises(CheckpointError):
            checkpoint.load(path, state, arm="a", study_digest="d")


def test_safetensors_orders_one_entry_alike_in_every_process(tmp_path: Path) -> None:
    """Of several it keeps no order, and a resumed run would differ from an uninterrupted one."""
    state = RunState(round=3, params=VALUES, algorithm_state=None)
    checkpoint.save(tmp_path / "state", state, arm="a", study_digest="d")
    about, _ = read_tensors(tmp_path / "state")
    assert list(about) == ["erosion"]


def test_a_file_that_cannot_be_written_is_an_os_error_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    checkpoint.save_model(path, VALUES, {"weight": VALUES.shape})

    def full(*_: object, **__: object) -> None:
        raise safetensors.SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left on device") as problem:
        checkpoint.save_model(path, VALUES + 1, {"weight": VALUES.shape})
    assert problem.value.filename == str(path)
    assert torch.equal(checkpoint.load_model(path), VALUES)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
