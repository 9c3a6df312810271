"""A site that introduces itself honestly and answers every train request with nonsense.

Half of it goes through the program's own connection, the rest is frames that no program sends.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from erosion_client.connection.credentials import credentials_for
from erosion_client.connection.serve import make_app
from erosion_client.connection.site_link import SiteLink
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import describe
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES, Kind, frame, json_frame
from erosion_common.protocol.messages import TrainResult
from erosion_common.support.logs import configure_logging
from tests.support import malformed

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
        records, _ = describe(wire.encode_train_result(self.result))
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
    site.reply(wire.encode_train_result(site.result))


def replies_to_nothing(site: Abuse) -> None:
    for unknown in ("", "x", "0" * 32, str(site.draws.random()), "y" * 900):
        site.send(json_frame(Kind.MESSAGE, site.head(re=unknown)))


def heads_of_other_kinds(site: Abuse) -> None:
    heads: list[object] = [[], "x", 3, None, {}, {"re": 3}, {"re": "x" * 5000}, {"re": None}]
    site.send_head(site.draws.choice(heads))


def heads_that_are_no_json(site: Abuse) -> None:
    texts = [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000]
    site.send(frame(Kind.MESSAGE, site.draws.choice(texts)))


def a_head_that_is_too_long(site: Abuse) -> None:
    site.send(json_frame(Kind.MESSAGE, site.head(extra="x" * (LARGEST_HEAD_BYTES + 10))))


def records_of_other_kinds(site: Abuse) -> None:
    kinds: list[object] = [
        None, [], 3, {"a": None}, {"a": {}}, {"a": {"arrays": 3}}, {"a": {"what": []}},
        {"a": {"arrays": [], "metrics": {}}}, {"a": {"metrics": {"x": "text"}}},
        {"a": {"metrics": {"x": [1, "a", None]}}}, {"a": {"config": {"x": {"base64": "!"}}}},
        {"a": {"config": {"x": {}}}}, {"a": {"config": {"x": [[1]]}}}, {"a": {"arrays": [None]}},
    ]  # fmt: skip
    site.send_head(site.head(records=site.draws.choice(kinds)))


def arrays_of_impossible_sizes(site: Abuse) -> None:
    size = 4 * len(site.result.delta)
    array = ["update", "float32", [len(site.result.delta)], "erosion.float32.le", size]
    at, value = site.draws.choice(
        [(0, 3), (1, None), (2, "x"), (2, [-1]), (2, [1.5]), (2, [True]), (2, [1] * 100),
         (3, 7), (4, -1), (4, 2**61), (4, 2**70), (4, "9"), (4, 1e300), (4, True)]
    )  # fmt: skip
    array[at] = value
    site.send_head(site.arrays(array))


def the_same_array_twice(site: Abuse) -> None:
    site.send_head(site.arrays(large(32), large(32)))


def too_many_arrays_for_a_head(site: Abuse) -> None:
    site.send_head(site.arrays(*([str(i), "f", [], "", 0] for i in range(30_000))))


def more_than_any_reply_needs(site: Abuse) -> None:
    site.send_head(site.arrays(large(2**30)))


def data_of_no_message(site: Abuse) -> None:
    site.send(frame(Kind.DATA, bytes(site.draws.choice([0, 1, 10**6]))))


def more_data_than_announced(site: Abuse) -> None:
    site.send_head(site.arrays(large(2**20)))
    site.send(*(frame(Kind.DATA, bytes(2**19)) for _ in range(3)))


def data_in_tiny_pieces(site: Abuse) -> None:
    site.send_head(site.arrays(large(2**20)))
    site.send(*(frame(Kind.DATA, b"x") for _ in range(10_000)))


def a_message_within_a_message(site: Abuse) -> None:
    site.send_head(site.arrays(large(2**20)))
    site.send_head(site.head())


def frames_that_sites_do_not_send(site: Abuse) -> None:
    kinds = [b"", b"\x00", bytes([200]), frame(Kind.HELLO, b"{}"), frame(Kind.DROP, b"x")]
    site.send(site.draws.choice(kinds))


def a_flood_of_small_frames(site: Abuse) -> None:
    site.send(*(frame(site.draws.choice([Kind.PING, Kind.PONG, Kind.CUT])) for _ in range(5000)))


def a_frame_that_is_too_large(site: Abuse) -> None:
    site.send(frame(Kind.DATA, bytes(8 * 2**20)))


def cut_and_begun_again(site: Abuse) -> None:
    """A reply that is taken back may be sent once more, and is then nonsense."""
    site.send_head(site.arrays(large(2**20)))
    site.send(frame(Kind.DATA, bytes(2**19)), frame(Kind.CUT))
    site.send_head(site.head(records={}))


def a_wrong_error(site: Abuse) -> None:
    errors: list[object] = [None, {}, [], {"code": "x", "reason": ""}, {"code": 1}, "text"]
    site.send_head({"re": site.request_id, "error": site.draws.choice(errors)})


def says_nothing(site: Abuse) -> None:
    """An answer that never comes."""
    del site


def never_becomes_whole(site: Abuse) -> None:
    site.send_head(site.arrays(large(2**24)))
    site.send(frame(Kind.DATA, bytes(2**20)))


CALLS: tuple[Callable[[Abuse], None], ...] = (
    replies_twice,
    replies_to_nothing,
    heads_of_other_kinds,
    heads_that_are_no_json,
    a_head_that_is_too_long,
    records_of_other_kinds,
    arrays_of_impossible_sizes,
    the_same_array_twice,
    too_many_arrays_for_a_head,
    more_than_any_reply_needs,
    data_of_no_message,
    more_data_than_announced,
    data_in_tiny_pieces,
    a_message_within_a_message,
    frames_that_sites_do_not_send,
    a_flood_of_small_frames,
    a_frame_that_is_too_large,
    cut_and_begun_again,
    a_wrong_error,
)
SILENT: tuple[Callable[[Abuse], None], ...] = (says_nothing, never_becomes_whole)


def answer(site: Abuse, round_number: int, index: int) -> None:
    """Every kind of nonsense comes several times within 50 rounds with four sites."""
    number = len(SITES) * round_number + index
    if round_number % SILENT_EVERY == SILENT_EVERY - 1:
        SILENT[index % len(SILENT)](site)
    elif number % 2 == 0:
        CALLS[number // 2 % len(CALLS)](site)
    else:
        kind = malformed.KINDS[number // 2 % len(malformed.KINDS)]
        reply = Message(kind(site.result, site.draws), reply_to=site.request)
        site.connection.reply(site.request, reply)


def fuzzes(site_file: str) -> None:
    """The site's program."""
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    site = load_site(Path(site_file))
    app = make_app(Hospital(site), Consent(site, Records.of(site), "test"))
    while True:
        with suppress(grpc.RpcError), credentials_for(site.coordinator).connect() as connection:
            while True:
                if (request := connection.receive(60)) is not None:
                    _respond(connection, request, app, SITES.index(site.name))
        time.sleep(0.02)


def _respond(connection: SiteLink, request: Message, app: ClientApp, index: int) -> None:
    metadata = request.metadata
    if metadata.message_type == wire.NOTICE:
        return
    context = Context(metadata.run_id, metadata.dst_node_id, {}, RecordDict(), {})
    reply = app(request, context)
    if metadata.message_type != wire.TRAIN:
        connection.reply(request, reply)
        return
    result = wire.decode_train_result(reply.content)
    number = result.header.round
    try:
        seed = SEED + len(SITES) * number + index
        answer(Abuse(connection, request, result, seed), number, index)
    except Exception as problem:  # noqa: BLE001 - what it could not even send; on to the next
        print(f"round {number}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
