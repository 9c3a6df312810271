"""The site agent's pauses between its tries to connect."""

import json
import random
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict

from erosion_client.connection import agent as agent_module
from erosion_client.connection import serve
from erosion_client.connection.agent import (
    FIRST_RETRY_SECONDS,
    LAST_RETRY_SECONDS,
    Agent,
    Until,
)
from erosion_client.connection.credentials import ConnectionProblem
from erosion_client.connection.serve import RunningSite
from erosion_client.connection.site_link import LostLink, Welcome
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_common.errors import LinkError, NotReady, SiteError
from erosion_common.program.command_line import parser
from erosion_common.protocol import wire
from erosion_common.protocol.flower import RequestMessage
from erosion_common.support import expiry
from erosion_common.support.files import version_of
from erosion_common.support.status import FORMAT
from tests.support.broken_line import BreaksAfterTheWelcome
from tests.support.docker_engine import ROOT
from tests.support.federation import write_site
from tests.support.said import raises, says
from tests.support.sent_logs import request


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


def test_why_tls_was_not_agreed_is_looked_into_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first look the coordinator was starting again, and the site never looked twice."""
    looks = iter(["", "", "its clock is wrong", "its clock is wrong"])

    class NotAgreed(BreaksAfterTheWelcome):
        def look_into(self) -> str:
            return next(looks)

    ambiguous = ConnectionProblem("it ended the connection", is_tls=True)
    monkeypatch.setattr(agent_module, "connection_error", lambda *_, **__: ambiguous)
    monkeypatch.setattr(random, "uniform", lambda *_: 0.0)
    shown: list[str] = []
    tries = count(1)

    def connect() -> Any:
        if next(tries) == 4:
            agent.stop.set()
        return NotAgreed(0)

    as_line: Any = connect

    class Watcher:
        def connected(self, _clock: str) -> None:
            """Each has a welcome."""

        def disconnected(self, why: str) -> None:
            shown.append(why)

    watchers: Any = [Watcher()]
    agent = Agent(as_line, lambda m, _: m, address="here:1", watchers=watchers)
    monkeypatch.setattr(agent_module.Outage, "connected", lambda _: None)
    agent.run()
    known = "The coordinator at here:1: its clock is wrong"
    assert shown == ["It ended the connection", known]
    assert [line.removesuffix("; trying again") for line in caplog.messages] == shown


@pytest.mark.parametrize(("seconds", "named"), [(7200, "2 hours ahead"), (59, None)])
def test_a_clock_that_differs_is_logged_and_shown(
    seconds: int, named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[str] = []

    class Watcher:
        def connected(self, clock: str) -> None:
            shown.append(clock)
            agent.stop.set()

    line: Any = BreaksAfterTheWelcome(0)
    line.welcome = Welcome(ahead=timedelta(seconds=seconds))
    watchers: Any = [Watcher()]
    agent = Agent(lambda: line, lambda m, _: m, address="127.0.0.1:9092", watchers=watchers)
    agent.run()
    assert (named is not None and named in shown[0]) is bool(shown[0])
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        text for text in shown if text
    ]


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
            kind, content = wire.NOTICE, wire.encode_header(notice)
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


MOST_TRIES = 9  # of a test; then the site would try for ever
SECONDS = 600.0
STUDY_ENDS, LATER = Until(study_ends=True), Until(give_up_seconds=SECONDS, study_ends=True)


def outage(
    monkeypatch: pytest.MonkeyPatch, seconds: float, error: Exception, *came: str, until: Until
) -> tuple[int, str]:
    """How often a site tries, so many seconds apart, where every try fails; and what it says."""
    clock = [0.0]

    def connect() -> None:
        clock[0] += seconds
        if clock[0] == MOST_TRIES * seconds:
            agent.stop.set()
        raise error

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(random, "uniform", lambda *_bounds: 0.0)
    agent, said = after(*came, connect=connect, until=until), ""
    try:
        agent.run()
    except LinkError as problem:
        said = str(problem)
    return int(clock[0] / seconds), said


@pytest.mark.parametrize(
    ("came", "until", "tries"),
    [
        (["joins"], LATER, 3),
        ([], LATER, 3),  # it was started again
        (["declines", ENDED], LATER, 3),
        (["joins"], STUDY_ENDS, MOST_TRIES),
        (["joins"], Until(), MOST_TRIES),
    ],
)
def test_a_site_gives_up_after_the_seconds_that_it_is_given(
    came: list[str], until: Until, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outage(monkeypatch, SECONDS / 2, LostLink("out of reach"), *came, until=until)
    assert (found[0], "Gave up after" in found[1]) == (tries, tries < MOST_TRIES)


def test_an_expired_certificate_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    expired = SiteError("This site's certificate node.crt expired yesterday.")
    tries, said = outage(monkeypatch, SECONDS, expired, "joins", until=Until(give_up_seconds=0.5))
    assert tries == 2
    assert says(said, "yesterday", "600 s")
    assert "coordinator.address" not in said  # which is not at fault


def test_hospitals_in_containers_are_left_alone_where_the_coordinator_is_gone_for_good() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    _, _, hospital = compose.partition("x-hospital:")
    hospital, _, _ = hospital.partition("\nservices:")
    (command,) = re.findall(r"command: \[(client, .*)\]", hospital)
    options = parser().parse_args([word.strip('" ') for word in command.split(",")])
    assert options.until_study_ends
    assert options.give_up_seconds == SECONDS
    assert re.search("restart: on-failure:[1-9]\n", hospital)


CONTEXT = Context(1, 2, {}, RecordDict(), {})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SETTLED_SECONDS", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_site(tmp_path, "bob", "127.0.0.1:9092")


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    records = Records(tmp_path / "book", "alice")
    yield records
    records.close()


def running(file: Path, records: Records) -> RunningSite:
    return RunningSite(file, load_site(file), records, secret=b"s" * 32, version=version_of(file))


def change(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_a_former_file(file: Path, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Message] = []

    def app(message: Message, _context: Context) -> Message:
        asked.append(message)
        if len(asked) == 1:
            change(file, "[approval]", "[limits]\nas_user = false\n[approval]")
        return Message(RecordDict(), reply_to=message)

    monkeypatch.setattr(serve, "make_app", lambda *_: app)
    site = running(file, records)
    with raises(SiteError, "was changed"):
        site(request(), CONTEXT)
    site.connect()
    assert site(request(), CONTEXT).has_content()
    change(file, "false", "true")
    with raises(SiteError, "was changed"):
        site(request(), CONTEXT)
    assert len(asked) == 2
    assert site.has_changed()
    site.connect()
    assert not site.has_changed()
    assert "limits.as_user" in site.news


def test_rules_that_changed_while_no_program_ran_are_said_at_the_next_start(
    file: Path, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    change(file, "[budget]", "[limits]\nmin_cell = 20\nas_user = false\n[budget]")
    whole, status = file.read_text(), file.with_name("status.json")
    status.write_text(json.dumps({"format": FORMAT, **running(file, records).budgets()}))
    for cut_off, differing in (
        ("# nothing", ""),
        ("as_user", "limits.as_user, budget.runs_per_study"),
        ("[limits]", "limits.min_cell, limits.as_user, budget.runs_per_study"),
    ):
        caplog.clear()
        file.write_text(whole.partition(cut_off)[0])
        site = running(file, records)
        site.compare(status)
        said = f"{file} was changed since this site last ran: {differing}. If nobody"
        assert [each.startswith(said) for each in caplog.messages] == [True] * bool(differing)
        assert site.news.endswith(differing)


def test_an_agent_sends_nothing_where_the_site_file_was_changed() -> None:
    replies: list[Message] = []

    class Line(BreaksAfterTheWelcome):
        def reply(self, _request: Message, reply: Message, _log_head: str | None) -> None:
            replies.append(reply)

    def answer(_request: Message, _context: object) -> Message:
        agent.stop.set()
        raise SiteError("site.toml was changed")

    line: Any = lambda: Line(num_requests=1)  # noqa: E731
    agent = Agent(line, answer, address="127.0.0.1:9092")
    agent.run()
    assert not replies


def test_a_site_that_cannot_note_an_answer_connects_again_once_it_can_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It came back every 10 s and left in the same round, until three were skipped."""
    monkeypatch.setattr(agent_module, "LAST_RETRY_SECONDS", 0.0)
    tries, lines = count(1), count(1)

    def connect() -> Any:
        if next(lines) == 2:
            agent.stop.set()
        return BreaksAfterTheWelcome(num_requests=1)

    def answer(request: Message, _context: object) -> Message:
        if next(tries) < 4:
            raise NotReady("no room")
        return Message(RecordDict(), reply_to=request)

    agent = Agent(connect, answer, address="127.0.0.1:9092")
    agent.run()
    assert (next(tries), next(lines)) == (5, 3)
    assert caplog.messages.count("no room") == 1


