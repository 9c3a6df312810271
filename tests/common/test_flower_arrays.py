"""Arrays that share memory are ordinary Flower Arrays to everybody else."""

import copy

import numpy as np
import pytest
import torch
from flwr.app import Array

from erosion_common.protocol.flower import (
    RAW_FLOAT32,
    BufferArray,
    buffer_of,
    to_array,
    to_record,
    to_tensor,
)
from tests.support.refusals import refused

SHAPES = [(), (0,), (1,), (7, 3), (3_000_000,)]


def values_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_put_in_is_what_is_read(shape: tuple[int, ...]) -> None:
    values = values_of(shape)
    assert torch.equal(to_tensor(to_array(values)), values)


def test_nothing_is_copied() -> None:
    values = values_of((100,))
    array = to_array(values)
    assert buffer_of(array).obj is not None
    assert to_tensor(array).data_ptr() == values.data_ptr()


@pytest.mark.parametrize("shape", SHAPES)
def test_flower_sees_the_bytes(shape: tuple[int, ...]) -> None:
    values = values_of(shape)
    ours = to_array(values)
    flowers = Array("float32", shape, RAW_FLOAT32, values.numpy().tobytes())
    assert ours.data == flowers.data
    assert ours.object_id == flowers.object_id
    assert torch.equal(to_tensor(flowers), values)
    assert to_record({"a": ours})["a"] is ours


def test_an_array_of_any_other_program_can_be_read_by_flowers_own_means() -> None:
    made = Array(np.arange(12, dtype=np.int64).reshape(3, 4))
    carried = BufferArray(made.dtype, made.shape, made.stype, memoryview(made.data))
    assert np.array_equal(carried.numpy(), made.numpy())


def test_a_copy_stands_by_itself() -> None:
    values = values_of((5,))
    array = copy.deepcopy(
        BufferArray("float32", (5,), RAW_FLOAT32, memoryview(to_array(values).data))
    )
    array.data = b"\0" * 20
    assert torch.equal(to_tensor(array), torch.zeros(5))


@pytest.mark.parametrize(
    ("dtype", "stype", "shape"),
    [("float64", RAW_FLOAT32, (4,)), ("float32", "pickle", (4,)), ("float32", RAW_FLOAT32, (5,)),
     ("float32", RAW_FLOAT32, (-4,)), ("float32", RAW_FLOAT32, (2**40,) * 30)],
)  # fmt: skip
def test_what_does_not_fit_is_refused(dtype: str, stype: str, shape: tuple[int, ...]) -> None:
    with refused(ValueError):
        to_tensor(BufferArray(dtype, shape, stype, memoryview(bytes(16))))


def test_arrays_of_bytes_are_not_written_through() -> None:
    tensor = to_tensor(Array("float32", (2,), RAW_FLOAT32, bytes(8)))
    tensor += 1
    assert tensor.tolist() == [1.0, 1.0]
