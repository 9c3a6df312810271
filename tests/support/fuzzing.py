"""A site that introduces itself honestly and answers every train request with nonsense.

Half of it goes through the program's own connection, the rest is frames that no program sends.
"""

import json
import math
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from erosion_client.connection.credentials import credentials_for
from erosion_client.connection.serve import make_app
from erosion_client.connection.site_link import SiteLink
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import describe
from erosion_common.protocol.flower import RAW_FLOAT32, to_array, to_record
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES, Kind, frame, json_frame
from erosion_common.protocol.messages import TrainResult
from erosion_common.protocol.wire import encode_result
from erosion_common.support.logs import configure_logging

Malformed = Callable[[TrainResult, random.Random], RecordDict | Error]

JSON_VALUES: tuple[Any, ...] = (
    None, True, "", "x", [], {}, -1, 0, 2.5, 1e308, 2**63, 10**400, "1", [1], {"a": 1}, "\u0000",
    "\x1b[2J", "../../etc/passwd", "\u202e",
)  # fmt: skip


def _with_header(result: TrainResult, header: object) -> RecordDict:
    record = encode_result(result)
    record["header"] = ConfigRecord({"json": header})  # type: ignore[dict-item]
    return record


def _with_array(result: TrainResult, array: Array) -> RecordDict:
    record = encode_result(result)
    record["arrays"] = to_record({"update": array})
    return record


def _changed(result: TrainResult, **changes: object) -> RecordDict:
    values = {**json.loads(result.header.model_dump_json()), **changes}
    return _with_header(result, json.dumps(values))


COUNTS = ("num_samples", "samples_seen")
NO_COUNTS: tuple[Any, ...] = (
    None, "", "x", [], {}, -1, 0, 2.5, 1e308, 2**53 + 1, 2**80, -(10**30), 10**400, [1],
)  # fmt: skip


def wrong_values(result: TrainResult, draws: random.Random) -> RecordDict:
    key = draws.choice(["hospital", "arm", "round", "metrics", *COUNTS])
    unfit = NO_COUNTS if key in COUNTS else JSON_VALUES
    fit = {"metrics": None, "round": result.header.round}.get(key, True)
    return _changed(result, **{key: draws.choice([v for v in unfit if v not in (fit, True)])})


def missing_keys(result: TrainResult, draws: random.Random) -> RecordDict:
    values = json.loads(result.header.model_dump_json())
    del values[draws.choice(["hospital", "arm", "round", "seconds", *COUNTS])]
    return _with_header(result, json.dumps(values))


def extra_keys(result: TrainResult, draws: random.Random) -> RecordDict:
    return _changed(result, **{f"extra_{draws.random()}": draws.choice(JSON_VALUES[:9])})


def not_json(result: TrainResult, draws: random.Random) -> RecordDict:
    texts: list[object] = ["", "{", "null", "[]", "NaN", "[" * 50_000, '{"a":' * 20_000, "\ud7ff"]
    texts += [b"{}", 3, 2.5, [1, 2], ["a"], [b"\xff"]]
    return _with_header(result, draws.choice(texts))


def another_name(result: TrainResult, draws: random.Random) -> RecordDict:
    names = ["alice", "carol", "", "nobody", "\x1b[31mred", "<script>", "bob\n", "\u202e" * 10**7]
    return _changed(result, hospital=draws.choice(names))


def not_finite(result: TrainResult, draws: random.Random) -> RecordDict:
    delta = result.delta.clone()
    delta[draws.randrange(len(delta))] = draws.choice([math.nan, math.inf, -math.inf])
    return encode_result(TrainResult(result.header, delta))


