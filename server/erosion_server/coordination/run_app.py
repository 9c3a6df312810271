"""`erosion server --app`: a Flower ServerApp over our link, as an ordinary Grid."""

import logging
import secrets
import tomllib
from collections.abc import Iterable
from threading import Lock
from types import SimpleNamespace

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import ServerApp

from erosion_common.errors import ErosionError, RunError, StudyError
from erosion_common.protocol.flower import COORDINATOR_NODE_ID, identify
from erosion_common.protocol.frames import Plain, RunNews
from erosion_server.coordination.end_notices import FAILED, EndNotices
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link import LinkGrid
from erosion_server.link.channel import LONGEST_ROUND_SECONDS, MessageGrid
from erosion_server.link.link import make_link

LOOK_SECONDS = 0.05  # between two looks of a thread when another one has taken the news


class AppGrid(MessageGrid):
    """Gives replies as a list, which Flower's strategies walk twice, to any thread."""

    def __init__(self, grid: LinkGrid, run_id: int) -> None:
        self._grid, self._lock = grid, Lock()
        self.set_run(SimpleNamespace(run_id=run_id))

    def get_node_ids(self) -> list[int]:
        """Return the sites that are connected."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send without waiting."""
        with self._lock:
            return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived."""
        with self._lock:
            return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask, and wait for all answers, or as long as `timeout` says."""
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        clock = self._grid.clock
        end = clock.now() + (LONGEST_ROUND_SECONDS if timeout is None else timeout)
        try:
            while waiting:
                is_over = clock.now() >= end
                for reply in self.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    replies.append(reply)
                if is_over:
                    break
                if waiting:
                    self._grid.wait_for_news(min(LOOK_SECONDS, max(0.0, end - clock.now())))
        finally:
            self._grid.forget(waiting)
        return replies


logger = logging.getLogger("erosion.app")


def run_app(
    app: ServerApp,
    run_config: dict[str, Plain],
    address: str | None,
    federation: FederationFolder | None,
) -> None:
    """Listen, let the app run to its end, and say goodbye. Raises LinkError, RunError."""
    identify()
    run = RunNews(secrets.randbits(62) + 1, run_config)
    link = make_link((), address, federation)
    link.grid.run_news = run
    link.start()
    logger.info("listening at %s", link.address)
    try:
        app(
            AppGrid(link.grid, run.number),
            Context(run.number, COORDINATOR_NODE_ID, {}, RecordDict(), dict(run_config)),
        )
        EndNotices(link).say("")
    except Exception as problem:
        EndNotices(link).say("", FAILED)  # an app's run is never resumed
        if isinstance(problem, ErosionError):
            raise
        logger.info("the app failed", exc_info=True)
        raise RunError(
            f"The app failed ({type(problem).__name__}: {problem}). -v shows where."
        ) from problem
    finally:
        link.stop()


def run_config_of(text: str) -> dict[str, Plain]:
    """`rounds=20 lr=0.1 name="x"`: values as in TOML. Raises StudyError."""
    values: dict[str, Plain] = {}
    # A value may be a text with spaces, so that every word could end one.
    waiting = ""
    for word in text.split(" "):
        waiting = f"{waiting} {word}" if waiting else word
        try:
            parsed = tomllib.loads(waiting)
        except (ValueError, RecursionError):
            continue
        for key, value in parsed.items():
            if not isinstance(value, Plain):
                raise StudyError(f"--run-config: {key} is neither a text nor a number.")
            values[key] = value
        waiting = ""
    if waiting:
        raise StudyError(
            f"--run-config: {waiting!r} cannot be read; write KEY=VALUE with values as in TOML, for"
            " example 'rounds=20 lr=0.1 name=\"north\"'."
        )
    return values
