"""Maps connected nodes to the study's hospitals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message

from erosion.common.errors import ErosionError
from erosion.common.protocol import wire
from erosion.common.protocol.messages import DescribeReply, FeatureSums
from erosion.common.protocol.scaling import problem_with_sums
from erosion.common.study.study import Study, TabularTask
from erosion.server.enrolment.rejections import TurnedAway
from erosion.server.link import LinkGrid
from erosion.server.output.plain_text import printable

DESCRIBE_SECONDS = 300.0  # a site may load its data before it answers


@dataclass(frozen=True, slots=True)
class Member:
    """A hospital that introduced itself."""

    node_id: int  # Flower's; it changes when a site without an enrolled key reconnects
    session: int  # a site that signed in anew has to introduce itself anew
    num_samples: int
    sums: FeatureSums | None


class NodeAuthorizer(Protocol):
    """Whose keys are let in."""

    def hospital_of(self, node_id: int) -> str | None:
        """Whose key a node signs with; None where the key is not, or no longer, let in."""

    def why_not(self, hospital: str) -> str | None:
        """Why no site could come in as `hospital` now; None where one could."""

    def part_with(self, node_id: int) -> None:
        """End the presence of a node whose key is no longer let in, so that it is told."""

    def turned_away(self) -> Sequence[TurnedAway]:
        """Who was not let in since this was last asked."""


class Membership:
    """Introduces newcomers and notices who left. Nothing here waits for a site."""

    def __init__(
        self,
        study: Study,
        grid: LinkGrid,
        *,
        on_joined: Callable[[str, int], None] = lambda _name, _samples: None,
        on_declined: Callable[[str, str], None] = lambda _name, _reason: None,
        on_left: Callable[[str], None] = lambda _name: None,
        enrolment: NodeAuthorizer | None = None,
    ) -> None:
        """`enrolment` binds nodes to names; None: a site's own word is taken (loopback only)."""
        self._study, self._grid, self._enrolment = study, grid, enrolment
        self._on_joined, self._on_declined, self._on_left = on_joined, on_declined, on_left
        self._members: dict[str, Member] = {}
        self._asked: dict[str, tuple[int, int]] = {}  # describe request -> node, session
        self._known: set[tuple[int, int]] = set()  # node, session
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
        sessions = self._grid.sessions()
        self._look_at_the_door()
        for name, member in list(self._members.items()):
            if sessions.get(member.node_id) != member.session:
                del self._members[name]
                self._on_left(name)
        newcomers = sorted(set(sessions.items()) - self._known)
        self._known = set(sessions.items())
        content = wire.encode_describe(self._study)
        for node_id, session in newcomers:
            message = Message(content, node_id, wire.DESCRIBE, ttl=DESCRIBE_SECONDS)
            for request_id in self._grid.push_messages([message]):
                self._asked[request_id] = node_id, session
        for reply in self._grid.pull_messages(list(self._asked)):
            self._take(reply, *self._asked.pop(reply.metadata.reply_to_message_id))

    def _look_at_the_door(self) -> None:
        """Part with hospitals whose key was revoked or has expired, and tell of strangers."""
        if self._enrolment is None:
            return
        for name, member in list(self._members.items()):
            if self._enrolment.hospital_of(member.node_id) != name:
                del self._members[name]
                self.declined[name] = self._enrolment.why_not(name) or "its key was replaced"
                self._enrolment.part_with(member.node_id)
                self._on_declined(name, self.declined[name])
        for event in self._enrolment.turned_away():
            if event.hospital in self._members:  # whose own site is here, and unharmed
                self._on_declined(f"another connection as {event.who}", event.text)
            elif event.hospital is None or event.hospital not in self.declined:
                self._on_declined(event.who, event.text)

    def _take(self, reply: Message, node_id: int, session: int) -> None:
        if reply.has_error():
            name, _, reason = (reply.error.reason or "").partition(": ")
            if name in self._study.hospitals and self._may_be(name, node_id):
                self.declined[name] = printable(reason)
                self._on_declined(name, self.declined[name])
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
        self._members[name] = Member(node_id, session, described.num_samples, described.sums)
        self._on_joined(name, described.num_samples)

    def _may_be(self, name: str, node_id: int) -> bool:
        return self._enrolment is None or self._enrolment.hospital_of(node_id) == name

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
        name, reason = printable(name), printable(reason)  # a site's own words may be megabytes
        self._on_declined(name, reason)
        notice = wire.encode_notice(wire.Notice(text=reason, final=True))
        self._grid.push_messages([Message(notice, node_id, wire.NOTICE, ttl=60.0)])