def wrong_array(result: TrainResult, draws: random.Random) -> RecordDict:
    """Of another shape, length or kind, among them numpy's, which may hold pickle; or huge."""
    data, dim = result.delta.numpy().tobytes(), len(result.delta)
    shapes: list[tuple[int, ...]] = [(), (0,), (-1,), (dim, 1), (1, dim), (dim + 1,), (2**62, 4)]
    shapes += [(-2, -(dim // 2)), (dim, -1, -1), (2**40,) * 30, (1,) * 60 + (dim,)]
    lengths = [0, 1, 3, 4 * dim - 1, 4 * dim + 1, 8 * dim, 4096]
    kinds = [("float64", RAW_FLOAT32), ("float32", "numpy.ndarray"), ("object", "numpy.ndarray")]
    kinds += [("float32", ""), ("", RAW_FLOAT32), ("float32", "pickle")]
    dtype, stype = draws.choice(kinds)
    pickled = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
    arrays = [
        Array("float32", draws.choice(shapes), RAW_FLOAT32, data),
        Array("float32", (dim,), RAW_FLOAT32, bytes(draws.choice(lengths))),
        Array(dtype, (dim,), stype, pickled),
        to_array(result.delta.new_ones(draws.choice([10**5, 4 * 10**6]))),  # up to 16 MB
    ]
    return _with_array(result, draws.choice(arrays))


def too_many_arrays(result: TrainResult, draws: random.Random) -> RecordDict:
    record = encode_result(result)
    names = [f"{i}-{draws.random()}" for i in range(draws.choice([65, 1000, 8000]))]
    one = Array("float32", (1,), RAW_FLOAT32, b"\0\0\0\0")
    record["arrays"] = to_record({"update": to_array(result.delta), **dict.fromkeys(names, one)})
    return record


def wrong_records(result: TrainResult, draws: random.Random) -> RecordDict:
    record = encode_result(result)
    others: list[MetricRecord | ConfigRecord | ArrayRecord] = [
        MetricRecord({"json": 1.0}),
        ConfigRecord({"update": [1.0]}),
        to_record({draws.choice(["", "Update", "x"]): to_array(result.delta)}),
    ]
    record[draws.choice(["header", "arrays"])] = draws.choice(others)
    return draws.choice([record, RecordDict()])


def an_error(result: TrainResult, draws: random.Random) -> Error:
    del result
    reasons = ["", "x" * 10**6, "\x1b[2J\x1b[H all is well", "alice: \u0000", "bob: \n\n", "%s %d"]
    return Error(draws.choice([0, 1, 2, 5, -1, 2**31]), draws.choice(reasons))


KINDS: tuple[Malformed, ...] = (
    wrong_values, missing_keys, extra_keys, not_json, another_name, not_finite, wrong_array,
    too_many_arrays, wrong_records, an_error,
)  # fmt: skip


SEED = 7
SITES = ("bob", "dave", "erin", "frank")  # that do so, each in its own order
SILENT_EVERY = 25  # rounds; a reply that never becomes whole costs the round its deadline


class Abuse:
    """One train request, and the frames to answer it wrongly by."""

    def __init__(
        self, connection: SiteLink, request: Message, result: TrainResult, seed: int
    ) -> None:
        self.connection, self.request, self.result = connection, request, result
        self.draws = random.Random(seed)
        self.request_id = request.metadata.message_id

    def reply(self, content: RecordDict) -> None:
        self.connection.reply(self.request, Message(content, reply_to=self.request))

    def head(self, **changes: Any) -> dict[str, Any]:
        """An honest reply's head, with changes."""
        records, _ = describe(wire.encode_result(self.result))
        return {"re": self.request_id, "records": records, **changes}

    def arrays(self, *arrays: Any) -> dict[str, Any]:
        """An honest reply's head, with these in place of its arrays' descriptions."""
        head = self.head()
        head["records"]["arrays"] = {"arrays": list(arrays)}
        return head

    def send(self, *frames: bytes) -> None:
        for each in frames:
            self.connection._queue.say(each)

    def send_head(self, head: object) -> None:
        self.send(frame(Kind.MESSAGE, json.dumps(head).encode()))


def large(size: int) -> list[Any]:
    return ["update", "float32", [size // 4], "erosion.float32.le", size]


def replies_twice(site: Abuse) -> None:
    """The first counts, whatever the second says."""
    site.reply(RecordDict())
    site.reply(wire.encode_result(site.result))


def replies_to_nothing(site: Abuse) -> None:
    for unknown in ("", "x", "0" * 32, str(site.draws.random()), "y" * 900):
        site.send(json_frame(Kind.MESSAGE, site.head(re=unknown)))


def an_array_of_impossible_size(site: Abuse) -> None:
    size = 4 * len(site.result.delta)
    array = ["update", "float32", [len(site.result.delta)], "erosion.float32.le", size]
    at, value = site.draws.choice(
        [(0, 3), (1, None), (2, "x"), (2, [-1]), (2, [1.5]), (2, [True]), (2, [1] * 100),
         (3, 7), (4, -1), (4, 2**61), (4, 2**70), (4, "9"), (4, 1e300), (4, True)]
    )  # fmt: skip
    array[at] = value
    site.send_head(site.arrays(array))


def data_after(*frames: bytes) -> Callable[[Abuse], None]:
    """A megabyte is announced, and these frames follow."""

    def abuse(site: Abuse) -> None:
        site.send_head(site.arrays(large(2**20)))
        site.send(*frames)

    return abuse


def cut_and_begun_again(site: Abuse) -> None:
    """A reply that is taken back may be sent once more, and is then nonsense."""
    data_after(frame(Kind.DATA, bytes(2**19)), frame(Kind.CUT))(site)
    site.send_head(site.head(records={}))


def a_message_within_a_message(site: Abuse) -> None:
    data_after()(site)
    site.send_head(site.head())


def one_of(*said: bytes) -> Callable[[Abuse], None]:
    return lambda site: site.send(site.draws.choice(said))


def one_head_of(*heads: object) -> Callable[[Abuse], None]:
    return lambda site: site.send_head(site.draws.choice(heads))


RECORDS: tuple[object, ...] = (
    None, [], 3, {"a": None}, {"a": {}}, {"a": {"arrays": 3}}, {"a": {"what": []}},
    {"a": {"arrays": [], "metrics": {}}}, {"a": {"metrics": {"x": "text"}}},
    {"a": {"metrics": {"x": [1, "a", None]}}}, {"a": {"config": {"x": {"base64": "!"}}}},
    {"a": {"config": {"x": {}}}}, {"a": {"config": {"x": [[1]]}}}, {"a": {"arrays": [None]}},
)  # fmt: skip
ERRORS: tuple[object, ...] = (
    None, {}, [], {"code": "x", "reason": ""}, {"code": 1}, "text",
)  # fmt: skip
NO_JSON = (b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000)
TOO_LONG = {"extra": "x" * (LARGEST_HEAD_BYTES + 10)}
CALLS: tuple[Callable[[Abuse], None], ...] = (
    replies_twice,
    replies_to_nothing,
    one_head_of([], "x", 3, None, {}, {"re": 3}, {"re": "x" * 5000}, {"re": None}),
    one_of(*(frame(Kind.MESSAGE, text) for text in NO_JSON)),
    lambda site: site.send(json_frame(Kind.MESSAGE, site.head(**TOO_LONG))),
    lambda site: site.send_head(site.head(records=site.draws.choice(RECORDS))),
    an_array_of_impossible_size,
    lambda site: site.send_head(site.arrays(large(32), large(32))),  # the same one twice
    lambda site: site.send_head(site.arrays(*([str(i), "f", [], "", 0] for i in range(30_000)))),
    lambda site: site.send_head(site.arrays(large(2**30))),  # more than any reply needs
    one_of(*(frame(Kind.DATA, bytes(size)) for size in (0, 1, 10**6))),  # of no message
    data_after(*[frame(Kind.DATA, bytes(2**19))] * 3),  # more than was announced
    data_after(*[frame(Kind.DATA, b"x")] * 10_000),
    a_message_within_a_message,
    one_of(b"", b"\x00", bytes([200]), frame(Kind.HELLO, b"{}"), frame(Kind.DROP, b"x")),
    lambda site: site.send(*[frame(site.draws.choice([Kind.PING, Kind.PONG, Kind.CUT]))] * 5000),
    one_of(frame(Kind.DATA, bytes(8 * 2**20))),
    cut_and_begun_again,
    lambda site: site.send_head({"re": site.request_id, "error": site.draws.choice(ERRORS)}),
)


def never_becomes_whole(site: Abuse) -> None:
    site.send_head(site.arrays(large(2**24)))
    site.send(frame(Kind.DATA, bytes(2**20)))


SILENT: tuple[Callable[[Abuse], None], ...] = (lambda _: None, never_becomes_whole)


def answer(site: Abuse, round_number: int, index: int) -> None:
    """Every kind of nonsense comes several times within 50 rounds with four sites."""
    number = len(SITES) * round_number + index
    if round_number % SILENT_EVERY == SILENT_EVERY - 1:
        SILENT[index % len(SILENT)](site)
    elif number % 2 == 0:
        CALLS[number // 2 % len(CALLS)](site)
    else:
        kind = KINDS[number // 2 % len(KINDS)]
        reply = Message(kind(site.result, site.draws), reply_to=site.request)
        site.connection.reply(site.request, reply)


def serve(site_file: str, respond: Callable[[SiteLink, Message, Message, str], None]) -> None:
    """A site's program that answers by `respond`; it comes back whenever its stream is ended.

    `respond` gets the connection, the request, the honest reply, and the site's name.
    """
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    site = load_site(Path(site_file))
    app = make_app(Hospital(site), Consent(site, Records.of(site), "test"))
    while True:
        with suppress(grpc.RpcError), credentials_for(site.coordinator).connect() as connection:
            while True:
                if (request := connection.receive(60)) is not None:
                    about = request.metadata
                    context = Context(about.run_id, about.dst_node_id, {}, RecordDict(), {})
                    respond(connection, request, app(request, context), site.name)
        time.sleep(0.1)


def fuzzes(site_file: str) -> None:
    serve(site_file, _respond)


def _respond(connection: SiteLink, request: Message, reply: Message, name: str) -> None:
    if request.metadata.message_type == wire.NOTICE:
        return
    if request.metadata.message_type != wire.TRAIN:
        connection.reply(request, reply)
        return
    result, index = wire.decode_train_result(reply.content), SITES.index(name)
    number = result.header.round
    try:
        seed = SEED + len(SITES) * number + index
        answer(Abuse(connection, request, result, seed), number, index)
    except Exception as problem:  # noqa: BLE001 - what it could not even send; on to the next
        print(f"round {number}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
