"""Tensors in files: what is written, and what a mapped file takes of the memory."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from erosion_common.formats.tensor_file import (
    metadata,
    parts_of,
    read_tensors,
    read_with_header,
    write_tensors,
)
from tests.support.peak_memory import LARGE, peak_bytes

TENSORS: dict[str, Tensor] = {
    "flags": torch.tensor([True, False, True]),
    "number": torch.tensor(1.5, dtype=torch.float64),
    "nothing": torch.empty(0),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "table": torch.arange(6.0).reshape(2, 3),
    **{
        str(dtype): torch.ones(3, dtype=dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32)
    },
    "count": torch.tensor([2**40]),
}


def test_the_library_reads_every_type(tmp_path: Path) -> None:
    write_tensors(path := tmp_path / "file", TENSORS, {"a key": "ä"})
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_of_a_mapped_file_one_part_is_in_memory_and_all_of_it_can_be_read(tmp_path: Path) -> None:
    vector = torch.arange(float(LARGE))
    write_tensors(path := tmp_path / "file", {"a": torch.ones(3), "vector": vector}, None)
    mapped = read_tensors(path)[1]["vector"]
    sums: list[float] = []
    peak = peak_bytes(lambda: sums.extend(float(part.mean()) for part in parts_of(mapped)))
    assert peak < 0.3 * vector.nbytes
    assert sums == [float(part.mean()) for part in parts_of(vector)]
    assert torch.equal(mapped, vector)


def test_memory_that_is_of_no_file_is_kept() -> None:
    vector = torch.frombuffer(bytearray(torch.ones(LARGE).numpy()), dtype=torch.float32)
    assert sum(part.sum() for part in parts_of(vector)) == LARGE
    assert bool((vector == 1).all())


def test_what_was_changed_in_a_mapped_file_is_written_as_it_is_now(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    write_tensors(path, {"vector": torch.zeros(LARGE)}, None)
    mapped = read_tensors(path)[1]["vector"]
    mapped.add_(1)
    write_tensors(other, tensors := {"vector": mapped}, metadata({}, tensors))
    assert bool((read_with_header(other)[1]["vector"] == 1).all())
