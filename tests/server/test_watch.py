"""The page that follows a run or a site, and the output that tells somebody of a run's end."""

import json
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from erosion_client.records.audit_log import AuditLog, SiteObservers
from erosion_client.records.watched import site_snapshot
from erosion_common.errors import RunError
from erosion_common.program.command_line import main
from erosion_common.rounds.events import WaitsFor
from erosion_common.support import live_page
from erosion_common.support.live_page import LivePage
from erosion_server.output import notify
from erosion_server.output.events import EveryUserFinished, StudyFailed
from erosion_server.output.registry import check_outputs
from erosion_server.output.watched import MOST_HOSPITALS, MOST_POINTS, WatchedRuns
from erosion_server.run.journal import Journal, cut_back
from erosion_server.run.overview import line_of, overview
from erosion_server.run.status import CoordinatorStatus
from tests.support.patience import PATIENCE
from tests.support.refusals import refused
from tests.support.synthetic_run import HOME, HOSPITALS, make_run, play

RUN = make_run(rounds=4)


def run_under_way(folder: Path) -> Path:
    """A run's folder with its status, of a program that lives."""
    RUN.write(folder)
    play(CoordinatorStatus(folder / "status.json", RUN.study), RUN, folder)
    return folder


def get(url: str, **headers: str) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE)


def events(url: str) -> Iterator[dict[str, Any]]:
    with get(url.replace("/?", "/events?")) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def test_the_page_shows_the_run_and_what_is_added_to_it(tmp_path: Path) -> None:
    folder = run_under_way(tmp_path / "run")
    with LivePage(WatchedRuns(folder)) as page:
        following = events(page.url)
        (part,) = next(following)["parts"]
        assert part["title"] == f"{RUN.study.name} for {HOME}"
        weights = next(chart for chart in part["charts"] if chart["title"].startswith("Weights"))
        last = [record for record in RUN.records if len(record.hospitals) > 1][-1]
        assert weights["title"] == f"Weights, {last.arm}"
        found = {series["name"]: series["points"][-1] for series in weights["series"]}
        expected = {n: [last.round, e.weight_after] for n, e in last.hospitals.items()}
        assert found == expected
        assert set(found) == set(HOSPITALS)
        journal = Journal(folder / "rounds.jsonl")
        journal.write(replace(RUN.records[-1], round=5))
        journal.close()
        (part,) = next(following)["parts"]
        assert "round 5" in part["tables"][0]["title"]


def test_long_runs_and_many_hospitals_stay_small(tmp_path: Path) -> None:
    folder = run_under_way(tmp_path / "run")
    first = RUN.records[0]
    many = {f"hospital-{i}": first.hospitals[HOME] for i in range(1000)}
    with (folder / "rounds.jsonl").open("w"):
        pass
    journal = Journal(folder / "rounds.jsonl")
    for number in range(1, 1001):
        journal.write(replace(first, round=number))
    journal.write(replace(first, arm="wide", hospitals=many))
    journal.close()
    (part,) = WatchedRuns(folder)()["parts"]
    assert all(len(s["points"]) <= MOST_POINTS + 1 for c in part["charts"] for s in c["series"])
    assert len(part["tables"][0]["rows"]) == MOST_HOSPITALS + 1
    assert part["tables"][0]["rows"][-1][0] == f"{1000 - MOST_HOSPITALS} more"


def test_the_same_event_in_many_rounds_is_one_line(tmp_path: Path) -> None:
    run = make_run(rounds=6, arms=("fedavg",), reasons={"alike": "round ROUND, expected 9"})
    run.write(tmp_path / "run")
    play(CoordinatorStatus(tmp_path / "run" / "status.json", run.study), run, tmp_path / "run")
    (part,) = WatchedRuns(tmp_path / "run")()["parts"]
    (event,) = part["tables"][1]["rows"]
    assert re.findall(r"\d+", event[0]) == ["6", "6", "1"]  # the last, how often, since when
    assert event[1] == "alike"
    assert "round 6, expected" in event[2]


def test_a_journal_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    folder = run_under_way(tmp_path / "run")
    watched = WatchedRuns(folder)
    watched()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0] + "damaged\n" + lines[1][:40])
    (part,) = watched()["parts"]
    assert f"round {RUN.records[0].round} of {RUN.records[0].arm}" in part["tables"][0]["title"]


def test_a_journal_that_was_cut_back_and_has_grown_again_is_read_again(tmp_path: Path) -> None:
    folder = run_under_way(tmp_path / "run")
    watched, path = WatchedRuns(folder), folder / "rounds.jsonl"
    (before,) = watched()["parts"]
    cut_back(path, {record.arm: record.round - 1 for record in RUN.records})
    journal, last = Journal(path), RUN.records[-1]
    reason = f"much longer than before: {'x' * path.stat().st_size}"
    journal.write(replace(last, outcome="skipped", note=reason))
    journal.close()
    (part,) = watched()["parts"]
    assert part["tables"][1] != before["tables"][1]


