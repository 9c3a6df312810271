"""A message taken apart into frames and put together again."""

import json
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from erosion_common.protocol import envelope
from erosion_common.protocol.envelope import (
    MOST_ARRAYS,
    MOST_RECORDS,
    MOST_VALUES,
    Assembly,
    FrameSize,
    MemorySpace,
    data_frames,
    describe,
    read_description,
)
from erosion_common.protocol.frames import (
    FAST_BYTES,
    LARGEST_DATA_BYTES,
    MODEST_DATA_BYTES,
    SMALLEST_DATA_BYTES,
    Kind,
    ProtocolFault,
    Versions,
    frame,
    json_body,
    opened,
)

names = st.text(max_size=8)
arrays = st.builds(lambda data: Array("uint8", (len(data),), "raw", data), st.binary(max_size=5000))
scalars = st.one_of(st.integers(-(2**62), 2**62), st.floats(allow_nan=False))
metrics = st.one_of(scalars, st.lists(st.integers(), max_size=3))
configs = st.one_of(scalars, st.text(), st.binary(), st.booleans(), st.lists(st.binary()))
contents = st.dictionaries(
    names,
    st.one_of(
        st.dictionaries(names, arrays, max_size=4).map(ArrayRecord),
        st.builds(MetricRecord, st.dictionaries(names, metrics, max_size=4)),
        st.builds(ConfigRecord, st.dictionaries(names, configs, max_size=4)),
    ),
    max_size=5,
).map(RecordDict)


def carried(content: RecordDict, frame_bytes: int = 2**18) -> RecordDict:
    """The content as the other side gets it."""
    records, buffers = describe(content)
    description = read_description(json.loads(json.dumps(records)))
    assembly = Assembly({}, description, MemorySpace(description.num_bytes))
    for each in data_frames(buffers, FrameSize(frame_bytes)):
        kind, body = opened(each)
        assert kind is Kind.DATA
        assert len(body) <= frame_bytes
        assert not assembly.is_whole
        assembly.take(body)
    assert assembly.is_whole
    return assembly.content()


@given(contents, st.integers(1, 6000))
def test_what_arrives_is_what_was_sent(content: RecordDict, frame_bytes: int) -> None:
    received = carried(content, frame_bytes)
    assert list(received) == list(content)
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            got = received[name]
            assert isinstance(got, ArrayRecord)
            assert list(got) == list(record)
            for key, array in record.items():
                assert (got[key].data, got[key].shape) == (array.data, array.shape)
        else:
            assert received[name] == record


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(
            st.sampled_from(["arrays", "metrics", "config", "base64", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=20,
)


@given(json_values)
def test_a_description_is_read_or_refused(records: Any) -> None:
    try:
        description = read_description(records)
    except ProtocolFault:
        return
    assert description.num_bytes >= 0


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ({str(number): {"metrics": {}} for number in range(MOST_RECORDS + 1)}, "records"),
        ({"a": {"metrics": {str(number): 1 for number in range(MOST_VALUES + 1)}}}, "metrics"),
        ({"a": {"config": {str(number): 1 for number in range(MOST_VALUES + 1)}}}, "configs"),
        ({"a": {"config": {"x": [0] * MOST_VALUES}}}, "configs"),
        ({"a": {"arrays": [None] * (MOST_ARRAYS + 1)}}, "arrays"),
        ({"a": {"config": {"x": nested(600)}}}, "a list of lists"),
        ({"a": {"config": {"x": [1, []]}}}, "a list of lists"),
    ],
)
def test_more_than_any_program_says_is_refused_before_anything_is_made_of_it(
    records: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelope, "_made", None)
    monkeypatch.setattr(envelope, "_array", None)
    with pytest.raises(ProtocolFault, match=what):
        read_description(records)


@given(st.binary(max_size=200))
def test_a_frame_is_opened_or_refused(received: bytes) -> None:
    try:
        kind, body = opened(received)
        values = json_body(body)
        Versions.read(values)
    except ProtocolFault:
        return
    assert frame(kind, body) == received


def test_data_beyond_what_was_announced_is_refused() -> None:
    records, _ = describe(RecordDict({"a": ArrayRecord({"x": Array("u1", (8,), "raw", bytes(8))})}))
    description = read_description(records)
    assembly = Assembly({}, description, MemorySpace(description.num_bytes))
    for wrong in (b"", bytes(9)):
        with pytest.raises(ProtocolFault):
            assembly.take(memoryview(wrong))
    assembly.take(memoryview(bytes(8)))
    with pytest.raises(ProtocolFault):
        assembly.take(memoryview(b"x"))


def sizes_while(size: FrameSize, num_bytes: int, seconds: float) -> list[int]:
    """Of the frames in which so many bytes go, each within so many seconds."""
    sizes: list[int] = []
    while sum(sizes) < num_bytes:
        sizes.append(size.num_bytes)
        size.took(seconds)
    return sizes


def test_frames_grow_on_a_fast_line_and_shrink_on_a_slow_one() -> None:
    size = FrameSize()
    sizes = sizes_while(size, FAST_BYTES, 0.001)
    assert max(sizes) == MODEST_DATA_BYTES  # gRPC and the kernel may have taken these
    assert sizes_while(size, FAST_BYTES, 0.001)[-1] == LARGEST_DATA_BYTES
    size.begin()
    assert size.num_bytes == MODEST_DATA_BYTES
    for _ in range(10):
        size.took(5.0)
    assert size.num_bytes == SMALLEST_DATA_BYTES


def test_frames_stay_modest_where_what_was_taken_goes_on_slowly() -> None:
    size = FrameSize()
    sizes = sizes_while(size, FAST_BYTES // 2, 0.001)  # what gRPC and the kernel hold
    sizes += sizes_while(size, 4 * FAST_BYTES, 0.2)  # 1.3 MB/s
    assert max(sizes) == MODEST_DATA_BYTES


def test_frames_stay_as_small_as_a_coordinator_short_of_memory_asks() -> None:
    size = FrameSize.asked(MODEST_DATA_BYTES)
    assert max(sizes_while(size, 2 * FAST_BYTES, 0.001)) == MODEST_DATA_BYTES


@pytest.mark.parametrize("told", [None, "1", True, 1.5, 0, -1, 10**12])
def test_a_frame_size_that_makes_no_sense_changes_nothing_much(told: object) -> None:
    size = FrameSize.asked(told)
    assert size.num_bytes == SMALLEST_DATA_BYTES
    assert MODEST_DATA_BYTES <= size.most_bytes <= LARGEST_DATA_BYTES
