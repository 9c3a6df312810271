"""Asks the sites that connect to describe their patients, until all have answered."""

import time
from collections.abc import Callable

from flwr.app import Message

from erosion_common.errors import ErosionError, Undecided
from erosion_common.protocol import wire
from erosion_common.protocol.flower import NODE_UNAVAILABLE, BoundedMessage, read_error
from erosion_common.protocol.messages import SummaryReply
from erosion_common.rounds.bounds import most_head_bytes
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_server.description.description import Descriptions, problem_with
from erosion_server.link import Link

ANSWER_SECONDS = 300.0  # a site may load its data before it answers
LOOK_SECONDS = 0.5


def ask_all(
    study: Study, link: Link, seconds: float, tell: Callable[[str], None] = lambda _: None
) -> Descriptions:
    """Return the hospitals' replies within `seconds`, over a link that is open.

    A site where a person has yet to decide says so after that, and is asked again.
    """
    asked: dict[str, tuple[int, tuple[int, int]]] = {}  # request -> node and its visit
    seen: set[tuple[int, tuple[int, int]]] = set()
    description = Descriptions(study, {}, {})
    undecided: dict[str, str] = {}
    end = time.monotonic() + seconds
    while description.missing and time.monotonic() < end:
        for node, session in sorted(set(link.grid.visits().items()) - seen):
            seen.add((node, session))
            message = BoundedMessage(
                wire.encode_describe(study),
                node,
                wire.SUMMARY,
                most_reply_bytes=0,
                ttl=ANSWER_SECONDS,
                most_head_bytes=most_head_bytes(study),
            )
            for request in link.grid.push_messages([message]):
                asked[request] = node, session
        for reply in link.grid.pull_messages(list(asked)):
            node, _ = asked.pop(reply.metadata.reply_to_message_id)
            known = link.hospital_of(node)
            if link.enrolled_only and known is None:
                continue  # its key was revoked since it was asked
            name, told = _read(reply, study, known)
            if name not in study.hospitals or name in description.replies:
                continue
            if isinstance(told, str):
                if reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
                    continue  # it left, and may come back
                if reply.has_error() and read_error(reply.error).code == Undecided.__name__:
                    undecided[name] = told
                    tell(f"{name}: {told}")
                    continue
                description = Descriptions(
                    study, description.replies, {**description.declined, name: told}
                )
                tell(f"{name} declined: {told}")
            else:
                replies = {**description.replies, name: told}
                declined = {n: why for n, why in description.declined.items() if n != name}
                description = Descriptions(study, replies, declined)
                tell(f"{name} answered")
        link.grid.wait_for_news(LOOK_SECONDS)
    link.grid.forget(list(asked))
    waiting = {name: why for name, why in undecided.items() if name not in description.replies}
    return Descriptions(study, description.replies, {**waiting, **description.declined})


def _read(reply: Message, study: Study, known: str | None) -> tuple[str, SummaryReply | str]:
    """Return who answered, and what: a description, or why there is none."""
    if reply.has_error():
        said = read_error(reply.error)
        return known or said.hospital, printable(said.reason)
    try:
        told = wire.decode_summary_reply(reply.content)
    except ErosionError as problem:
        return known or "", printable(str(problem))
    problem_found = problem_with(told, study, known or told.hospital)
    return known or told.hospital, problem_found or told
