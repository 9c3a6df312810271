"""The site agent: stays connected, trains when asked, and reconnects after any outage."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from flwr.app import Context, Error, Message, RecordDict

from erosion_client.connection.credentials import connection_error
from erosion_client.connection.site_link import OURS, SiteLink, wrong_clock
from erosion_client.records.audit_log import SiteObservers
from erosion_common.errors import LinkError, NotReady, SiteError
from erosion_common.protocol import wire
from erosion_common.protocol.flower import CLIENT_APP_RAISED_EXCEPTION, run_of
from erosion_common.protocol.frames import LONGEST_REASON, RunNews
from erosion_common.protocol.wire import WireError
from erosion_common.support import expiry
from erosion_common.support.logs import about
from erosion_common.support.text import printable

logger = logging.getLogger("erosion.agent")


BYTES_EACH = 1024  # of an answer's words; a longer one counts as several


class ErrorPace:
    """Limits answers that are errors, introductions, confirmations of a notice, or repeated.

    100 are answered at once and then one a second; 2,000 a day, and then one in 40 seconds.
    """

    def __init__(self) -> None:
        self._left = {(100, 1.0): 100.0, (2000, 40.0): 2000.0}  # by number at once, seconds each
        self._since = 0.0

    def seconds_to_wait(self, now: float, num_bytes: int = 0) -> float:
        """Return seconds to wait after an answer with these bytes of words at `now`."""
        passed, self._since = now - self._since, now
        waits = [0.0]
        for (most, each), left in self._left.items():
            left = min(most, left + passed / each) - max(1.0, num_bytes / BYTES_EACH)
            self._left[most, each] = left
            waits.append(-left * each)
        return max(waits)


FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.2, 10.0
MOST_DOUBLINGS = 10  # before the first retry; grows up to the last
STEADY_SECONDS = 10.0  # of a connection; one that breaks earlier, unused, is no sign of recovery


class Outage:
    """Begins with the first failed try, and ends with a connection that was of use."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._tries = 0
        self._said = ""  # the last reason that was reported

    def is_news(self, why: str) -> bool:
        """Return whether a failed try has another reason than the last one reported."""
        if self._began is None:
            self._began = time.monotonic()
        before, self._said = self._said, why
        return why != before

    def connected(self) -> None:
        """Note that a connection is open: its end is news, however it ends."""
        self._said = ""

    def disconnected(self, since: float, *, was_used: bool) -> None:
        """Note that the connection opened at `since` has ended."""
        if was_used or time.monotonic() - since >= STEADY_SECONDS:
            self._began, self._tries = None, 0

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def next_pause(self) -> float:
        """Return seconds until the next try; full jitter: sites must not all reconnect at once."""
        doubled = min(self._tries, MOST_DOUBLINGS)  # an outage of hours is a thousand tries
        longest = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**doubled)
        self._tries += 1
        return random.uniform(FIRST_RETRY_SECONDS / 2, longest)


LOOK_SECONDS = 0.2  # how soon a stop is noticed
MOST_RUNS = 1000  # runs that have not ended
_OF_COLUMNS = (wire.DESCRIBE, wire.SUMMARY)  # long where an approved study has many of them
_PACED = (wire.NOTICE, *_OF_COLUMNS)  # not in any budget


@dataclass(frozen=True, slots=True)
class Until:
    """When a site ends without being stopped; by default never."""

    give_up_seconds: float | None = None  # the coordinator was out of reach for so long
    study_ends: bool = False  # a study that this site took part in has ended


