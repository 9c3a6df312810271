"""Tells sites that their study has ended, including those that are busy or away at that moment."""

import threading
from collections.abc import Collection, Iterable
from itertools import islice

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.protocol import wire
from erosion_common.protocol.flower import BoundedMessage
from erosion_server.link import Link

CONFIRM_SECONDS = 2.0  # in which sites can confirm; a busy one does so later
TTL_SECONDS = 3600.0
ENDED, FAILED = "the study has ended", "the study has failed"
WITHDRAWN = "the study was taken out of the queue"
Run = str  # a run's name at the sites; that of a whole run, not of a part for one user


class EndNotices:
    """Of all studies of a link, for any thread. Pending ones are lost with the program."""

    def __init__(self, link: Link) -> None:
        self._link, self._grid = link, link.open()
        self._lock = threading.Lock()
        self._running: dict[Run, Collection[HospitalName]] = {}
        self._asked: dict[HospitalName, set[Run]] = {}  # that it has not confirmed the end of
        self._ended: dict[Run, str] = {}  # and the words for it
        # Requests under way: the site's hospital, None where nobody is enrolled, and the runs.
        self._sent: dict[str, tuple[HospitalName | None, tuple[Run, ...]]] = {}

    def begin(self, run: Run, hospitals: Collection[HospitalName]) -> None:
        """Take up a study: its hospitals hear of other ends when it ends."""
        with self._lock:
            self._running[run] = hospitals
            self._ended.pop(run, None)

    def asks(self, run: Run, hospital: HospitalName) -> None:
        """Note that a hospital's site is asked about the run, and is to hear of its end."""
        with self._lock:
            self._asked.setdefault(hospital, set()).add(run)

    def say(self, run: Run, text: str = ENDED) -> None:
        """Notify the run's sites, or all where nobody is enrolled, and wait a moment."""
        with self._lock:
            hospitals = self._running.pop(run, None)
            self._ended[run] = text
            sent = []
            for node in self._grid.get_node_ids():
                name = self._link.hospital_of(node) if self._link.enrolled_only else None
                if hospitals is None or name is None or name in hospitals:
                    sent += self._send(node, name, (run, *self._pending(name)), text)
        clock = self._grid.clock
        end = clock.now() + CONFIRM_SECONDS
        while self._sent.keys() & sent and (left := end - clock.now()) > 0:
            self._grid.wait_for_news(left)
            self._take_confirmations()
        if not self._link.enrolled_only:  # a site that is away comes back under another number
            self._grid.forget(list(self._sent), is_told=False)
            self._sent.clear()

    def resend(self) -> None:
        """Notify the sites that missed an end and are here now, but those of running studies."""
        self._take_confirmations()
        if not self._ended or not self._link.enrolled_only:
            return
        with self._lock:
            busy = {name for name, _ in self._sent.values()}.union(*self._running.values())
            names = {name for name in self._asked.keys() - busy if self._pending(name)}
            for node in self._grid.get_node_ids() if names else ():
                if (name := self._link.hospital_of(node)) in names:
                    pending = self._pending(name)
                    self._send(node, name, pending, self._ended[next(iter(pending))])

    def _pending(self, hospital: HospitalName | None) -> set[Run]:
        return self._asked.get(hospital or "", set()) & self._ended.keys()

    def _send(
        self, node: int, hospital: HospitalName | None, runs: Iterable[Run], text: str
    ) -> list[str]:
        # What does not go into one notice stays pending.
        ended = tuple(sorted({*islice(runs, wire.MOST_ENDED)}))
        notice = wire.encode_header(wire.Notice(text=text, final=False, ended=ended))
        message = BoundedMessage(notice, node, wire.NOTICE, most_reply_bytes=0, ttl=TTL_SECONDS)
        requests = self._grid.push_messages([message])
        self._sent |= dict.fromkeys(requests, (hospital, ended))
        return requests

    def _take_confirmations(self) -> None:
        with self._lock:
            for reply in self._grid.pull_messages(list(self._sent)):
                hospital, runs = self._sent.pop(reply.metadata.reply_to_message_id)
                if hospital is not None and not reply.has_error():
                    self._asked[hospital] = self._asked.get(hospital, set()).difference(runs)
