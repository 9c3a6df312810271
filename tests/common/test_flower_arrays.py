"""Arrays without spare copies are Flower's own objects, byte for byte."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from erosion.common.protocol.flower_arrays import (
    INLINE_BYTES,
    RAW_FLOAT32,
    inflate,
    to_array,
    to_record,
    to_tensor,
    travels_inline,
)

SIZES = [1, INLINE_BYTES // 4, INLINE_BYTES // 4 + 1, FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE // 4 + 3]


def contents_of(record: RecordDict) -> dict[str, bytes]:
    return {name: part.deflate() for name, part in get_all_nested_objects(record).items()}


@pytest.mark.parametrize("size", SIZES)
def test_ours_and_flowers_own_array_have_the_same_objects(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(0))
    ours = to_array(values)
    flowers = Array("float32", (size,), RAW_FLOAT32, values.numpy().tobytes())
    assert {k: v.deflate() for k, v in get_all_nested_objects(ours).items()} == {
        k: v.deflate() for k, v in get_all_nested_objects(flowers).items()
    }


@pytest.mark.parametrize("size", SIZES)
def test_what_was_sent_is_what_is_read(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(1))
    record = RecordDict({"arrays": to_record({"update": to_array(values)})})
    received = inflate(record.object_id, contents_of(record))
    assert isinstance(received, RecordDict)
    arrays = received["arrays"]
    assert isinstance(arrays, ArrayRecord)
    assert torch.equal(to_tensor(arrays["update"]), values)


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_what_is_about_to_be_sent_can_be_read_too(size: int) -> None:
    """A site's log looks at the arrays of a reply before the reply leaves."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(1))
    assert torch.equal(to_tensor(to_array(values)), values)


def test_flower_reads_what_we_send() -> None:
    values = torch.randn(SIZES[-1], generator=torch.Generator().manual_seed(2))
    record = RecordDict({"arrays": to_record({"update": to_array(values)})})
    received = inflate_object_from_contents(record.object_id, contents_of(record))
    assert isinstance(received, RecordDict)
    arrays = received["arrays"]
    assert isinstance(arrays, ArrayRecord)
    assert arrays["update"].data == values.numpy().tobytes()


def test_small_messages_travel_with_their_call_and_large_ones_as_objects() -> None:
    def message(size: int) -> Message:
        record = RecordDict({"header": ConfigRecord({"json": "{}"})})
        record["arrays"] = to_record({"update": to_array(torch.zeros(size))})
        return Message(record, dst_node_id=1, message_type="train")

    assert travels_inline(message(10))
    assert not travels_inline(message(INLINE_BYTES // 4 + 1))


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (Array("float64", (2,), RAW_FLOAT32, bytes(8)), "float64"),
        (Array("float32", (2,), "numpy.ndarray", bytes(8)), "numpy.ndarray"),
        (Array("float32", (3,), RAW_FLOAT32, bytes(8)), "8 bytes for shape"),
        (Array("float32", (-2,), RAW_FLOAT32, bytes(8)), "8 bytes for shape"),
        (Array("float32", (2**62, 2**62), RAW_FLOAT32, bytes(8)), "8 bytes for shape"),
        (Array("float32", (2,), RAW_FLOAT32, b""), "0 bytes for shape"),
    ],
)
def test_an_array_that_lies_about_itself_is_refused(array: Array, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        to_tensor(array)


def test_an_array_may_repeat_a_chunk_but_not_without_end() -> None:
    values = torch.zeros(3 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE // 4)  # one chunk, three times
    record = RecordDict({"arrays": to_record({"update": to_array(values)})})
    contents = contents_of(record)
    assert sum(map(len, contents.values())) < 2 * FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    num_bytes = 4 * len(values)
    received = inflate(record.object_id, contents, most_bytes=num_bytes)
    assert isinstance(received, RecordDict)
    with pytest.raises(ValueError, match=f"arrays of {num_bytes} bytes"):
        inflate(record.object_id, contents, most_bytes=num_bytes - 1)