class Agent:
    """Runs one site's ClientApp for one coordinator, until `stop` is set."""

    def __init__(
        self,
        connect: Callable[[], SiteLink],
        app: Callable[[Message, Context], Message],
        *,
        address: str,
        encrypted: bool = False,
        until: Until = Until(),
        watchers: Sequence[SiteObservers] = (),
        has_changed: Callable[[], bool] = lambda: False,
        has_decided: Callable[[], bool] = lambda: False,
        is_repeated: Callable[[], bool] = lambda: False,
        study_named: Callable[[str], str | None] = lambda _digest: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Serve `app`; `address` and `encrypted` describe what `connect` connects to, for messages.

        `is_repeated` returns whether `app`'s last answer to a round was given before, and
        `study_named` the name of the approved study with a digest, for the log.
        A few times a second `has_changed` is asked whether to reconnect, and `has_decided` whether
        people have decided about a study that the coordinator should ask about again.
        """
        self._has_changed = has_changed
        self._has_decided, self._is_repeated = has_decided, is_repeated
        self._connect, self._app, self._address = connect, app, address
        self._study_named = study_named
        self._encrypted, self._until = encrypted, until
        self._watchers = watchers
        self._pace = ErrorPace()
        self._has_answered = False  # a request received on the current connection
        self._unanswered: Message | None = None  # the last request, while it is being answered
        self._takes_part: dict[str, bool] = {}  # by run that it was asked about and has not ended
        self._has_heard_an_end = False  # of a study that this site took no part in
        self.stop = stop or threading.Event()

    def run(self) -> None:
        """Serve until stopped. Raises LinkError where trying again is useless."""
        outage = Outage()
        while not self.stop.is_set():
            look_into: Callable[[], str] = str
            try:
                line = self._connect()
                with line as connection:
                    self._stay(connection, outage)
                continue
            except grpc.RpcError as problem:
                trouble = connection_error(problem, self._address, encrypted=self._encrypted)
                sentence = trouble.text[:1].upper() + trouble.text[1:]
                look_into = line.look_into if trouble.is_tls else str
                if trouble.is_final:
                    raise LinkError(f"{sentence}.") from None
                remedy = (
                    " Check that the coordinator runs and that coordinator.address is right;"
                    " `erosion check` looks into it."
                )
            except NotReady as problem:
                self._wait_until_ready(problem)
                continue
            except SiteError as problem:  # keys have expired; they or the site file are replaced
                sentence, remedy = problem.problem.reason, " `erosion check` looks into it."
            # On every retry: at the first one the coordinator may be restarting.
            more = look_into()
            said = f"The coordinator at {self._address}: {more}" if more else sentence
            if outage.is_news(said):
                logger.warning("%s; trying again", said)
                for watcher in self._watchers:
                    watcher.disconnected(said)
            longest = self._until.give_up_seconds
            if longest is not None and outage.seconds >= longest:
                raise LinkError(f"{sentence}. Gave up after {outage.seconds:.0f} s.{remedy}")
            self.stop.wait(outage.next_pause())

    def _wait_until_ready(self, problem: NotReady) -> None:
        """Stay signed out until the last request could be answered, so that no round is lost."""
        said = ""
        while not self.stop.is_set():
            if (words := str(problem)) != said:
                logger.error("%s", said := words)
                for watcher in self._watchers:
                    watcher.disconnected(words)
            self.stop.wait(LAST_RETRY_SECONDS)
            if (message := self._unanswered) is None or self.stop.is_set():
                return
            try:
                with about(**self._asked_in(message)):
                    if not (reply := self._reply_to(message)).has_error():
                        self._log(message, reply)  # noted and logged, as if it were lost on its way
                return
            except NotReady as again:
                problem = again
            except SiteError:  # of the site file, which is read again as it connects
                return

    def _stay(self, connection: SiteLink, outage: Outage) -> None:
        theirs = connection.welcome.versions or OURS
        words = printable(theirs.words)
        logger.info("connected to the coordinator at %s, %s", self._address, words)
        if clock := wrong_clock(connection.welcome.ahead, connection.welcome.uncertain):
            logger.warning("%s", clock)
        since = time.monotonic()
        outage.connected()
        for watcher in self._watchers:
            watcher.connected(clock)
        self._has_answered, self._unanswered = False, None
        try:
            self._serve(connection)
        finally:
            outage.disconnected(since, was_used=self._has_answered)

    def _serve(self, connection: SiteLink) -> None:
        once_a_day, expires = expiry.OnceADay(), connection.welcome.expires
        while not self.stop.is_set() and not self._has_changed():
            if once_a_day.is_due() and expires is not None and expiry.ends_soon(expires):
                words = expiry.in_words(expires)
                logger.warning(
                    "this site's certificate is %s; have the coordinator renew it", words
                )
            if self._has_decided():
                connection.ask_again()
            if (message := connection.receive(LOOK_SECONDS)) is not None:
                with about(**self._asked_in(message)):
                    self._answer(connection, message)

    def _asked_in(self, message: Message) -> dict[str, str | int]:
        """Return what a request is about, for the log; quoted, and nothing that makes no sense."""
        asked = wire.header_of(message.content)
        digest = asked.get("digest")
        study = self._study_named(digest) or digest[:12] if isinstance(digest, str) else None
        found = {"study": study, **{key: asked.get(key) for key in ("run", "arm", "round")}}
        return {key: value for key, value in found.items() if isinstance(value, str | int)}

    def _answer(self, connection: SiteLink, message: Message) -> None:
        metadata = message.metadata
        if metadata.message_type == wire.NOTICE:
            self._take_notice(connection, message)
            return
        started = time.monotonic()
        self._unanswered = message
        reply = self._reply_to(message)
        logger.debug(
            "%s of round %s took %.3f s",
            printable(metadata.message_type),
            printable(metadata.group_id),
            time.monotonic() - started,
        )
        if connection.is_dropped(message):
            group = printable(metadata.group_id)
            where = f"round {group}" if group else "the study"
            logger.info("%s went on without this site's answer", where)
            if metadata.message_type == wire.DESCRIBE:  # it comes too late for this study
                self._note_part(_run_in(message), takes_part=False)
            self._keep_pace(message, reply)  # a withdrawn question has written a line, too
            return
        self._send(connection, message, reply)

    def _reply_to(self, message: Message) -> Message:
        """Return the app's answer. Raises SiteError where nothing may leave."""
        metadata = message.metadata
        run = run_of(message) or RunNews(metadata.run_id)
        context = Context(run.number, metadata.dst_node_id, {}, RecordDict(), dict(run.config))
        try:
            return self._app(message, context)
        except SiteError:
            raise
        except Exception as problem:  # noqa: BLE001 - reported in the answer and in the log
            # No handler has such a type. The site answers every request and survives.
            return _nonsense(message, f"no request of this program ({type(problem).__name__})")

    def _log(self, request: Message, reply: Message) -> str | None:
        """Log what is about to be sent; return the head of the log. Raises NotReady."""
        heads = [watcher.sending(request, reply) for watcher in self._watchers]
        return heads[-1] if heads else None

    def _take_notice(self, connection: SiteLink, message: Message) -> None:
        try:
            notice = wire.decode_header(message.content, wire.Notice)
        except WireError as problem:
            self._send(connection, message, _nonsense(message, str(problem)))
            return
        text = printable(notice.text)
        said = wire.encode_header(notice.model_copy(update={"text": text}))
        self._send(connection, message, Message(said, reply_to=message))
        if notice.final:
            raise LinkError(f"The coordinator at {self._address} rejected this site: {text}")
        logger.info("the coordinator says: %s", text)
        if not notice.ended:
            self._takes_part[notice.run] = False
            return
        parts = [self._takes_part.pop(run) for run in [*self._takes_part] if notice.ends(run)]
        if not self._until.study_ends or (not parts and self._takes_part):  # others are running
            return
        # An app's run asks nobody whether it takes part. Where a confirmation is lost, the same
        # end notice is sent again.
        is_own = any(parts) or not (parts or self._has_heard_an_end)
        if is_own and not any(self._takes_part.values()):
            self.stop.set()
        self._has_heard_an_end = True

    def _note_part(self, run: str, *, takes_part: bool) -> None:
        self._takes_part[run] = self._takes_part.get(run, False) or takes_part
        while len(self._takes_part) > MOST_RUNS:
            del self._takes_part[next(iter(self._takes_part))]

    def _send(self, connection: SiteLink, request: Message, reply: Message) -> None:
        if reply.has_error():  # shortened to one line, as it is logged and sent
            reason = printable(reply.error.reason or "", at_most=LONGEST_REASON)
            reply = Message(Error(reply.error.code, reason), reply_to=request)
        connection.reply(request, reply, self._log(request, reply))
        self._has_answered, self._unanswered = True, None
        kind = request.metadata.message_type
        if kind == wire.DESCRIBE:
            self._note_part(_run_in(request), takes_part=not reply.has_error())
        elif not (self._takes_part or _is_paced(request, reply)):
            self._note_part("", takes_part=True)  # an app's run asks nobody before
        self._keep_pace(request, reply)

    def _keep_pace(self, request: Message, reply: Message) -> None:
        if _is_paced(request, reply) or self._is_repeated():
            if reply.has_error():
                words = reply.error.reason or ""
            else:
                is_of_columns = request.metadata.message_type in _OF_COLUMNS
                words = "" if is_of_columns else wire.header_text(reply.content)
            self.stop.wait(self._pace.seconds_to_wait(time.monotonic(), len(words.encode())))


def _is_paced(request: Message, reply: Message) -> bool:
    is_unbounded = reply.has_error() or request.metadata.message_type in _PACED
    return is_unbounded or wire.asks_for_study(reply.content)


def _run_in(request: Message) -> str:
    return str(wire.header_of(request.content).get("run") or "")


def _nonsense(message: Message, what: str) -> Message:
    kind = printable(message.metadata.message_type, at_most=60)
    logger.error("%s: %s", kind, what)
    error = Error(CLIENT_APP_RAISED_EXCEPTION, f"this site cannot answer {kind!r}: {what}")
    return Message(error, reply_to=message)
