"""A program that runs goes by its site file as it is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from erosion_client.connection import serve
from erosion_client.connection.agent import Agent
from erosion_client.connection.serve import RunningSite
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_common.errors import SiteError
from erosion_common.support.files import version_of
from tests.support.broken_line import BreaksAfterTheWelcome
from tests.support.federation import write_site
from tests.support.said import raises
from tests.support.sent_logs import request

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
