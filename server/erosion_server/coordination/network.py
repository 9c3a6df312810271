"""The hospitals over the network: requests become Flower messages, replies plain values again.

The study travels with `describe`; a site that was not sent it yet, or has lost it, gets it with the
request.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Error, Message, RecordDict

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.errors import ErosionError, RunOver, Undecided
from erosion_common.protocol import wire
from erosion_common.protocol.flower import BoundedMessage, log_head, read_error, received_bytes
from erosion_common.protocol.messages import DescribeReply, EvaluateRequest, TrainRequest
from erosion_common.rounds import channel
from erosion_common.rounds.bounds import most_head_bytes
from erosion_common.rounds.channel import Connection, News, Reply, Request
from erosion_common.rounds.records import Absence, Rejection
from erosion_common.settings.names import is_name
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_server.coordination.end_notices import EndNotices
from erosion_server.link import LEFT, NODE_LEFT, UNREADABLE, Link, LinkGrid

DESCRIBE_SECONDS = 300.0  # a site may load its data before it answers
NOTICE_SECONDS = 60.0


@dataclass(slots=True)
class _Connected:
    """A node in one of its sessions."""

    node_id: int
    visit: tuple[int, int]  # session, and decisions in it: it introduces itself in each
    asked_at: float  # to introduce itself
    is_overdue: bool = False  # with that, and a warning was logged
    hospital: HospitalName | None = None  # that it introduced itself as
    is_undecided: bool = False  # people there had not decided in this visit
    studies: set[str] = field(default_factory=set)  # digests of those that it was sent

    def is_in(self, visit: tuple[int, int] | None) -> bool:
        """Return if this visit of the site continues, as far as this study is concerned."""
        if visit is None or not self.is_undecided:
            return visit is not None and visit[0] == self.visit[0]
        return visit == self.visit


@dataclass(slots=True)
class _Sent:
    request: Request
    bytes_sent: int
    at: float  # when


class NetworkChannel:
    """A `Transport` over the link."""

    def __init__(
        self,
        study: Study,
        grid: LinkGrid,
        authorizer: Link | None,
        *,
        others_stay: bool = False,
        end_notices: EndNotices | None = None,
        run: str = "",
        whole_run: str = "",
        witness: Callable[[HospitalName, str, str], None] = lambda *_: None,
    ) -> None:
        """`authorizer` binds nodes to names; None: a site's own word is taken (loopback only).

        `others_stay`: sites that this study does not want wait for another one. `end_notices`
        notes the hospitals that are asked about this study. `run`: the run's name at the sites;
        `whole_run`: that of the run which it is a part of. `witness` receives the hash of its log
        that a hospital sends with every reply, and the kind of request.
        """
        self._end_notices, self._whole_run = end_notices, whole_run or run
        self._witness = witness
        self._grid, self._authorizer, self._others_stay = grid, authorizer, others_stay
        self._study, self._run = study, run
        self._most_head_bytes = most_head_bytes(study)
        self._introduction: RecordDict | None = None  # what every newcomer is asked
        self._sites: dict[Connection, _Connected] = {}
        self._asked: dict[str, Connection] = {}  # describe request -> the connection
        self._unanswered: dict[int, float] = {}  # node -> seconds of earlier connections in which
        # it was asked to introduce itself without an answer: a return starts no other wait
        self._notices: set[str] = set()  # that were sent; sites confirm them
        self._num_connections = 0
        self._sent: dict[Connection, _Sent] = {}  # of the exchange under way

    def news(self) -> Iterator[News]:
        """Return who came, went, or was denied."""
        visits = self._grid.visits()
        yield from self._revoked()
        for connection, site in list(self._sites.items()):
            if not site.is_in(visits.get(site.node_id)):
                if connection in self._asked.values():
                    self._unanswered[site.node_id] = self.now() - site.asked_at
                del self._sites[connection]
                yield channel.Left(connection)
        known = {site.node_id for site in self._sites.values()}
        for node_id, visit in sorted(visits.items()):
            is_others = (
                self._others_stay
                and self._authorizer is not None
                and self._known(node_id) not in self._study.everyone
            )
            if node_id not in known and not is_others:
                asked_at = self.now() - self._unanswered.get(node_id, 0.0)
                self._describe(_Connected(node_id, visit, asked_at))
        if self._end_notices is not None:
            self._end_notices.resend()
        for confirmed in self._grid.pull_messages(list(self._notices)):
            node_id = confirmed.metadata.src_node_id
            names = (site.hospital for site in self._sites.values() if site.node_id == node_id)
            self._note_log(confirmed, next(names, None))
            self._notices.discard(confirmed.metadata.reply_to_message_id)
        for reply in self._grid.pull_messages(list(self._asked)):
            connection = self._asked.pop(reply.metadata.reply_to_message_id)
            if connection in self._sites:
                self._unanswered.pop(self._sites[connection].node_id, None)
                yield from self._introduced(connection, reply)
        yield from self._overdue()

    def turn_away(self, connection: Connection, reason: str) -> None:
        """Send a notice, which is final unless the site may wait for another study."""
        if (site := self._sites.get(connection)) is not None:
            site.hospital = None
            said = wire.Notice(text=reason, final=not self._others_stay, run=self._run)
            notice = wire.encode_header(said)
            message = self._message(notice, site.node_id, wire.NOTICE, NOTICE_SECONDS)
            self._notices.update(self._grid.push_messages([message]))

    def close(self) -> None:
        """Stop waiting: requests outside the rounds are forgotten."""
        self._grid.forget([*self._asked, *self._notices])
        self._asked.clear()
        self._notices.clear()

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        """Over the grid."""
        replies = self._grid.send_and_receive(self.messages(requests, seconds), timeout=seconds)
        return self.replies(replies, seconds)

    def messages(self, requests: Mapping[Connection, Request], seconds: float) -> Iterable[Message]:
        """Yield the requests to be sent; each is made when it is taken, for they are large."""
        encoder = wire.Encoder()
        records: dict[tuple[int, bool], tuple[RecordDict, int]] = {}
        # by request, and if its study goes along: with the number of bytes
        self._sent = {}
        for connection, request in requests.items():
            site = self._sites[connection]
            with_study = request.study.digest not in site.studies
            key = id(request), with_study
            if key not in records:
                encoded = encoder.encode(request, with_study=with_study)
                records[key] = encoded, wire.num_bytes(encoded)
            site.studies.add(request.study.digest)
            record, num_bytes = records[key]
            self._sent[connection] = _Sent(request, num_bytes, self.now())
            yield self._request(record, site.node_id, request, seconds)

    def replies(self, messages: Iterable[Message], seconds: float) -> Iterator[Reply]:
        """Return one reply for each of the latest `messages`."""
        deadline = self.now() + seconds
        by_node = {self._sites[c].node_id: c for c in self._sent if c in self._sites}
        waiting = dict(self._sent)
        for message in self._with_studies(messages, by_node, deadline):
            connection = by_node[message.metadata.src_node_id]
            reply = self._reply(connection, waiting.pop(connection), message)
            del message  # what is used of it is in the reply
            yield reply
            del reply
        visits = self._grid.visits()
        for connection in [*waiting]:
            site = self._sites[connection]
            if visits.get(site.node_id, (None,))[0] != site.visit[0]:
                del waiting[connection]  # it left before it could be asked
                yield Reply(connection, Absence(LEFT), left=True)
        self._grid.probe(self._sites[connection].node_id for connection in waiting)
        self._sent = {}  # large: the aggregate comes before the next ones
        for connection, sent in waiting.items():
            yield channel.too_late(connection, seconds, sent.bytes_sent)

    def hears(self, connection: Connection) -> bool:
        """Do nothing: sites with an overdue answer were probed at once."""
        site = self._sites.get(connection)
        return site is not None and self._grid.hears(site.node_id)

    def wait_for_change(self, seconds: float) -> None:
        """Until a site comes, goes or answers."""
        self._grid.wait_for_news(seconds)

    def now(self) -> float:
        """Return the link's clock."""
        return self._grid.clock.now()

    def unanswered(self) -> set[Connection]:
        """Return who was asked and has not answered; for other threads to look at."""
        nodes = self._grid.unanswered()
        return {connection for connection, s in list(self._sites.items()) if s.node_id in nodes}

    def _revoked(self) -> Iterator[News]:
        """Disconnect hospitals with a key that is no longer let in, and report strangers."""
        if self._authorizer is None:
            return
        for connection, site in list(self._sites.items()):
            name = site.hospital
            if name is not None and not self._may_be(name, site.node_id):
                reason = self._authorizer.why_not(name) or "its key was replaced"
                self._authorizer.evict(site.node_id)
                site.hospital = None
                if self._authorizer.may_renew(name):
                    yield channel.Away(name, reason)
                    yield channel.Left(connection)
                else:
                    yield channel.Left(connection, expelled=reason)
        for event in self._grid.denials():
            yield channel.Denied(event.who, event.hospital, event.text)

    def _describe(self, site: _Connected) -> None:
        if self._introduction is None:
            self._introduction = wire.encode_describe(self._study, self._run)
        self._num_connections += 1
        self._sites[self._num_connections] = site
        if self._end_notices is not None and (name := self._known(site.node_id)) is not None:
            self._end_notices.asks(self._whole_run, name)
        message = self._message(self._introduction, site.node_id, wire.DESCRIBE, DESCRIBE_SECONDS)
        for request_id in self._grid.push_messages([message]):
            self._asked[request_id] = self._num_connections

    def _overdue(self) -> Iterator[News]:
        """Sites that live and have not introduced themselves; they may do so later."""
        seconds = self._study.federation.join_deadline_seconds
        for connection in list(self._asked.values()):
            site = self._sites.get(connection)
            if site is None or site.is_overdue or self.now() - site.asked_at < seconds:
                continue
            site.is_overdue = True
            reason = (
                f"it did not describe its patients within {seconds:g} s; look whether its data"
                " source hangs"
            )
            name = self._known(site.node_id)
            if name in self._study.everyone:
                yield channel.Away(name, reason, connection)
            else:
                yield channel.Denied(name or f"node {site.node_id}", None, reason)

    def _introduced(self, connection: Connection, reply: Message) -> Iterator[News]:
        site = self._sites[connection]
        self._note_log(reply, self._known(site.node_id))
        if reply.has_error():
            yield from self._declined(connection, reply.error)
            return
        try:
            described = wire.decode_header(reply.content, DescribeReply)
        except ErosionError as problem:
            yield self._denied(connection, f"node {site.node_id}", f"it answered with {problem}")
            return
        name = described.hospital
        if not self._may_be(name, site.node_id):
            reason = f"its key was not enrolled for the name {name!r}"
            yield self._denied(connection, name, reason)
            return
        if self._authorizer is None:
            self._note_log(reply, name)
        site.hospital = name
        site.studies.add(self._study.digest)
        yield channel.Introduced(connection, described)

    def _declined(self, connection: Connection, error: Error) -> Iterator[News]:
        """A site does not take part, or goes by a name that the study does not have for it."""
        node_id = self._sites[connection].node_id
        known = self._known(node_id)
        told = read_error(error)
        said, reason = told.hospital, told.reason
        if error.code in (NODE_LEFT, UNREADABLE) or (
            self._authorizer is not None and known is None
        ):
            return  # it is gone, or will be
        hospital = known or said
        if not is_name(said):  # no words of its hospital's
            who, reason = known or f"node {node_id}", printable(reason)
        elif hospital not in self._study.everyone:
            who, reason = hospital, f"the study has no hospital {hospital!r}"
            if known is None:
                reason += "; check `name` in the site file"
        elif said == hospital:
            is_undecided = told.code == Undecided.__name__
            self._sites[connection].is_undecided = is_undecided
            yield channel.Declined(connection, hospital, reason, is_undecided)
            return
        else:
            who = hospital
            reason = f"its site file calls it {said!r}; `name` there must be {hospital!r}"
        if known in self._study.everyone:
            yield channel.Away(known, reason, connection)
        elif not self._others_stay:  # else it waits for another study
            yield channel.Denied(who, None, reason)

    def _denied(self, connection: Connection, who: str, reason: str) -> channel.Denied:
        who, reason = printable(who), printable(reason)  # a site's own words may be megabytes
        self.turn_away(connection, reason)
        return channel.Denied(who, None, reason)

    def _note_log(self, reply: Message, hospital: HospitalName | None) -> None:
        """Keep what the site says is the hash of its log, which it cannot change unseen then."""
        head = log_head(reply)
        if head is not None and hospital is not None:
            self._witness(hospital, reply.metadata.message_type, head)

    def _known(self, node_id: int) -> HospitalName | None:
        """Return the hospital that the node's key belongs to; None where it is not let in."""
        return None if self._authorizer is None else self._authorizer.hospital_of(node_id)

    def _may_be(self, name: str, node_id: int) -> bool:
        return self._authorizer is None or self._known(node_id) == name

    def _with_studies(
        self, messages: Iterable[Message], by_node: Mapping[int, Connection], deadline: float
    ) -> Iterator[Message]:
        """Yield the replies; sites that lack the study are asked again, and theirs come last."""
        again = []
        for message in messages:
            if not message.has_error() and wire.asks_for_study(message.content):
                again.append(self._with_study(by_node[message.metadata.src_node_id], deadline))
            else:
                yield message
            del message
        for replies in again:
            yield from replies

    def _with_study(self, connection: Connection, deadline: float) -> Iterable[Message]:
        sent, seconds = self._sent[connection], max(0.0, deadline - self.now())
        record = wire.Encoder().encode(sent.request, with_study=True)
        sent.bytes_sent += wire.num_bytes(record)
        message = self._request(record, self._sites[connection].node_id, sent.request, seconds)
        return self._grid.send_and_receive([message], timeout=seconds)

    def _reply(self, connection: Connection, sent: _Sent, message: Message) -> Reply:
        content: channel.Result | Rejection | Absence
        code = None
        self._note_log(message, self._sites[connection].hospital)
        if message.has_error():
            code, told = message.error.code, read_error(message.error)
            absence = Absence(told.reason, over=told.code == RunOver.__name__)
            content = Rejection(told.reason) if code == UNREADABLE else absence
        else:
            try:
                content = _decoded(sent.request, message.content)
            except ErosionError as problem:
                content = Rejection(str(problem))
        seconds, received = self.now() - sent.at, received_bytes(message)
        return Reply(connection, content, code == NODE_LEFT, seconds, sent.bytes_sent, received)

    def _request(
        self, record: RecordDict, node_id: int, request: Request, seconds: float
    ) -> Message:
        kind, group = wire.EVALUATE, ""
        if isinstance(request, TrainRequest):
            kind, group = wire.train_type(request.step), f"{request.arm}/{request.round}"
        ttl = max(seconds, 1.0)  # a message that is past its time cannot be made
        return self._message(record, node_id, kind, ttl, request.most_reply_bytes, group)

    def _message(
        self,
        record: RecordDict,
        node_id: int,
        kind: str,
        ttl: float,
        most_reply_bytes: int | None = 0,
        group_id: str = "",
    ) -> Message:
        return BoundedMessage(
            record,
            node_id,
            kind,
            most_reply_bytes=most_reply_bytes,
            ttl=ttl,
            group_id=group_id,
            most_head_bytes=self._most_head_bytes,
        )


def _decoded(request: Request, record: RecordDict) -> channel.Result:
    if isinstance(request, EvaluateRequest):
        return wire.decode_evaluate_result(record)
    if request.wants_update:
        dim = None if request.sent is None else len(request.sent)
        return wire.decode_train_result(record, request.study.federation.compression, dim)
    return wire.decode_step_result(record)