def test_nobody_without_the_key_or_by_another_name_is_answered(tmp_path: Path) -> None:
    with LivePage(lambda: {"parts": []}) as page:
        bare = page.url.partition("?")[0]
        for url, headers in ((bare, {}), (bare + "?key=x", {}), (page.url, {"Host": "evil.org"})):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                get(url, **headers)
        with get(page.url) as answer:
            policy = answer.headers["Content-Security-Policy"]
            nonce = re.findall("nonce-([^']+)", policy)[0]
            assert f'<script nonce="{nonce}">' in answer.read().decode()
        assert "default-src 'none'" in policy
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(page.url.replace("/?", "/runs?"))
        address = page.url.split("/")[2].split(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((address[0], int(address[1])), timeout=PATIENCE)


def test_browsers_that_go_away_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live_page, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(live_page, "MOST_BROWSERS", 2)
    with LivePage(lambda: {"parts": []}) as page:
        for _ in range(6):
            with get(page.url.replace("/?", "/events?")) as answer:
                answer.readline()  # nothing, where both places are taken
        while next(events(page.url), None) is None:
            pass  # until a place of those that left is free


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "/nowhere"]) == main(["watch", __file__]) == RunError.exit_code
    assert "/nowhere" in capsys.readouterr().err


def test_a_site_s_staff_sees_its_state(tmp_path: Path) -> None:
    site_file = tmp_path / "site.toml"
    site_file.write_text('name = "north"\n')
    (part,) = site_snapshot(site_file)["parts"]
    assert "status.json" in part["lines"][0][1]
    records = tmp_path / "records" / "north"
    with AuditLog(records / "sent.jsonl") as log:
        observers = SiteObservers(records, log, name="north", coordinator="here:9092")
        observers.connected()
        observers.end("stopped by a person")
    (part,) = site_snapshot(site_file)["parts"]
    assert part["title"] == "Site north"
    assert part["level"] == "CRITICAL"
    assert "stopped by a person" in str(part["lines"])
    assert dict(part["lines"])["certificate"].startswith("none")
    expires = datetime.now(UTC) + timedelta(days=40, minutes=1)
    with AuditLog(records / "sent.jsonl") as log:
        SiteObservers(
            records, log, name="north", coordinator="here:9092", certificate_expires=lambda: expires
        ).end("ended")
    (part,) = site_snapshot(site_file)["parts"]
    assert "(40 days)" in dict(part["lines"])["certificate"]


def test_a_pipe_in_the_place_of_a_log_or_a_journal_is_not_waited_for(tmp_path: Path) -> None:
    folder = run_under_way(tmp_path / "run")
    (folder / "rounds.jsonl").unlink()
    (site_file := tmp_path / "site.toml").write_text('name = "north"\nrecords = "run"\n')
    for name in ("rounds.jsonl", "sent.jsonl"):
        os.mkfifo(folder / name)
    assert WatchedRuns(folder)()["parts"]
    assert site_snapshot(site_file)["parts"][0]["tables"][0]["rows"] == []


@contextmanager
def web_hook(answers: bool) -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []
    ended = threading.Event()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if not answers:
                ended.wait(PATIENCE)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    ended.set()
    server.shutdown()
    server.server_close()


def test_a_web_address_is_told_of_the_end_and_of_a_wait_without_figures() -> None:
    with web_hook(answers=True) as (url, got):
        (output,) = check_outputs([f"notify={url}"]).values()
        play(output, RUN)
        output.notify(WaitsFor(("north",), datetime(2026, 5, 4, tzinfo=UTC)))
        output.notify(WaitsFor((), datetime(2026, 5, 4, tzinfo=UTC)))
        output.notify(StudyFailed("the disk is full"))
        found = overview(RUN.study, {HOME: line_of(RUN.result)}, started="", seconds=1.0)
        output.notify(EveryUserFinished(found, Path("runs/every")))
    *of_one, of_all = got
    assert [each["event"] for each in of_one] == ["finished", "waiting", "continues", "failed"]
    assert (of_all["event"], of_all["user"]) == ("finished", "all")
    assert "runs/every" in of_all["words"]
    assert {message["study"] for message in got} == {RUN.study.name}
    assert "north" in got[1]["words"]
    assert not re.search(r"\d\.\d", str([message["words"] for message in got]))


def test_an_address_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "SECONDS", 0.2)
    with web_hook(answers=False) as (url, got):
        (output,) = check_outputs([f"notify={url}"]).values()
        with refused(RunError, "127.0.0.1"):
            output.notify(StudyFailed("the disk is full"))
    assert len(got) == 1


def test_a_program_is_told_on_its_standard_input(tmp_path: Path) -> None:
    program = tmp_path / "tell"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/told\n")
    program.chmod(0o700)
    (output,) = check_outputs([f"notify={program}"]).values()
    output.notify(StudyFailed("the disk is full"))
    assert json.loads((tmp_path / "told").read_text())["event"] == "failed"
    program.write_text("#!/bin/sh\nexit 1\n")
    with refused(RunError, str(program)):
        output.notify(StudyFailed("x"))


@pytest.mark.parametrize(
    "where", ["", "=/nowhere/tell", "=https://", "=http://host:x/", "=http://[/"]
)
def test_what_cannot_be_told_is_refused_before_the_run(where: str) -> None:
    with refused(RunError, "notify"):
        check_outputs([f"notify{where}"])


@pytest.mark.parametrize("where", ["x", "99999", "-1"])
def test_a_port_that_is_none_is_refused_before_the_run(where: str) -> None:
    with refused(RunError, "watch"):
        check_outputs([f"watch={where}"])
