"""A message taken apart into frames and put together again."""

import json
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from erosion_common.errors import StudyError
from erosion_common.protocol import envelope, wire
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
from erosion_common.protocol.messages import PROTOCOL
from erosion_common.study.study import Study
from tests.support.small_study import make_study

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


def test_frames_stay_as_small_as_a_coordinator_asks() -> None:
    size = FrameSize.asked(MODEST_DATA_BYTES)
    assert max(sizes_while(size, 2 * FAST_BYTES, 0.001)) == MODEST_DATA_BYTES


@pytest.mark.parametrize("told", [None, "1", True, 1.5, 0, -1, 10**12])
def test_a_frame_size_that_makes_no_sense_changes_nothing_much(told: object) -> None:
    size = FrameSize.asked(told)
    assert size.num_bytes == SMALLEST_DATA_BYTES
    assert MODEST_DATA_BYTES <= size.most_bytes <= LARGEST_DATA_BYTES


# -- The studies that a site keeps, so that not every request has to bring its own -----------------


def with_header(header: dict[str, object]) -> RecordDict:
    return RecordDict({"header": ConfigRecord({"json": json.dumps(header)})})


def asked(study: Study, *, with_study: bool = True, **beside: object) -> RecordDict:
    values = {**json.loads(study.canonical_json()), **beside} if with_study else None
    header = {"protocol": PROTOCOL, "digest": study.digest, "study": values, "run": None}
    return with_header(header)


def test_as_many_studies_are_kept_as_have_so_many_characters_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, studies = wire.KnownStudies(), [make_study(seed=seed) for seed in (11, 12, 13)]
    characters = len(studies[0].canonical_json())
    monkeypatch.setattr(wire, "MOST_CHARACTERS", 2 * characters)
    for study in studies:
        assert wire.decode_describe(asked(study), known)[0] == study
    with pytest.raises(wire.UnknownStudy):
        wire.decode_describe(asked(studies[0], with_study=False), known)
    for study in studies[1:]:
        assert wire.decode_describe(asked(study, with_study=False), known)[0] == study
    monkeypatch.setattr(wire, "MOST_CHARACTERS", characters // 2)  # one that is too large alone
    assert wire.decode_describe(asked(studies[0]), known)[0] == studies[0]
    with pytest.raises(wire.UnknownStudy):
        wire.decode_describe(asked(studies[0], with_study=False), known)


def test_a_request_of_a_later_version_is_refused_by_the_name_of_what_is_lacking() -> None:
    study, known = make_study(), wire.KnownStudies()
    values = json.loads(study.canonical_json())
    later = {"protocol": PROTOCOL + 1, "digest": study.digest, "study": values, "run": None, "x": 1}
    with pytest.raises(wire.AnotherVersion) as refused:
        wire.decode_describe(with_header(later), known)
    assert f"protocol {PROTOCOL + 1}" in refused.value.public
    for change, place in (
        ({"new_key": 1}, "new_key"),
        ({"training": {**values["training"], "warm_up": 3}}, "training.warm_up"),
        ({"arms": {**values["arms"], "b": {"algorithm": "of 2027"}}}, "arms.b"),
        ({"task": {**values["task"], "kind": "of 2027"}}, "task"),
    ):
        with pytest.raises(wire.AnotherVersion) as refused:
            wire.decode_describe(asked(study, **change), known)
        assert place in refused.value.public
    with pytest.raises(StudyError) as wrong:  # a mistake is none of a version
        wire.decode_describe(asked(study, rounds=-1), known)
    assert "its own log" in wrong.value.public


def test_a_new_key_at_its_default_is_no_other_study() -> None:
    """What docs/releasing.md asks of a key that a later version adds."""

    class Later(Study):
        warm_up: int | None = Field(default=None, exclude_if=lambda value: value is None)

    values = json.loads(make_study().canonical_json())
    assert Later.model_validate(values).digest == make_study().digest
    later = Later.model_validate({**values, "warm_up": 3})
    with pytest.raises(wire.AnotherVersion, match="warm_up"):
        wire.decode_describe(asked(later), wire.KnownStudies())


def test_versions_fit_where_they_share_a_protocol() -> None:
    def speaks(latest: int, oldest: int, wire: int = 1) -> Versions:
        return Versions(wire, latest, "1.0", oldest)

    assert speaks(2, 1).fit(speaks(1, 1))
    assert speaks(1, 1).fit(speaks(2, 1))
    assert speaks(3, 2).fit(speaks(2, 1))
    assert not speaks(3, 2).fit(speaks(1, 1))
    assert not speaks(1, 1).fit(speaks(3, 2))
    assert not speaks(1, 1).fit(speaks(1, 1, wire=2))
    assert Versions.read(speaks(3, 2).as_json()) == speaks(3, 2)
    assert Versions.read({"wire": 1, "protocol": 2}).oldest == 2
    for oldest in (True, -1, "1", 1e400):
        with pytest.raises(ProtocolFault):
            Versions.read({**speaks(3, 2).as_json(), "oldest": oldest})


def test_a_testbed_that_comes_with_a_study_is_left_out() -> None:
    """Its digest is without, so that nobody has approved what is in it, however much that is."""
    testbed = {"source": "anything", "options": {"more": [0] * 1000}}
    study, _ = wire.decode_describe(asked(make_study(), testbed=testbed), wire.KnownStudies())
    assert study.testbed is None
