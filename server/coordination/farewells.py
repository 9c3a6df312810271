"""Tells sites that their study has ended, also those that are busy or away at that moment."""

from collections.abc import Collection, Iterable

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.protocol import wire
from erosion.common.protocol.flower_messages import BoundedMessage
from erosion.common.study.study import Study
from erosion.server.link import Link

CONFIRMED_SECONDS = 2.0  # that are waited for sites to confirm; who is busy does so later
TTL_SECONDS = 3600.0
ENDED, FAILED = "the study has ended", "the study has failed"
WITHDRAWN = "the study was taken out of the queue"


class Farewells:
    """Of all studies of a link, for one thread. What is owed is forgotten with the program."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._asked: set[HospitalName] = set()  # about a study whose end they have not heard of
        self._owed: dict[HospitalName, str] = {}  # of these, those whose study has ended: the words
        # Notices that are under way, and to whom; None: to a site that nobody has enrolled.
        self._told: dict[str, HospitalName | None] = {}

    def asks(self, hospital: HospitalName) -> None:
        """A site of this hospital is asked about a study: it is to hear of that one's end."""
        self._owed.pop(hospital, None)
        self._asked.add(hospital)
        self._let_go(hospital)

    def say(self, study: Study | None = None, text: str = ENDED) -> None:
        """Tell the sites that are here, and wait a moment for them to confirm it.

        `study`: only its hospitals are told, as far as sites are enrolled; None: everybody.
        """
        nodes = self._link.grid.get_node_ids()
        if study is not None and self._link.enrolled_only:
            self._owed |= {name: text for name in study.hospitals if name in self._asked}
            nodes = [node for node in nodes if self._link.hospital_of(node) in study.hospitals]
        self._tell(nodes, text)
        clock = self._link.grid.clock
        end = clock.now() + CONFIRMED_SECONDS
        while self._told and (left := end - clock.now()) > 0:
            self._link.grid.wait_for_news(left)
            self._take_confirmations()
        self._let_go(None)  # it comes back as another

    def catch_up(self, named: Collection[HospitalName] = ()) -> None:
        """Tell those who are owed it and are here now, but for the hospitals `named`."""
        self._take_confirmations()
        waited_for = {*named, *self._told.values()}
        if not self._owed.keys() - waited_for:
            return
        for node in self._link.grid.get_node_ids():
            name = self._link.hospital_of(node)
            if name in self._owed and name not in waited_for:
                self._tell([node], self._owed[name])

    def _tell(self, nodes: Iterable[int], text: str) -> None:
        notice = wire.encode_notice(wire.Notice(text=text, final=False, study_ended=True))
        for node in nodes:
            message = BoundedMessage(notice, node, wire.NOTICE, most_reply_bytes=0, ttl=TTL_SECONDS)
            name = self._link.hospital_of(node) if self._link.enrolled_only else None
            for request in self._link.grid.push_messages([message]):
                self._told[request] = name

    def _let_go(self, hospital: HospitalName | None) -> None:
        """Wait for its confirmation no more. The notice stays where it is."""
        requests = [request for request, name in self._told.items() if name == hospital]
        for request in requests:
            del self._told[request]
        self._link.grid.forget(requests, is_told=False)

    def _take_confirmations(self) -> None:
        for reply in self._link.grid.pull_messages(list(self._told)):
            name = self._told.pop(reply.metadata.reply_to_message_id)
            if name is not None and not reply.has_error():
                self._owed.pop(name, None)
                self._asked.discard(name)
