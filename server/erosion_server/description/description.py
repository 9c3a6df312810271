"""The hospitals' descriptions of one study: asked for, and who gave none."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message

from erosion_common.errors import ErosionError, Undecided
from erosion_common.protocol import messages, wire
from erosion_common.protocol.flower import NODE_UNAVAILABLE, BoundedMessage, read_error
from erosion_common.protocol.messages import ColumnSummary, Range, SummaryReply, count_range
from erosion_common.rounds.bounds import most_head_bytes
from erosion_common.rounds.misfits import Misfit, misfits, problem_with_summary
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_server.link import Link

ANSWER_SECONDS = 300.0  # a site may load its data before it answers
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Descriptions:
    """The replies of the hospitals."""

    study: Study
    replies: Mapping[str, SummaryReply]  # by hospital
    declined: Mapping[str, str]  # hospital -> why

    @property
    def missing(self) -> list[str]:
        """Hospitals that neither answered nor declined."""
        return [n for n in self.study.hospitals if n not in (*self.replies, *self.declined)]

    @property
    def columns(self) -> list[str]:
        """Every column that a hospital described, in the study's order."""
        return list(dict.fromkeys(c.name for r in self.replies.values() for c in r.columns))

    def of(self, column: str) -> dict[str, ColumnSummary]:
        """Return one column by hospital."""
        return {
            hospital: found
            for hospital, reply in self.replies.items()
            for found in reply.columns
            if found.name == column
        }

    @property
    def figures(self) -> dict[str, Any]:
        """All of it as JSON, each figure with the range that it lies in."""
        return {
            "study": self.study.name,
            "hospitals": {name: _figures(reply) for name, reply in self.replies.items()},
            "declined": dict(self.declined),
            "missing": self.missing,
            "misfits": [found.model_dump() for found in self.misfits],
        }

    @property
    def misfits(self) -> list[Misfit]:
        """Everything that looks wrong."""
        return misfits(self.replies)


def _figures(reply: messages.Summary) -> dict[str, Any]:
    cell = reply.min_cell
    return {
        "min_cell": cell,
        "patients": _figure(reply.num_patients, count_range(reply.num_patients, cell)),
        "rows": _figure(reply.num_samples, count_range(reply.num_samples, cell)),
        "unreadable_at_most": reply.num_unreadable,
        "columns": {column.name: _column(column, cell) for column in reply.columns},
    }


def _column(column: ColumnSummary, cell: int) -> dict[str, Any]:
    off = column.off_by(cell)
    figures: dict[str, Any] = {
        "kind": column.kind,
        "patients": _figure(column.count, column.count_range(cell)),
        "missing": _figure(column.missing, count_range(column.missing, cell)),
    }
    if column.mean is not None:
        figures["mean"] = _figure(column.mean, Range(column.mean - off, column.mean + off))
    if column.deviation is not None:
        figures["deviation"] = _figure(column.deviation, column.deviation_range(cell))
    if column.quantiles:
        figures["quantiles"] = {
            str(level): None if q is None else _figure(q, Range(q - off, q + off))
            for level, q in zip(messages.QUANTILES, column.quantiles, strict=False)
        }
    if column.shares:
        figures["categories"] = {
            category: {
                "patients": _figure(disclosed, count_range(disclosed, cell)),
                "share": _figure(
                    disclosed / column.count if column.count else 0.0,
                    column.share_range(category, cell),
                ),
            }
            for category, disclosed in column.shares.items()
        }
    return figures


def _figure(disclosed: float, found: Range) -> dict[str, float]:
    return {"disclosed": disclosed, "low": found.low, "high": found.high}


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
