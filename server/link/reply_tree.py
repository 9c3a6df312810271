"""Validates a reply, the list of objects that comes with it, and the objects.

Flower's store counts references to objects, so a list that names an object within itself, or that
breaks off at a name that is none, would leave entries behind that nothing ever deletes.
"""

import threading
from collections.abc import Iterator

from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    is_valid_sha256_hash,
    iterate_object_tree,
)

MOST_OBJECTS = 20_000  # a hundred gigabytes of parameters, in Flower's chunks
SPARE_BYTES = 64 * 2**20  # what a reply may bring, however small the request was
TIMES_REQUEST = 16  # and beside it, for attachments and personal models, so often the request


def most_reply_bytes(request_bytes: int) -> int:
    """What an honest reply to a request of this size stays below."""
    return SPARE_BYTES + TIMES_REQUEST * request_bytes


class Allowance:
    """How many bytes of objects each site may still send; more would only fill the memory."""

    def __init__(self) -> None:
        """Nobody was asked yet, and may send nothing."""
        self._lock = threading.Lock()
        self._left: dict[int, int] = {}

    def grant(self, node_id: int, num_bytes: int) -> None:
        """The node is asked, and may send so much in all."""
        with self._lock:
            self._left[node_id] = max(self._left.get(node_id, 0), num_bytes)

    def spend(self, node_id: int, num_bytes: int) -> bool:
        """Whether the node may send these, too."""
        with self._lock:
            left = self._left.get(node_id, 0) - num_bytes
            if left >= 0:
                self._left[node_id] = left
        return left >= 0


def problem_with(request: PushMessagesRequest) -> str | None:
    """Why a reply's envelope and its list cannot be used; None where they can."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return "a reply is one message with one list of its objects"
    tree = request.message_object_trees[0]
    for number, part in enumerate(iterate_object_tree(tree), 1):
        if number > MOST_OBJECTS:
            return f"a reply of more than {MOST_OBJECTS} objects"
        if not is_valid_sha256_hash(part.object_id):
            return "an object whose name is not a SHA-256 hash"
    if any(len(set(path)) < len(path) for path in _paths(tree, ())):
        return "an object that contains itself"
    try:
        message_from_proto(request.messages_list[0])
    except Exception as problem:  # noqa: BLE001 - whatever a site made up
        return f"a message that cannot be read ({type(problem).__name__})"
    return None


def _paths(tree: ObjectTree, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """From the root to every object that holds no other."""
    path = (*above, tree.object_id)
    if not tree.children:
        yield path
    for child in tree.children:
        yield from _paths(child, path)
