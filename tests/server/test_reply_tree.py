"""The coordinator's checks of a reply."""

import hashlib

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree

from erosion.server.link import reply_tree
from erosion.server.link.reply_tree import Allowance, most_reply_bytes, problem_with


def tree(name: str, *children: ObjectTree) -> ObjectTree:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return ObjectTree(object_id=digest, children=children)


def envelope() -> MessageProto:
    record = RecordDict({"header": ConfigRecord({"json": "{}"})})
    message = Message(record, dst_node_id=1, message_type="train")
    return message_to_proto(message)


def push(*trees: ObjectTree) -> PushMessagesRequest:
    return PushMessagesRequest(messages_list=[envelope()], message_object_trees=trees)


def test_a_list_may_name_an_object_twice_beside_itself() -> None:
    chunk = tree("chunk")
    assert problem_with(push(tree("a", tree("b", chunk), tree("c", chunk), chunk))) is None


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (PushMessagesRequest(), "one message with one list"),
        (push(), "one message with one list"),
        (push(tree("a"), tree("b")), "one message with one list"),
        (push(tree("a", tree("a"))), "contains itself"),
        (push(tree("a", tree("b", tree("c", tree("b"))))), "contains itself"),
        (push(tree("a", ObjectTree(object_id="x"))), "not a SHA-256 hash"),
        (
            PushMessagesRequest(messages_list=[MessageProto()], message_object_trees=[tree("a")]),
            "cannot be read",
        ),
    ],
)
def test_what_would_leave_something_behind_is_refused(
    request_: PushMessagesRequest, problem: str
) -> None:
    assert problem in (problem_with(request_) or "")


def test_a_list_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_tree, "MOST_OBJECTS", 3)
    assert problem_with(push(tree("a", tree("b"), tree("c")))) is None
    assert "more than 3" in (problem_with(push(tree("a", *map(tree, "bcd")))) or "")


def test_a_site_that_was_not_asked_may_send_nothing() -> None:
    assert not Allowance().spend(1, 1)


def test_a_site_may_send_in_proportion_to_what_it_was_asked_with() -> None:
    allowance = Allowance()
    allowance.grant(1, most_reply_bytes(100))
    assert allowance.spend(1, reply_tree.SPARE_BYTES)
    assert allowance.spend(1, reply_tree.TIMES_REQUEST * 100)
    assert not allowance.spend(1, 1)
    allowance.grant(1, most_reply_bytes(100))
    assert allowance.spend(1, 1)
