"""A message taken apart into frames and put together again."""

import json
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from erosion.common.line import envelope
from erosion.common.line.assembly import Assembly, MemorySpace
from erosion.common.line.envelope import (
    MOST_ARRAYS,
    MOST_RECORDS,
    MOST_VALUES,
    FrameSize,
    data_frames,
    describe,
    read_description,
)
from erosion.common.line.frames import (
    LARGEST_DATA_BYTES,
    SMALLEST_DATA_BYTES,
    Kind,
    LineFault,
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
    except LineFault:
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
    with pytest.raises(LineFault, match=what):
        read_description(records)


@given(st.binary(max_size=200))
def test_a_frame_is_opened_or_refused(received: bytes) -> None:
    try:
        kind, body = opened(received)
        values = json_body(body)
        Versions.read(values)
    except LineFault:
        return
    assert frame(kind, body) == received


def test_data_beyond_what_was_announced_is_refused() -> None:
    records, _ = describe(RecordDict({"a": ArrayRecord({"x": Array("u1", (8,), "raw", bytes(8))})}))
    description = read_description(records)
    assembly = Assembly({}, description, MemorySpace(description.num_bytes))
    for wrong in (b"", bytes(9)):
        with pytest.raises(LineFault):
            assembly.take(memoryview(wrong))
    assembly.take(memoryview(bytes(8)))
    with pytest.raises(LineFault):
        assembly.take(memoryview(b"x"))


def test_frames_grow_on_a_fast_line_and_shrink_on_a_slow_one() -> None:
    size = FrameSize()
    for _ in range(10):
        size.took(0.001)
    assert size.num_bytes == LARGEST_DATA_BYTES
    for _ in range(10):
        size.took(5.0)
    assert size.num_bytes == SMALLEST_DATA_BYTES
