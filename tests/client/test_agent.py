"""The site agent's pauses between its tries to connect."""

import json
import random
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from erosion_client.audit.audit_log import AuditLog
from erosion_client.audit.site_observers import SiteObservers
from erosion_client.connection import agent as agent_module
from erosion_client.connection.agent import (
    FIRST_RETRY_SECONDS,
    GONE_SECONDS,
    LAST_RETRY_SECONDS,
    LOST_SECONDS,
    Agent,
    Until,
)
from erosion_client.connection.site_link import LostLink, Welcome
from erosion_common.audit.log_files import hash_of
from erosion_common.errors import LinkError, SiteError
from erosion_common.program.command_line import parser
from erosion_common.protocol import wire
from erosion_common.protocol.flower import RequestMessage
from erosion_common.protocol.frames import LONGEST_REASON
from erosion_common.support import expiry
from tests.support.broken_line import BreaksAfterTheWelcome
from tests.support.docker_engine import ROOT
from tests.support.said import raises


def longest_pauses(monkeypatch: pytest.MonkeyPatch, num_requests: int, times: int) -> list[float]:
    """Up to how long the agent would have paused after each of its connections."""
    pauses: list[float] = []

    def connect() -> Any:
        if len(pauses) == times:
            agent.stop.set()
        return BreaksAfterTheWelcome(num_requests)

    def drawn(_shortest: float, longest: float) -> float:
        pauses.append(longest)
        return 0.0

    def answer(request: Message, _context: object) -> Message:
        return Message(RecordDict(), reply_to=request)

    monkeypatch.setattr(random, "uniform", drawn)
    as_line: Any = connect
    agent = Agent(as_line, answer, address="127.0.0.1:9092")
    agent.run()
    return pauses


def test_a_line_that_breaks_after_every_welcome_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = longest_pauses(monkeypatch, num_requests=0, times=1100)  # 2**1100 is no float
    assert pauses[:3] == [FIRST_RETRY_SECONDS, 2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS]
    assert pauses[-1] == LAST_RETRY_SECONDS


def test_expiry_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    begun = expiry.now()
    days = iter([0, 0, 334, 335, 336, 336])  # at each look for a message

    class Stands(BreaksAfterTheWelcome):
        def receive(self, _seconds: float) -> Any:
            if (day := next(days, None)) is None:
                agent.stop.set()
            else:
                monkeypatch.setattr(expiry, "now", lambda: begun + timedelta(days=day))

    def connect() -> Any:
        line = Stands(0)
        line.welcome = Welcome(expires=begun + timedelta(days=365))
        return line

    as_line: Any = connect
    agent = Agent(as_line, lambda request, _: request, address="127.0.0.1:9092")
    agent.run()
    warned = [line for line in caplog.messages if "this site's certificate is valid" in line]
    assert [line.partition("(")[2].partition(")")[0] for line in warned] == ["30 days", "29 days"]


def test_errors_are_logged_as_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[str] = []

    class Line(BreaksAfterTheWelcome):
        def reply(self, _request: Message, reply: Message, _log_head: str | None) -> None:
            sent.append(str(reply.error.reason))
            agent.stop.set()

    def answer(request: Message, _context: object) -> Message:
        return Message(Error(1, "several\nlines \x1b[2J" + "x" * 20_000), reply_to=request)

    monkeypatch.setattr(random, "uniform", lambda *_bounds: 0.0)
    as_line: Any = lambda: Line(num_requests=1)  # noqa: E731
    with AuditLog(tmp_path) as log:
        observers = SiteObservers(tmp_path, log, name="b", coordinator="c")
        agent = Agent(as_line, answer, address="127.0.0.1:9092", watchers=[observers])
        agent.run()
    assert len(sent[0]) == LONGEST_REASON
    assert sent[0].isprintable()
    line = json.loads((tmp_path / "sent.jsonl").read_text())
    assert line["error"] == sent[0]
    assert (line["bytes"], line["sha256"]) == (len(sent[0].encode()), hash_of(sent[0]))


def test_an_outage_starts_afresh_after_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_reach, unreadable = LostLink("out of reach"), SiteError("the key cannot be read")
    happens: list[Exception | None] = [out_of_reach, None, unreadable, out_of_reach, None]
    answered: list[Message] = []
    clock = [0.0]

    def connect() -> Any:
        clock[0] += 30.0
        answered.clear()
        if (problem := happens.pop(0)) is not None:
            raise problem
        if not happens:
            agent.stop.set()
        return BreaksAfterTheWelcome(num_requests=1)

    def answer(request: Message, _context: object) -> Message:
        answered.append(request)
        return Message(RecordDict(), reply_to=request)

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(random, "uniform", lambda *_bounds: 0.0)
    as_line: Any = connect
    agent = Agent(
        as_line,
        answer,
        address="127.0.0.1:9092",
        until=Until(give_up_seconds=60.0),
        has_changed=lambda: bool(answered),
    )
    agent.run()
    assert not happens


def test_a_line_that_stood_or_answered_reconnects_now(monkeypatch: pytest.MonkeyPatch) -> None:
    assert longest_pauses(monkeypatch, num_requests=1, times=4) == [FIRST_RETRY_SECONDS] * 4
    monkeypatch.setattr(agent_module, "STEADY_SECONDS", 0.0)
    assert longest_pauses(monkeypatch, num_requests=0, times=4) == [FIRST_RETRY_SECONDS] * 4


