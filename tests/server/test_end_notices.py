"""Sites are told that a study is over, also where it failed and nobody goes on with it."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from erosion_client.connection.agent import Agent, Until
from erosion_client.connection.credentials import credentials_for
from erosion_client.connection.site_link import LostLink, SiteLink
from erosion_client.site_file import load_site
from erosion_common.errors import DiskError, HopelessError, RunError
from erosion_common.protocol import wire
from erosion_common.protocol.flower import ReplyMessage, RequestMessage
from erosion_common.protocol.messages import DescribeReply
from erosion_common.rounds.channel import Introduced
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.presence import HospitalsAwayError, UserDeclinedError
from erosion_common.support.process import RunningTime
from erosion_server.coordination import run_app, run_study
from erosion_server.coordination.end_notices import EndNotices
from erosion_server.coordination.network import NetworkChannel
from erosion_server.coordination.run_study import Planned, Setup
from erosion_server.link import Link
from erosion_server.link.link import make_link
from erosion_server.output.observers import Observers
from erosion_server.run.overview import Overview
from erosion_server.run.result import Result
from erosion_server.run.run_folder import new_run_folder
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.patience import PATIENCE, wait_until
from tests.support.refusals import refused
from tests.support.small_study import make_study
from tests.support.synthetic_run import make_run


class StubLink:
    """One site, and what it is told: nobody's, or of an enrolled hospital.

    It confirms what it is told where it is let.
    """

    address, certificate_expires, denials = "127.0.0.1:9092", None, dict[str, int]()
    address_for_sites, keys = address, dict

    def __init__(self, hospital: str | None = None, *, is_here: bool = True) -> None:
        self.told: list[str] = []
        self.ended: list[tuple[str, ...]] = []
        self.grid, self.clock, self.updates = self, RunningTime(), None
        self.enrolled_only, self.is_here, self.confirms = hospital is not None, is_here, False
        self.hospital_of = lambda _node: hospital

    def open(self, _spool: Path | None = None) -> "StubLink":
        return self

    def close(self) -> None: ...

    start = stop = close

    def get_node_ids(self) -> list[int]:
        return [2] if self.is_here else []

    def unanswered(self) -> set[int]:
        return set()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        notices = [wire.decode_header(message.content, wire.Notice) for message in messages]
        self.told += [notice.text for notice in notices if notice.ended]
        self.ended += [notice.ended for notice in notices]
        return [f"r{len(self.told)}"] if self.enrolled_only else []

    def pull_messages(self, requests: list[str]) -> list[Message]:
        notices = [
            RequestMessage(RecordDict(), request, 2, wire.NOTICE, group_id="", ttl=60.0)
            for request in requests
        ]
        return [ReplyMessage(RecordDict(), notice) for notice in notices if self.confirms]

    def forget(self, _requests: list[str], *, is_told: bool) -> None: ...

    def wait_for_news(self, _seconds: float) -> None: ...


@pytest.mark.parametrize("user", ["a", "all"])
@pytest.mark.parametrize(
    ("problem", "in_queue", "is_told"),
    [
        (HopelessError("every round was skipped"), False, True),
        (RunError("put that right, then resume"), False, False),
        (UserDeclinedError("put that right, then resume"), False, False),
        (HopelessError("every round was skipped"), True, True),
        (UserDeclinedError("no study of its own"), True, True),
        (ZeroDivisionError(), True, True),
        (HospitalsAwayError("it has its turn again"), True, False),
        (DiskError("full"), True, False),
        (OSError("full"), True, False),
        (KeyboardInterrupt(), True, False),
    ],
)
def test_a_failure_that_nobody_goes_on_from_is_a_studys_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    problem: BaseException,
    in_queue: bool,
    is_told: bool,
) -> None:
    """With --until-study-ends a site that took part would wait for it for ever."""

    def fails(*_: object) -> None:
        raise problem

    monkeypatch.setattr(run_study, "run_for_user", fails)
    study, link = make_study(user=user), StubLink()
    folder = new_run_folder(tmp_path, study)
    untyped: Any = link
    notices = EndNotices(untyped) if in_queue else None
    expected = DiskError if isinstance(problem, OSError) else type(problem)
    if user == "all" and expected in (UserDeclinedError, ZeroDivisionError):
        expected = RunError  # of the whole, with the first one's reason
    with Observers({}) as observers, pytest.raises(expected):
        run_study.run_on(untyped, Planned(study, folder, observers), Setup(), notices)
    assert link.told == ["the study has failed"] * is_told


def test_updates_that_a_killed_coordinator_left_go_where_memory_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_run(("fedavg", "local"), ("a", "b"), rounds=2).result
    monkeypatch.setattr(run_study, "run_for_user", lambda *_: result)
    study, link = make_study(), StubLink()
    folder = new_run_folder(tmp_path, study)
    (folder.spool / "updates").mkdir(parents=True)
    (folder.spool / "updates" / "a.f32").write_bytes(bytes(4))
    untyped: Any = link
    with Observers({}) as observers:
        run_study.run_on(untyped, Planned(study, folder, observers), Setup(updates="memory"))
    assert not folder.spool.exists()


def test_a_part_that_nobody_goes_on_from_keeps_no_study_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = make_run(("fedavg", "local"), ("a", "b"), rounds=2).result

    def fails_for_a(ctx: RunContext, *_: object) -> Result:
        if ctx.study.user == "a":
            raise HopelessError("every round was skipped")
        return result.model_copy(update={"user": ctx.study.user})

    monkeypatch.setattr(run_study, "run_for_user", fails_for_a)
    study, link = make_study(user="all"), StubLink()
    folder = new_run_folder(tmp_path, study)
    untyped: Any = link
    with Observers({}) as observers:
        found = run_study.run_on(untyped, Planned(study, folder, observers), Setup())
    assert isinstance(found, Overview)
    assert list(found.users) == ["b"]
    assert found.without_model == {"a": "every round was skipped"}
    assert "every round was skipped" in folder.report.read_text()
    assert folder.has_ended
    assert link.told == ["the study has ended"]


def test_an_app_that_fails_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    link = StubLink()
    monkeypatch.setattr(run_app, "make_link", lambda *_: link)
    monkeypatch.setattr(run_app, "AppGrid", lambda grid, _run: grid)
    app = ServerApp()

    @app.main()
    def main(_grid: Grid, _context: Context) -> None:
        raise ValueError

    with refused(RunError, "app"):
        run_app.run_app(app, {}, None, None)
    assert link.told == ["the study has failed"]


class Site:
    """An agent of `b` that is to end with its study, in a thread."""

    def __init__(
        self, connect: Callable[[], SiteLink], train: Callable[[], None] = lambda: None
    ) -> None:
        self.lines: list[SiteLink] = []
        self.is_cut_off = threading.Event()

        def come() -> SiteLink:
            if self.is_cut_off.is_set():
                raise LostLink("out of reach")
            self.lines.append(connect())
            return self.lines[-1]

        def reply(request: Message, _context: Context) -> Message:
            if request.metadata.message_type == wire.DESCRIBE:
                described = DescribeReply(hospital="b", num_samples=10, software="test")
                return Message(wire.encode_header(described), reply_to=request)
            train()
            return Message(RecordDict(), reply_to=request)

        self._agent = Agent(
            come,
            reply,
            address="here",
            until=Until(study_ends=True),
            has_changed=self.is_cut_off.is_set,
        )
        self.problem: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._agent.run()
        except Exception as problem:  # noqa: BLE001 - for the test's own thread
            self.problem = problem

    def end(self) -> None:
        """Whatever has become of it."""
        self._agent.stop.set()
        self.thread.join(PATIENCE)


@pytest.mark.parametrize("in_queue", [False, True])
def test_a_site_that_is_busy_as_its_study_ends_hears_of_it_afterwards(
    in_queue: bool,
) -> None:
    begun, done = threading.Event(), threading.Event()
    link = Link("127.0.0.1:0")
    link.start()

    def train() -> None:
        begun.set()
        done.wait(PATIENCE)

    site = Site(lambda: SiteLink(link.address), train)
    try:
        wait_until(link.grid.get_node_ids)
        (node,) = link.grid.get_node_ids()
        late = link.grid.push_messages([Message(RecordDict(), node, wire.TRAIN)])
        begun.wait(PATIENCE)
        link.grid.forget(late)  # its round is over
        EndNotices(link).say("")
        wait_until(lambda: site.lines[0]._waiting)
        if not in_queue:
            link.stop()
        done.set()
        wait_until(lambda: not site.thread.is_alive())
        assert site.problem is None
    finally:
        done.set()
        site.end()
        link.stop()


def test_a_site_that_is_away_as_its_study_ends_is_told_once_it_is_back(tmp_path: Path) -> None:
    study = make_study(hospitals=["a", "b"])
    keys = make_federation(tmp_path / "federation", "a", "b", "other")
    link = make_link(study.hospitals, "127.0.0.1:0", keys)
    link.start()
    file = load_site(unpack_kit(keys, "b", tmp_path) / "site.toml").coordinator
    line = credentials_for(file.model_copy(update={"address": link.address}))
    notices = EndNotices(link)
    notices.begin("first", study.hospitals)
    transport = NetworkChannel(
        study, link.grid, link, others_stay=True, end_notices=notices, run="first"
    )
    following = NetworkChannel(
        make_study(user="other", hospitals=["other", "a"]),
        link.grid,
        link,
        others_stay=True,
        end_notices=notices,
        run="second",
    )
    site = Site(line.connect)
    try:
        wait_until(lambda: any(isinstance(event, Introduced) for event in transport.news()))
        site.is_cut_off.set()
        wait_until(lambda: not link.grid.get_node_ids())
        notices.say("first")
        site.is_cut_off.clear()
        wait_until(lambda: list(following.news()) or not site.thread.is_alive())
        assert site.problem is None
    finally:
        site.end()
        link.stop()


def test_the_end_of_a_study_is_sent_until_it_is_confirmed_and_not_while_another_runs() -> None:
    link = StubLink("a", is_here=False)
    untyped: Any = link
    notices = EndNotices(untyped)
    notices.begin("first", ["a", "b"])
    notices.say("first")
    link.is_here = True
    notices.resend()
    assert not link.told  # it was asked nothing
    link.is_here = False
    notices.begin("first", ["a", "b"])
    notices.asks("first", "a")
    notices.say("first")
    notices.begin("second", ["a"])
    link.is_here = True
    notices.resend()
    assert not link.told  # the study that is running names it
    notices.asks("second", "a")
    link.confirms = True
    notices.say("second")
    for _ in range(3):  # one that is under way or confirmed is not sent again
        notices.resend()
    assert link.ended == [("first", "second")]


def test_a_site_that_missed_very_many_ends_hears_of_all_in_a_few_notices() -> None:
    link = StubLink("a", is_here=False)
    untyped: Any = link
    notices = EndNotices(untyped)
    for number in range(2001):
        notices.begin(f"run{number}", ["a"])
        notices.asks(f"run{number}", "a")
        notices.say(f"run{number}")
    link.is_here = link.confirms = True
    for _ in range(4):
        notices.resend()
    assert sorted(map(len, link.ended)) == [1, 1000, 1000]
    assert len({run for runs in link.ended for run in runs}) == 2001
