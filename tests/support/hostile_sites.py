"""Enrolled sites that attack; each has the hospital's name that says how."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from erosion_client.connection.credentials import credentials_for
from erosion_client.connection.site_link import SiteLink
from erosion_client.site_file import Site, load_site
from erosion_common.protocol import wire
from erosion_common.protocol.frames import PATH, Kind, frame
from erosion_common.protocol.messages import TrainResult
from tests.support.fuzzing import Abuse, large, replies_to_nothing, serve

MANY = 10**9
BAD_CALLS = 100


def _with_header(record: RecordDict, **changes: object) -> RecordDict:
    values = {**json.loads(wire.header_text(record)), **changes}
    return RecordDict({**record, "header": ConfigRecord({"json": json.dumps(values)})})


def _sends(change: Callable[[TrainResult], TrainResult]) -> Callable[[Abuse], None]:
    return lambda site: site.reply(wire.encode_result(change(site.result)))


def one_value(value: float) -> Callable[[TrainResult], TrainResult]:
    """The honest update but for one value."""

    def change(result: TrainResult) -> TrainResult:
        delta = result.delta.clone()
        delta[0] = value
        return TrainResult(result.header, delta)

    return change


def brings_orphans(site: Abuse) -> None:
    """Forty arrays of 1.3 MiB that nobody asked for."""
    orphans = {f"orphan-{number}": torch.zeros(340_000) for number in range(40)}
    site.reply(wire.encode_result(TrainResult(site.result.header, site.result.delta, orphans)))


def replies_twice(site: Abuse) -> None:
    site.reply(wire.encode_result(site.result))
    site.reply(wire.encode_result(one_value(3e5)(site.result)))


def claims_patients(site: Abuse) -> None:
    """More than it introduced itself with."""
    site.reply(_with_header(wire.encode_result(site.result), num_samples=2**53))


def names_metrics(site: Abuse) -> None:
    figures = {"num_patients": 1, **{"x" * 200 + str(number): 0.5 for number in range(500)}}
    site.reply(_with_header(wire.encode_result(site.result), metrics=figures))


def drips(site: Abuse) -> None:
    """A reply in the first round that comes too slowly ever to be whole."""
    if site.result.header.round > 1:
        site.reply(wire.encode_result(site.result))
        return
    site.send_head(site.arrays(large(2**24)))
    for _ in range(100):
        site.send(frame(Kind.DATA, bytes(2**15)))
        time.sleep(0.5)


def honest(site: Abuse) -> None:
    site.reply(wire.encode_result(site.result))


TRAIN: dict[str, Callable[[Abuse], None]] = {
    "claims-patients": claims_patients,
    "huge-value": _sends(one_value(3e38)),
    "not-a-number": _sends(one_value(float("nan"))),
    "orphans": brings_orphans,
    "twice": replies_twice,
    "unasked": replies_to_nothing,
    "metrics": names_metrics,
    "drips": drips,
    "bad-calls": honest,
    "many-patients": honest,
}


def evaluates_nothing(site_file: str) -> None:
    """Trains honestly; as the user it answers with figures of no arm."""

    def respond(line: SiteLink, request: Message, reply: Message, _: str) -> None:
        if request.metadata.message_type == wire.EVALUATE:
            reply = Message(_with_header(reply.content, arms={}), reply_to=request)
        line.reply(request, reply)

    serve(site_file, respond)


def attacks(site_file: str) -> None:
    """By the site's name."""
    site = load_site(Path(site_file))
    if site.name == "bad-calls":
        _call_badly(site)
    serve(site_file, _answer)


def _answer(line: SiteLink, request: Message, honest_reply: Message, name: str) -> None:
    if request.metadata.message_type == wire.TRAIN:
        result = wire.decode_train_result(honest_reply.content)
        TRAIN[name](Abuse(line, request, result, seed=0))
        return
    if request.metadata.message_type == wire.DESCRIBE and name == "many-patients":
        described = json.loads(wire.header_text(honest_reply.content))
        sums = described["sums"]
        lie = {"count": [MANY] * 2, "total": [0.0] * 2, "squares": [1e12] * 2}
        changed = _with_header(honest_reply.content, num_samples=MANY, sums={**sums, **lie})
        honest_reply = Message(changed, reply_to=request)
    line.reply(request, honest_reply)


def _call_badly(site: Site) -> None:
    """A hundred calls that are no greeting."""
    for number in range(BAD_CALLS):
        line = credentials_for(site.coordinator).connect()
        with suppress(grpc.RpcError):
            body = [b"", b"\x01{", frame(Kind.DATA, b"x"), b"\xff" * 1000][number % 4]
            list(line._channel.stream_stream(PATH)(iter([body])))
        line._close()