def after(*came: str, connect: Any = None, until: Until | None = None) -> Agent:
    """A site that is to end with its study, after these messages."""
    line: Any = BreaksAfterTheWelcome(0)
    replies: dict[str, Any] = {
        "joins": RecordDict(),
        "comes too late": RecordDict(),
        "declines": Error(0, "it is not among the study's hospitals"),
        "trains": RecordDict(),
        "describes": RecordDict(),
    }
    kinds = {"trains": wire.TRAIN, "describes": wire.SUMMARY}

    def answer(request: Message, _context: object) -> Message:
        return Message(replies[request.metadata.group_id], reply_to=request)

    until = until or Until(study_ends=True)
    agent = Agent(connect or (lambda: line), answer, address="127.0.0.1:9092", until=until)
    for what in came:
        kind = kinds.get(what, wire.DESCRIBE)
        content = RecordDict()
        if what not in replies:
            notice = wire.Notice(text=what, final=False, ended=("",) * (what == ENDED))
            kind, content = wire.NOTICE, wire.encode_notice(notice)
        agent._answer(line, RequestMessage(content, "r", 2, kind, group_id=what, ttl=60.0))
    return agent


TOO_LATE, ENDED = "the study began without this site", "the study has ended"


@pytest.mark.parametrize(
    ("came", "is_over"),
    [
        (["joins", "trains", ENDED], True),
        (["joins", ENDED], True),  # of its arms none asks peers
        (["trains", ENDED], True),  # an app's run
        ([ENDED], True),  # an app's run that never asked this site
        (["declines", ENDED], False),
        (["joins", TOO_LATE, ENDED], False),
        (["declines", ENDED, "joins", "trains", ENDED], True),
        (["declines", "joins", "trains", ENDED], True),  # somebody approved it meanwhile
        (["joins", "trains", "declines", ENDED], True),  # not as the user
        (["comes too late", ENDED], False),  # with its description
        (["declines", ENDED, ENDED], False),  # its confirmation of the first was lost
    ],
)
def test_a_site_ends_with_a_study_that_it_took_part_in(came: list[str], is_over: bool) -> None:
    assert after(*came).stop.is_set() is is_over


@pytest.mark.parametrize(
    ("came", "tries"),
    [
        (["declines", ENDED], 3),
        (["comes too late", ENDED], 3),
        (["declines"], 9),
        (["declines", ENDED, "joins"], 9),
    ],
)
def test_a_declined_site_ends(came: list[str], tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def out_of_reach() -> None:
        clock[0] += GONE_SECONDS / 2
        if clock[0] == 9 * GONE_SECONDS / 2:
            agent.stop.set()
        raise LostLink("out of reach")

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(random, "uniform", lambda *_bounds: 0.0)
    agent = after(*came, connect=out_of_reach)
    agent.run()
    assert clock[0] == tries * GONE_SECONDS / 2


@pytest.mark.parametrize(
    ("came", "until", "tries"),
    [
        (["joins", "trains"], Until(study_ends=True), 3),
        (["trains"], Until(study_ends=True), 3),  # an app's run
        (["declines"], Until(study_ends=True), 3),
        (["joins", TOO_LATE], Until(study_ends=True), 3),
        (["comes too late"], Until(study_ends=True), 3),
        (["joins"], Until(give_up_seconds=2 * LOST_SECONDS, study_ends=True), 5),
        ([], Until(give_up_seconds=2 * LOST_SECONDS, study_ends=True), 5),  # it was started again
        (["joins"], Until(), None),
        ([], Until(study_ends=True), None),  # it came before the coordinator
        (["describes"], Until(study_ends=True), None),  # of which no study need come
    ],
)
def test_a_site_that_may_have_missed_the_end_of_its_study_gives_up(
    came: list[str], until: Until, tries: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def out_of_reach() -> None:
        clock[0] += LOST_SECONDS / 2
        if clock[0] == 9 * LOST_SECONDS / 2:
            agent.stop.set()
        raise LostLink("out of reach")

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(random, "uniform", lambda *_bounds: 0.0)
    agent = after(*came, connect=out_of_reach, until=until)
    if tries is None:
        agent.run()
        return
    said = "may have ended meanwhile" if until.give_up_seconds is None else "Gave up after"
    with raises(LinkError, said):
        agent.run()
    assert clock[0] == tries * LOST_SECONDS / 2


@pytest.mark.parametrize("until", [Until(give_up_seconds=0.5), Until(study_ends=True)])
def test_an_expired_certificate_gives_up(until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def expired() -> None:
        clock[0] += LOST_SECONDS
        if clock[0] == 9 * LOST_SECONDS:
            agent.stop.set()
        raise SiteError("This site's certificate node.crt expired yesterday.")

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(random, "uniform", lambda *_bounds: 0.0)
    agent = after("joins", connect=expired, until=until)
    with raises(LinkError, "yesterday", "600 s") as problem:
        agent.run()
    assert "coordinator.address" not in str(problem.value)  # which is not at fault
    assert clock[0] == 2 * LOST_SECONDS


def test_hospitals_in_containers_are_left_alone_where_the_coordinator_is_gone_for_good() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    _, _, hospital = compose.partition("x-hospital:")
    hospital, _, _ = hospital.partition("\nservices:")
    (command,) = re.findall(r"command: \[(client, .*)\]", hospital)
    options = parser().parse_args([word.strip('" ') for word in command.split(",")])
    assert options.until_study_ends
    assert options.give_up_seconds == LOST_SECONDS
    assert re.search("restart: on-failure:[1-9]\n", hospital)
