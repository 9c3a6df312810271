"""Compressed vectors: the numbers worked out by hand, what comes in the end, and liars."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from erosion_common.errors import StudyError
from erosion_common.protocol import wire
from erosion_common.protocol.compression import (
    BLOCK,
    KINDS,
    Compression,
    Packed,
    compress,
    compress_with_feedback,
    pack,
    unpack,
    unpacked,
)
from erosion_common.protocol.flower import (
    RAW_FLOAT32,
    BufferArray,
    buffer_of,
    to_array,
    to_record,
    to_tensor,
)
from erosion_common.protocol.messages import TrainReply, TrainResult
from tests.support.federation import small_study
from tests.support.peak_memory import LARGE, peak_bytes
from tests.support.refusals import refused

LOSSY: tuple[Compression, ...] = tuple(kind for kind in KINDS if kind != "none")


def received(vector: Tensor, kind: Compression) -> Tensor:
    return unpacked(compress(vector, kind))


def test_eight_bits_by_hand() -> None:
    packed = pack(torch.tensor([127.0, -63.6, 0.4, -127.0]), "int8")
    # the largest magnitude is 127, so the scale is 1: 127, -64, 0, -127
    assert packed.scales is not None
    assert packed.scales.tolist() == [1.0]
    assert packed.codes.view(torch.int8).tolist() == [127, -64, 0, -127]
    assert unpack(packed, 4).tolist() == [127.0, -64.0, 0.0, -127.0]


def test_sixteen_bits_by_hand() -> None:
    # float16 has 11 bits of significand: 2049 lies between 2048 and 2050, and goes to the even one
    assert received(torch.tensor([2049.0, 1 / 3]), "float16").tolist() == [2048.0, 0.333251953125]
    # bfloat16 has 8: 257 goes to 256
    assert received(torch.tensor([257.0, 1 / 3]), "bfloat16").tolist() == [256.0, 0.333984375]


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_no_value_is_off_by_more_than_half_a_step(kind: Compression, length: int) -> None:
    vector = torch.randn(length, generator=torch.Generator().manual_seed(length))
    got = received(vector, kind)
    assert got.shape == vector.shape
    assert got.dtype == torch.float32
    largest = vector.abs().max()
    step = {"int8": largest / 127, "float16": 2**-10 * largest, "bfloat16": 2**-7 * largest}[kind]
    assert float((got - vector).abs().max()) <= float(step) / 2 * 1.0001


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-40, -1e-38, 3.4e38])
def test_zeros_denormals_and_the_largest_numbers_stay_finite(
    kind: Compression, value: float
) -> None:
    got = received(torch.full((300,), value), kind)
    assert torch.isfinite(got).all()
    assert float((got - value).abs().max()) <= max(1e-38, abs(value))


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_for_the_screening_to_see(kind: Compression, value: float) -> None:
    vector = torch.tensor([1.0, value])
    assert compress(vector, kind) is vector
    error = torch.tensor([0.25, 0.5])
    sent, left = compress_with_feedback(vector, error, kind)
    assert sent is vector
    np.testing.assert_array_equal(vector, [1.0, value])  # not written to
    assert left is not None
    assert left.tolist() == [0.25, 0.5]  # the error is not poisoned


def test_what_was_lost_comes_with_the_next_update() -> None:
    # scale 1: 100 stays, .4 becomes 0 and is left over; then .4 + .4 = .8 becomes 1
    update = torch.tensor([127.0, 0.4])
    first, left = compress_with_feedback(update.clone(), None, "int8")
    assert unpacked(first).tolist() == [127.0, 0.0]
    assert left is not None
    assert left.tolist() == pytest.approx([0.0, 0.4])
    second, left = compress_with_feedback(update.clone(), left, "int8")
    assert unpacked(second).tolist() == [127.0, 1.0]
    assert left is not None
    assert left.tolist() == pytest.approx([0.0, -0.2])


@given(
    st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3),
    st.integers(1, 40),
    st.sampled_from(LOSSY),
)
@settings(deadline=None, max_examples=60)
def test_the_sums_of_all_updates_agree_but_for_what_is_left_over(
    values: list[float], rounds: int, kind: Compression
) -> None:
    update, error = torch.tensor(values), None
    total = torch.zeros(3, dtype=torch.float64)
    for number in range(rounds):
        turned = update.roll(number)
        got, error = compress_with_feedback(turned, error, kind)
        total += unpacked(got)
    wanted = sum((update.roll(n).double() for n in range(rounds)), torch.zeros(3).double())
    left = torch.zeros(3) if error is None else error
    assert torch.allclose(total + left, wanted, atol=1e-3)
    step = float(update.abs().max()) * 2 / 127  # an update with its error is at most twice as large
    assert float(left.abs().max()) <= step + 1e-6


@pytest.mark.parametrize("kind", LOSSY)
def test_of_a_large_vector_nothing_is_made_but_what_is_sent(kind: Compression) -> None:
    update, error = torch.ones(LARGE), torch.ones(LARGE)
    peaks = [
        peak_bytes(lambda: compress(update, kind)),
        peak_bytes(lambda: compress_with_feedback(update, error, kind)),
    ]
    assert max(peaks) < (0.5 if kind == "int8" else 0.75) * update.nbytes


def test_an_update_takes_a_quarter_of_the_bytes() -> None:
    vector = torch.randn(100_000)
    sizes = {k: wire.num_bytes(reply(vector, k)) for k in KINDS}
    plain = sizes["none"]
    assert 0.50 <= sizes["float16"] / plain < 0.51
    assert 0.50 <= sizes["bfloat16"] / plain < 0.51
    assert 0.25 <= sizes["int8"] / plain < 0.256


HEADER = TrainReply(hospital="a", arm="x", round=1, num_samples=1, samples_seen=1, seconds=0.0)


def reply(vector: Tensor, kind: Compression) -> Any:
    return wire.encode_result(TrainResult(HEADER, compress(vector, kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_side_has_what_the_site_believes_that_it_has(kind: Compression) -> None:
    vector = torch.randn(1001, generator=torch.Generator().manual_seed(3))
    decoded = wire.decode_train_result(reply(vector, kind), kind, 1001)
    assert torch.equal(decoded.delta, received(vector, kind))
    assert decoded.attachments == {}


LIES: dict[str, tuple[dict[str, Tensor], str]] = {
    "too few codes": ({"update.int8": torch.zeros(299, dtype=torch.uint8)}, "299 bytes of codes"),
    "codes of a matrix": ({"update.int8": torch.zeros(3, 100, dtype=torch.uint8)}, "no bytes"),
    "codes that are numbers": ({"update.int8": torch.zeros(300)}, "codes that are no bytes"),
    "too few scales": ({"update.scales": torch.ones(1)}, "2 float32 numbers"),
    "scales of bytes": ({"update.scales": torch.ones(2, dtype=torch.uint8)}, "2 float32 numbers"),
    "an infinite scale": ({"update.scales": torch.tensor([1.0, math.inf])}, "not finite"),
    "a negative scale": ({"update.scales": torch.tensor([1.0, -1.0])}, "negative"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_payload_is_an_error_in_words(lie: str) -> None:
    arrays, words = LIES[lie]
    record = reply(torch.randn(300), "int8")
    honest = record.array_records["arrays"]
    record["arrays"] = ArrayRecord()
    for name, array in {**honest, **{n: to_array(t) for n, t in arrays.items()}}.items():
        record.array_records["arrays"][name] = array
    with pytest.raises(wire.WireError, match=words):
        wire.decode_train_result(record, "int8", 300)


def test_scales_without_codes_and_codes_of_another_kind_are_no_update() -> None:
    record = reply(torch.randn(300), "int8")
    with refused(wire.WireError, "update"):
        wire.decode_train_result(record, "float16", 300)
    with refused(wire.WireError, "update"):
        wire.decode_train_result(record)


def test_an_update_of_numbers_whose_largest_code_overflows_is_not_finite() -> None:
    packed = Packed("int8", torch.full((2,), 127, dtype=torch.uint8), torch.tensor([3e38]))
    assert not torch.isfinite(unpack(packed, 2)).any()  # which the screening rejects


def test_sealed_rounds_refuse_compression() -> None:
    with refused((StudyError, ValueError), "sealed"):
        small_study(federation={"sealed": True, "compression": "int8"})


# -- Arrays that share memory are ordinary Flower Arrays to everybody else -----------------------

SHAPES = [(), (0,), (1,), (7, 3), (3_000_000,)]


def values_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


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
