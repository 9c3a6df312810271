"""A site that introduces itself honestly and answers every train request with nonsense.

Half of it goes through the program's own connection, the rest abuses the Fleet API beneath it.
"""

import hashlib
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
from flwr.app import Context, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node

from erosion.client.connection.app import make_app
from erosion.client.connection.credentials import credentials_for
from erosion.client.connection.fleet import FleetConnection
from erosion.client.site_file import load_site
from erosion.client.training.hospital import Hospital
from erosion.common.protocol import wire
from erosion.common.protocol.messages import TrainResult
from erosion.common.support.logs import configure_logging
from tests.support import malformed

SEED = 7
SILENT_EVERY = 40  # rounds; a reply that never becomes whole costs the round its deadline


def object_id(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Abuse:
    """One train request, and the Fleet API to answer it wrongly by."""

    def __init__(
        self, connection: FleetConnection, request: Message, result: TrainResult, seed: int
    ) -> None:
        self.connection, self.request, self.result = connection, request, result
        self.draws = random.Random(seed)
        self.stub, self.node = connection._stub, connection._node
        self.run_id = request.metadata.run_id

    def nonsense(self) -> Message:
        kind = self.draws.choice(malformed.KINDS)
        return Message(kind(self.result, self.draws), reply_to=self.request)

    def honest(self) -> Message:
        return Message(wire.encode_train_result(self.result), reply_to=self.request)

    def push(
        self, message: Message, *trees: ObjectTree, node: Node | None = None
    ) -> PushMessagesRequest:
        """The envelope of `message` with these trees of objects; sent, and handed back."""
        message.metadata.__dict__["_message_id"] = message.object_id
        request = PushMessagesRequest(
            node=node or self.node,
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=list(trees),
            clientapp_runtime_list=[0.0],
        )
        with suppress(grpc.RpcError):
            self.stub.PushMessages(request, timeout=20)
        return request

    def push_object(self, name: str, content: bytes) -> None:
        with suppress(grpc.RpcError):
            self.stub.PushObject(
                PushObjectRequest(
                    node=self.node, run_id=self.run_id, object_id=name, object_content=content
                ),
                timeout=20,
            )


def replies_twice(site: Abuse) -> None:
    """The first counts, whatever the second says."""
    site.connection.reply(Message(RecordDict(), reply_to=site.request))
    site.connection.reply(site.honest())


def replies_to_nothing(site: Abuse) -> None:
    stray = site.honest()
    unknown = object_id(str(site.draws.random()).encode())
    stray.metadata.__dict__["_reply_to_message_id"] = site.draws.choice([unknown, "", "x"])
    site.connection.reply(stray)
    site.connection.reply(site.nonsense())


def replies_with_another_type(site: Abuse) -> None:
    """The type is the sender's to fill in, so it must not matter: the content is wrong, too."""
    reply = site.nonsense()
    types = [wire.DESCRIBE, wire.EVALUATE, wire.NOTICE, "query", "", "x" * 10_000]
    reply.metadata.__dict__["_message_type"] = site.draws.choice(types)
    with suppress(grpc.RpcError):
        site.connection.reply(reply)
    site.connection.reply(Message(RecordDict(), reply_to=site.request))


def replies_in_another_name(site: Abuse) -> None:
    """With another's id in the message, in the call, and in both."""
    mine = site.node.node_id if site.node else 0
    for other in (1, mine + 1, mine - 1, 2**63 - 1):
        for node in (site.node, Node(node_id=other)):
            reply = site.honest()
            reply.metadata.__dict__["_src_node_id"] = other
            site.push(reply, ObjectTree(object_id=reply.object_id), node=node)
    with suppress(grpc.RpcError):
        site.stub.PullMessages(PullMessagesRequest(node=Node(node_id=mine + 1)), timeout=2)
    site.connection.reply(Message(RecordDict(), reply_to=site.request))


def pushes_no_message(site: Abuse) -> None:
    for request in (
        PushMessagesRequest(node=site.node),
        PushMessagesRequest(node=site.node, message_object_trees=[ObjectTree(object_id="x")]),
        PushMessagesRequest(),
    ):
        with suppress(grpc.RpcError):
            site.stub.PushMessages(request, timeout=20)
    site.connection.reply(site.nonsense())


def pushes_without_a_tree(site: Abuse) -> None:
    site.push(site.honest())
    site.connection.reply(site.nonsense())


def pushes_objects_that_nobody_announced(site: Abuse) -> None:
    for size in (0, 10, 10**6):
        content = b"ArrayChunk  %d\0" % size + bytes(size)
        site.push_object(object_id(content), content)
        site.push_object("0" * 64, content)
        site.push_object("not a hash", content)
        site.push_object(object_id(content + b"!"), content + b"!")
    with suppress(grpc.RpcError):
        site.stub.PullObject(
            PullObjectRequest(node=site.node, run_id=site.run_id, object_id="f" * 64), timeout=20
        )
    site.connection.reply(site.nonsense())


def garbage_in_a_whole_tree(site: Abuse) -> None:
    """Every object arrives and has the right hash; none is what it should be."""
    contents = [
        b"Message  2\0{}",
        b"Message  0\0",
        b"RecordDict  2\0{}",
        b"ArrayChunk  3\0abc",
        b"Array  4\0nope",
        b"Message " + b"a" * 64 + b" 2\0{}",
    ]
    content = site.draws.choice(contents)
    site.push(site.honest(), ObjectTree(object_id=object_id(content)))
    site.push_object(object_id(content), content)


def trees_with_bad_names(site: Abuse) -> None:
    """Flower refuses it midway, after it took note of the first names."""
    good = [ObjectTree(object_id=object_id(b"%d" % i)) for i in range(50)]
    site.push(site.honest(), ObjectTree(object_id="x", children=good))
    site.connection.reply(site.nonsense())


def two_trees(site: Abuse) -> None:
    first, second = site.honest(), ObjectTree(object_id=object_id(b"second"))
    site.push(first, ObjectTree(object_id=first.object_id), second)
    site.push_object(object_id(b"second"), b"second")
    site.connection.reply(site.nonsense())


def the_tree_never_becomes_whole(site: Abuse) -> None:
    names = [object_id(b"%f" % site.draws.random()) for _ in range(2000)]
    leaves = [ObjectTree(object_id=name) for name in names]
    reply = site.honest()
    site.push(reply, ObjectTree(object_id=reply.object_id, children=leaves))


def sends_more_than_any_reply_needs(site: Abuse) -> None:
    """A whole list of objects that fit their names, and would fill the memory."""
    contents = [b"ArrayChunk  %d\0" % 5_000_000 + bytes([i]) * 5_000_000 for i in range(100)]
    leaves = [ObjectTree(object_id=object_id(content)) for content in contents]
    reply = site.honest()
    site.push(reply, ObjectTree(object_id=reply.object_id, children=leaves))
    for leaf, content in zip(leaves, contents, strict=True):
        site.push_object(leaf.object_id, content)


def the_tree_bites_its_tail(site: Abuse) -> None:
    a, b = object_id(b"a"), object_id(b"b")
    tail = ObjectTree(object_id=a)
    head = ObjectTree(object_id=a, children=[ObjectTree(object_id=b, children=[tail])])
    site.push(site.honest(), head)


def the_tree_is_the_request_itself(site: Abuse) -> None:
    """Objects that are the coordinator's own must not be deleted with the reply."""
    names = [site.request.metadata.message_id, site.request.content.object_id]
    head = ObjectTree(object_id=names[0], children=[ObjectTree(object_id=names[1])])
    site.push(site.honest(), head)


def a_deep_tree(site: Abuse) -> None:
    tree = ObjectTree(object_id=object_id(b"0"))
    for depth in range(1, 60):
        tree = ObjectTree(object_id=object_id(b"%d" % depth), children=[tree])
    site.push(site.honest(), tree)


def signs_out_in_another_name_and_beats_wrongly(site: Abuse) -> None:
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

    mine = site.node.node_id if site.node else 0
    with suppress(grpc.RpcError):
        site.stub.DeactivateNode(DeactivateNodeRequest(node_id=mine + 1), timeout=20)
    for interval in (-1.0, 0.0, float("nan"), 1e300):
        with suppress(grpc.RpcError):
            site.stub.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(node=Node(node_id=mine + 1), heartbeat_interval=interval),
                timeout=20,
            )
        with suppress(grpc.RpcError):
            site.stub.ActivateNode(
                ActivateNodeRequest(public_key=b"x", heartbeat_interval=interval), timeout=20
            )
    site.connection.reply(site.nonsense())


