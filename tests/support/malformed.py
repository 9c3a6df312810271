"""Replies to a train request that no coordinator may fall for; each is drawn anew by its seed."""

import json
import math
import random
from collections.abc import Callable
from typing import Any

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    MetricRecord,
    RecordDict,
)

from erosion_common.protocol.flower import RAW_FLOAT32, to_array, to_record
from erosion_common.protocol.messages import TrainResult
from erosion_common.protocol.wire import encode_train_result

Malformed = Callable[[TrainResult, random.Random], RecordDict | Error]

JSON_VALUES: tuple[Any, ...] = (
    None, True, "", "x", [], {}, -1, 0, 2.5, 1e308, 2**63, 10**400, "1", [1], {"a": 1}, "\u0000",
    "\x1b[2J", "../../etc/passwd", "\u202e",
)  # fmt: skip


def _with_header(result: TrainResult, header: object) -> RecordDict:
    record = encode_train_result(result)
    record["header"] = ConfigRecord({"json": header})  # type: ignore[dict-item]
    return record


def _with_array(result: TrainResult, array: Array) -> RecordDict:
    record = encode_train_result(result)
    record["arrays"] = to_record({"update": array})
    return record


def _changed(result: TrainResult, **changes: object) -> RecordDict:
    values = {**json.loads(result.header.model_dump_json()), **changes}
    return _with_header(result, json.dumps(values))


def wrong_types(result: TrainResult, draws: random.Random) -> RecordDict:
    key = draws.choice(["hospital", "arm", "round", "num_samples", "samples_seen", "metrics"])
    fit: dict[str, tuple[Any, ...]] = {"metrics": (None,), "num_samples": (2**63,)}
    unfit = [v for v in JSON_VALUES if v not in fit.get(key, ()) and v is not True]
    value = draws.choice([v for v in unfit if not (key == "round" and v == result.header.round)])
    if key in ("num_samples", "samples_seen"):
        value = draws.choice([None, "", "x", [], {}, -1, 0, 2.5, 1e308, 10**400, [1]])
    return _changed(result, **{key: value})


def missing_keys(result: TrainResult, draws: random.Random) -> RecordDict:
    values = json.loads(result.header.model_dump_json())
    del values[draws.choice(["hospital", "arm", "round", "num_samples", "samples_seen", "seconds"])]
    return _with_header(result, json.dumps(values))


def extra_keys(result: TrainResult, draws: random.Random) -> RecordDict:
    return _changed(result, **{f"extra_{draws.random()}": draws.choice(JSON_VALUES[:9])})


def not_json(result: TrainResult, draws: random.Random) -> RecordDict:
    texts: list[object] = ["", "{", "null", "[]", "NaN", "[" * 50_000, '{"a":' * 20_000, "\ud7ff"]
    texts += [b"{}", 3, 2.5, [1, 2], ["a"], [b"\xff"]]
    return _with_header(result, draws.choice(texts))


def gigantic_header(result: TrainResult, draws: random.Random) -> RecordDict:
    return _changed(result, hospital=draws.choice("xé\u202e") * draws.choice([10**6, 10**7]))


def negative_or_absurd_counts(result: TrainResult, draws: random.Random) -> RecordDict:
    key = draws.choice(["num_samples", "samples_seen", "round"])
    return _changed(result, **{key: draws.choice([-1, -(2**62), 0, 2**53 + 1, 2**80, -(10**30)])})


def another_name(result: TrainResult, draws: random.Random) -> RecordDict:
    name = draws.choice(["alice", "carol", "", "nobody", "\x1b[31mred", "<script>", "bob\n"])
    return _changed(result, hospital=name)


def not_finite(result: TrainResult, draws: random.Random) -> RecordDict:
    delta = result.delta.clone()
    delta[draws.randrange(len(delta))] = draws.choice([math.nan, math.inf, -math.inf])
    return encode_train_result(TrainResult(result.header, delta))


def wrong_shape(result: TrainResult, draws: random.Random) -> RecordDict:
    data = result.delta.numpy().tobytes()
    dim = len(result.delta)
    shapes: list[tuple[int, ...]] = [(), (0,), (-1,), (dim, 1), (1, dim), (dim + 1,), (2**62, 4)]
    shapes += [(-2, -(dim // 2)), (dim, -1, -1), (2**40,) * 30, (1,) * 60 + (dim,)]
    return _with_array(result, Array("float32", draws.choice(shapes), RAW_FLOAT32, data))


def wrong_length(result: TrainResult, draws: random.Random) -> RecordDict:
    dim = len(result.delta)
    data = bytes(draws.choice([0, 1, 3, 4 * dim - 1, 4 * dim + 1, 8 * dim, 4096]))
    return _with_array(result, Array("float32", (dim,), RAW_FLOAT32, data))


def wrong_kind_of_array(result: TrainResult, draws: random.Random) -> RecordDict:
    dtype, stype = draws.choice(
        [
            ("float64", RAW_FLOAT32),
            ("float32", "numpy.ndarray"),  # Flower's own: numpy's format, which may hold pickle
            ("object", "numpy.ndarray"),
            ("float32", ""),
            ("", RAW_FLOAT32),
            ("float32", "pickle"),
        ]
    )
    data = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
    return _with_array(result, Array(dtype, (len(result.delta),), stype, data))


def huge_array(result: TrainResult, draws: random.Random) -> RecordDict:
    values = result.delta.new_ones(draws.choice([10**5, 2 * 10**6, 4 * 10**6]))  # up to 16 MB
    return _with_array(result, to_array(values))


def too_many_arrays(result: TrainResult, draws: random.Random) -> RecordDict:
    record = encode_train_result(result)
    names = [f"{i}-{draws.random()}" for i in range(draws.choice([65, 1000, 8000]))]
    one = Array("float32", (1,), RAW_FLOAT32, b"\0\0\0\0")
    record["arrays"] = to_record({"update": to_array(result.delta), **dict.fromkeys(names, one)})
    return record


def no_update(result: TrainResult, draws: random.Random) -> RecordDict:
    record = encode_train_result(result)
    record["arrays"] = to_record({draws.choice(["", "Update", "x"]): to_array(result.delta)})
    return record


def wrong_records(result: TrainResult, draws: random.Random) -> RecordDict:
    record = encode_train_result(result)
    key = draws.choice(["header", "arrays"])
    others: list[MetricRecord | ConfigRecord | ArrayRecord] = [
        MetricRecord({"json": 1.0}),
        ConfigRecord({"update": [1.0]}),
        ArrayRecord(),
    ]
    record[key] = draws.choice(others)
    return record


def empty(result: TrainResult, draws: random.Random) -> RecordDict:
    del result, draws
    return RecordDict()


def an_error(result: TrainResult, draws: random.Random) -> Error:
    del result
    reasons = ["", "x" * 10**6, "\x1b[2J\x1b[H all is well", "alice: \u0000", "bob: \n\n", "%s %d"]
    return Error(draws.choice([0, 1, 2, 5, -1, 2**31]), draws.choice(reasons))


KINDS: tuple[Malformed, ...] = (
    wrong_types,
    missing_keys,
    extra_keys,
    not_json,
    gigantic_header,
    negative_or_absurd_counts,
    another_name,
    not_finite,
    wrong_shape,
    wrong_length,
    wrong_kind_of_array,
    huge_array,
    too_many_arrays,
    no_update,
    wrong_records,
    empty,
    an_error,
)