def test_questions_that_are_withdrawn_write_no_more_lines_than_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    agent, line = after(), BreaksAfterTheWelcome(0)
    monkeypatch.setattr(agent.stop, "wait", waits.append)
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    asked = RequestMessage(RecordDict(), "r", 2, wire.DESCRIBE, group_id="comes too late", ttl=60.0)
    for _ in range(103):
        agent._answer(line, asked)  # type: ignore[arg-type]
    assert waits == [0.0] * 100 + [1.0, 2.0, 3.0]


def test_a_comment_is_no_change(file: Path, records: Records) -> None:
    site = running(file, records)
    file.write_text("# ours\n" + file.read_text())
    assert not site.has_changed()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9093", "coordinator.address: start `erosion client` again"),
        ('name = "bob"', 'name = "carol"', "name, records: start `erosion client` again"),
        ("within_limits", "always", "approval.automatic = 'always'"),
        ("[approval]", "[approval", "not valid TOML"),
        ("[compute]", '[compute]\ndevice = "cuda:77"', "compute.device = 'cuda:77'"),
        ("[compute]", '[compute]\naccount = "other"', "compute.account: start `erosion client`"),
    ],
)
def test_an_unusable_site_file(file: Path, records: Records, old: str, new: str, said: str) -> None:
    site = running(file, records)
    whole = file.read_text()
    change(file, old, new)
    for _ in range(2):
        assert site.has_changed()
        with raises(SiteError, "answers nothing") as problem:
            site.connect()
        assert said in str(problem.value)
    file.write_text(whole)
    site.connect()
    assert not site.has_changed()


def test_a_site_file_that_is_gone_for_a_moment_is_waited_for(file: Path, records: Records) -> None:
    site = running(file, records)
    file.rename(file.with_suffix(".old"))
    with raises(SiteError, "site", "file"):
        site.connect()
    file.with_suffix(".old").rename(file)
    site.connect()
    assert not site.has_changed()