CALLS: tuple[Callable[[Abuse], None], ...] = (
    replies_twice,
    replies_to_nothing,
    replies_with_another_type,
    replies_in_another_name,
    pushes_no_message,
    pushes_without_a_tree,
    pushes_objects_that_nobody_announced,
    garbage_in_a_whole_tree,
    trees_with_bad_names,
    two_trees,
    signs_out_in_another_name_and_beats_wrongly,
)
SILENT: tuple[Callable[[Abuse], None], ...] = (
    sends_more_than_any_reply_needs,
    the_tree_never_becomes_whole,
    the_tree_bites_its_tail,
    the_tree_is_the_request_itself,
    a_deep_tree,
)


def answer(site: Abuse, number: int) -> None:
    """Every kind of nonsense comes several times within 200 rounds."""
    if number % SILENT_EVERY == SILENT_EVERY - 1:
        SILENT[number // SILENT_EVERY % len(SILENT)](site)
    elif number % 3 == 0:
        CALLS[number // 3 % len(CALLS)](site)
    else:
        kind = malformed.KINDS[number % len(malformed.KINDS)]
        reply = Message(kind(site.result, site.draws), reply_to=site.request)
        site.connection.reply(reply)


def fuzzes(site_file: str) -> None:
    """The site's program."""
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    site = load_site(Path(site_file))
    app = make_app(Hospital(site))
    while True:
        with suppress(grpc.RpcError), credentials_for(site.coordinator).connect() as connection:
            while True:
                if (request := connection.receive()) is not None:
                    _respond(connection, request, app)


def _respond(connection: FleetConnection, request: Message, app: ClientApp) -> None:
    metadata = request.metadata
    if metadata.message_type == wire.NOTICE:
        return
    context = Context(metadata.run_id, metadata.dst_node_id, {}, RecordDict(), {})
    reply = app(request, context)
    if metadata.message_type != wire.TRAIN:
        connection.reply(reply)
        return
    result = wire.decode_train_result(reply.content)
    number = result.header.round
    try:
        answer(Abuse(connection, request, result, SEED + number), number)
    except Exception as problem:  # noqa: BLE001 - what it could not even send; on to the next
        print(f"round {number}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
