"""Asks the hospitals of one study to describe their columns."""

import time
from collections.abc import Callable

from flwr.app import Message

from erosion_common.errors import ErosionError, Undecided
from erosion_common.protocol import wire
from erosion_common.protocol.flower import NODE_UNAVAILABLE, BoundedMessage, read_error
from erosion_common.protocol.messages import SummaryReply
from erosion_common.rounds.bounds import most_head_bytes
from erosion_common.rounds.misfits import problem_with_summary
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_server.link import Link
from erosion_server.output.description import Descriptions

ANSWER_SECONDS = 300.0  # a site may load its data before it answers
LOOK_SECONDS = 0.5


def problem_with(reply: SummaryReply, study: Study, hospital: str) -> str | None:
    """Return why a description cannot be used; None where it can."""
    if reply.hospital != hospital:
        return f"it answered as {printable(reply.hospital, at_most=50)!r}"
    return problem_with_summary(reply, study)


def ask_all(
    study: Study, link: Link, seconds: float, tell: Callable[[str], None] = lambda _: None
) -> Descriptions:
    """Return the replies within `seconds`; a site that decides later is asked again."""
    asked: dict[str, int] = {}  # request -> node
    seen: set[tuple[int, tuple[int, int]]] = set()  # nodes and their visits
    replies: dict[str, SummaryReply] = {}
    declined: dict[str, str] = {}
    undecided: dict[str, str] = {}
    end = time.monotonic() + seconds
    while set(study.hospitals) - {*replies, *declined} and time.monotonic() < end:
        for node, visit in sorted(set(link.grid.visits().items()) - seen):
            seen.add((node, visit))
            message = BoundedMessage(
                wire.encode_describe(study),
                node,
                wire.SUMMARY,
                most_reply_bytes=0,
                ttl=ANSWER_SECONDS,
                most_head_bytes=most_head_bytes(study),
            )
            asked |= dict.fromkeys(link.grid.push_messages([message]), node)
        for reply in link.grid.pull_messages(list(asked)):
            known = link.hospital_of(asked.pop(reply.metadata.reply_to_message_id))
            if link.enrolled_only and known is None:
                continue  # its key was revoked since it was asked
            name, told = _read(reply, study, known)
            if name not in study.hospitals or name in replies:
                continue
            if not isinstance(told, str):
                replies[name] = told
                declined.pop(name, None)
                undecided.pop(name, None)
                tell(f"{name} answered")
            elif reply.has_error() and reply.error.code == NODE_UNAVAILABLE:
                continue  # it left, and may come back
            elif reply.has_error() and read_error(reply.error).code == Undecided.__name__:
                undecided[name] = told
                tell(f"{name}: {told}")
            else:
                declined[name] = told
                tell(f"{name} declined: {told}")
        link.grid.wait_for_news(LOOK_SECONDS)
    link.grid.forget(list(asked))
    return Descriptions(study, replies, {**undecided, **declined})


def _read(reply: Message, study: Study, known: str | None) -> tuple[str, SummaryReply | str]:
    """Return who answered, and what: a description, or why there is none."""
    if reply.has_error():
        said = read_error(reply.error)
        return known or said.hospital, printable(said.reason)
    try:
        told = wire.decode_header(reply.content, SummaryReply)
    except ErosionError as problem:
        return known or "", printable(str(problem))
    name = known or told.hospital
    return name, problem_with(told, study, name) or told
