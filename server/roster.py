"""Which connected node is which hospital."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp.grid import Grid

from common import wire
from common.errors import ErosionError
from common.messages import DescribeReply, FeatureSums
from common.scaling import problem_with_sums
from common.study import Study, TabularTask

DESCRIBE_SECONDS = 300.0  # a site may load its data before it answers


@dataclass(frozen=True, slots=True)
class Member:
    """A hospital that introduced itself."""

    node_id: int  # Flower's; it changes when a site without an enrolled key reconnects
    num_samples: int
    sums: FeatureSums | None


class Roster:
    """Introduces newcomers and notices who left. Nothing here waits for a site."""

    def __init__(
        self,
        study: Study,
        grid: Grid,
        *,
        on_joined: Callable[[str, int], None] = lambda _name, _samples: None,
        on_declined: Callable[[str, str], None] = lambda _name, _reason: None,
        on_left: Callable[[str], None] = lambda _name: None,
        enrolled: Mapping[int, str] | None = None,
    ) -> None:
        """`enrolled` binds node ids to names; None: a site's own word is taken (loopback only)."""
        self._study, self._grid, self._enrolled = study, grid, enrolled
        self._on_joined, self._on_declined, self._on_left = on_joined, on_declined, on_left
        self._members: dict[str, Member] = {}
        self._asked: dict[str, int] = {}  # describe request -> node
        self._known_nodes: set[int] = set()
        self.declined: dict[str, str] = {}  # hospital -> reason
        self.open = True  # whether hospitals may still join

    @property
    def members(self) -> Mapping[str, Member]:
        """Hospitals that are connected now, by name."""
        return self._members

    @property
    def missing(self) -> Sequence[str]:
        """Hospitals of the study that are neither here nor declined."""
        return [
            name
            for name in self._study.hospitals
            if name not in self._members and name not in self.declined
        ]

    def refresh(self) -> None:
        """Take note of who came, who left, and who answered."""
        nodes = set(self._grid.get_node_ids())
        for name, member in list(self._members.items()):
            if member.node_id not in nodes:
                del self._members[name]
                self._on_left(name)
        newcomers = sorted(nodes - self._known_nodes)
        self._known_nodes = nodes
        content = wire.encode_describe(self._study)
        for node_id in newcomers:
            message = Message(content, node_id, wire.DESCRIBE, ttl=DESCRIBE_SECONDS)
            for request_id in self._grid.push_messages([message]):
                self._asked[request_id] = node_id
        for reply in self._grid.pull_messages(list(self._asked)):
            node_id = self._asked.pop(reply.metadata.reply_to_message_id)
            self._take(reply, node_id)

    def _take(self, reply: Message, node_id: int) -> None:
        if reply.has_error():
            name, _, reason = (reply.error.reason or "").partition(": ")
            if name in self._study.hospitals and self._may_be(name, node_id):
                self.declined[name] = reason
                self._on_declined(name, reason)
            return
        try:
            described = wire.decode_describe_reply(reply.content)
        except ErosionError as problem:
            self._turn_away(node_id, f"node {node_id}", f"it answered with {problem}")
            return
        name = described.hospital
        if (problem_with_it := self._why_not(described, node_id)) is not None:
            self._turn_away(node_id, name, problem_with_it)
            return
        self.declined.pop(name, None)
        self._members[name] = Member(node_id, described.num_samples, described.sums)
        self._on_joined(name, described.num_samples)

    def _may_be(self, name: str, node_id: int) -> bool:
        return self._enrolled is None or self._enrolled.get(node_id) == name

    def _why_not(self, described: DescribeReply, node_id: int) -> str | None:
        name = described.hospital
        if not self._may_be(name, node_id):
            return f"its key was not enrolled for the name {name!r}"
        if name not in self._study.hospitals:
            return f"the study has no hospital {name!r}; check `name` in the site file"
        if name in self._members:
            return f"another site is already connected as {name!r}; two sites cannot share a name"
        if not self.open:
            return "the study has begun and is closed to newcomers (federation.join)"
        if described.num_samples < 1:
            return f"it reports {described.num_samples} patients"
        if (self._study.scaling == "federated") != (described.sums is not None):
            return "its answer does not fit the study's scaling"
        if described.sums is not None and isinstance(self._study.task, TabularTask):
            return problem_with_sums(described.sums, self._study.task)
        return None

    def _turn_away(self, node_id: int, name: str, reason: str) -> None:
        self._on_declined(name, reason)
        notice = wire.encode_notice(wire.Notice(text=reason, final=True))
        self._grid.push_messages([Message(notice, node_id, wire.NOTICE, ttl=60.0)])
