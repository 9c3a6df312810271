"""`erosion status` of a coordinator, the ledger, and progress as JSON."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from erosion_client.connection.site_link import wrong_clock
from erosion_client.records.audit_log import AuditLog, SiteObservers
from erosion_common.errors import EnrolmentError, RunError
from erosion_common.program.command_line import main
from erosion_common.rounds.events import (
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    RoundFinished,
    WaitsFor,
)
from erosion_common.rounds.validation import trained_by
from erosion_common.support import expiry
from erosion_server.output.events import StudyFailed, StudyStarted, UserFailed
from erosion_server.output.terminal import progress
from erosion_server.run.findings import contributions
from erosion_server.run.status import CoordinatorStatus, queue_status
from tests.support.synthetic_run import HOME, Run, make_run, make_study, play


def written(path: Path, run: Run, *, has_begun: bool = True) -> CoordinatorStatus:
    """The file after the hospitals came, or after a round."""
    status = CoordinatorStatus(path, run.study)
    status.notify(StudyStarted(run.study, "127.0.0.1:9092", path.parent))
    status.notify(HospitalJoined(HOME, 24, ("alike",)))
    status.notify(HospitalDeclined("somebody", "its key is not enrolled"))
    if has_begun:
        status.notify(ArmStarted("fedavg", 30))
        status.notify(RoundFinished(run.records[0]))
    return status


def shown(where: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["status", str(where)])
    return code, capsys.readouterr().out


def test_a_run_that_is_removed_meanwhile_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "run" / "status.json", make_run()).ended()
    found = [tmp_path / "removed" / "status.json", tmp_path / "run" / "status.json"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(found))
    assert "breast-cancer" in shown(tmp_path, capsys)[1]


def test_before_the_first_round_it_says_who_is_missing_and_who_was_kept_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = written(tmp_path / "status.json", make_run(), has_begun=False)
    status._file._write()
    assert "somebody: " in shown(tmp_path, capsys)[1]
    status.notify(HospitalLeft("somebody"))  # with the connection that it was about
    status.notify(StudyFailed(""))  # writes at once
    values = json.loads((tmp_path / "status.json").read_text())
    assert (values["missing"], values["connected"]) == (["alike"], [HOME])
    code, text = shown(tmp_path, capsys)
    assert code == 2
    assert "somebody: " not in text


def test_in_a_round_it_says_the_round_the_weights_and_who_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    status = written(tmp_path / "run" / "status.json", run)
    status.waiting_for = lambda: ["alike"]
    status._file._write()
    code, text = shown(tmp_path, capsys)  # the newest run in a folder of runs
    status.notify(StudyFailed(""))
    assert code == 0
    assert re.search("1 .* 30, fedavg", text)
    assert re.search(r"waiting.* alike\b", text)
    assert "home 1.00" in text


def test_the_next_users_part_shows_nothing_of_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(hospitals=("alice", "bob", "carol")).model_copy(update={"user": "all"})
    status = CoordinatorStatus(tmp_path / "status.json", study)
    status.notify(StudyStarted(study.for_user("alice"), "127.0.0.1:9092", tmp_path))
    for hospital in study.hospitals:
        status.notify(HospitalJoined(hospital, 30, ()))
    status.notify(ArmStarted("fedavg", 30))
    status.notify(HospitalLeft("bob"))
    status.notify(WaitsFor(("bob",), datetime.now(UTC)))
    status.notify(UserFailed("alice", "bob did not come back within 60 s."))
    status.notify(StudyStarted(study.for_user("carol"), "127.0.0.1:9092", tmp_path))
    status.notify(HospitalJoined("carol", 30, ("alice", "bob")))
    status._file._write()
    _, text = shown(tmp_path, capsys)
    assert "for carol" in text
    assert re.search(r"connected +carol\n", text)
    assert re.search(r"missing +alice, bob\n", text)
    assert re.search(r"alice: bob .* 60 s", text)
    assert "waiting for  " not in text
    assert "fedavg" not in text
    status.notify(StudyFailed(""))


def left_behind(path: Path, run: Run, *, seconds_ago: float) -> None:
    """The file of a coordinator that was killed in a round, so long ago by today's clock."""
    status = written(path, run)
    status._file._ended.set()
    status._file._thread.join()
    then = time.time() - seconds_ago
    os.utime(path, (then, then))


@pytest.mark.parametrize("seconds_ago", [1e9, -7200])  # or before the clock was set back
def test_a_coordinator_that_was_killed_is_not_taken_for_a_running_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds_ago: float
) -> None:
    left_behind(tmp_path / "status.json", make_run(), seconds_ago=seconds_ago)
    code, text = shown(tmp_path, capsys)
    assert code == 2
    assert ("120 min" in text) == (seconds_ago == -7200)


def test_a_queue_is_well_for_as_long_as_it_is_served_whatever_becomes_of_its_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "next.toml").touch()
    with queue_status(tmp_path, lambda: datetime(2020, 10, 1, tzinfo=UTC)) as file:
        code, text = shown(tmp_path, capsys)
        assert code == 2
        assert re.search(r"studies +next.toml\ncertificate +.* 2020-10-01\n", text)
        assert main(["status", str(tmp_path), "--alive"]) == 0
        capsys.readouterr()
        file.show(run="runs/20260101T120000-mine")
        file._write()
        assert "runs/20260101T120000-mine" in shown(tmp_path, capsys)[1]
    assert shown(tmp_path, capsys)[0] == 0

    def unreadable() -> datetime:
        raise EnrolmentError("coordinator.crt cannot be read")

    with queue_status(tmp_path, unreadable) as file:  # unreadable for a while
        assert shown(tmp_path, capsys)[0] == 0
        file._ended.set()
        file._thread.join()
        os.utime(tmp_path / "status.json", (0, 0))
        assert shown(tmp_path, capsys)[0] == 2  # it was killed between two studies
    with pytest.raises(RunError), queue_status(tmp_path, lambda: None):
        raise RunError("full")
    code, text = shown(tmp_path, capsys)
    assert code == 2
    assert re.search(r"reason +full\n", text)


def test_json_progress_is_one_object_a_line() -> None:
    run = make_run(reasons={"alike": "3 samples"})
    stream = io.StringIO()
    play(progress(stream, "json"), run)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("listening", "finished")
    assert events.count("round_finished") == len(run.records)
    first = lines[events.index("round_finished")]
    assert first["absent"] == {"alike": "3 samples"}
    assert first["weights"][HOME] == 1.0
    assert all("time" in line for line in lines)


def test_the_ledger_counts_only_finished_rounds_and_accepted_updates() -> None:
    run = make_run(arms=("fedavg",), rounds=20, skipped=(3,))
    ledger = contributions(run.study.hospitals, run.records)
    assert ledger["alike"].rounds == 19
    assert ledger["large-tumours"].rounds == 15  # away in rounds 11 to 14
    assert ledger["alike"].samples_seen == 19 * 80
    assert ledger["alike"].weight_sum == pytest.approx(19 * 110 / 24)


def test_a_round_that_was_undone_is_credited_to_nobody() -> None:
    run = make_run(arms=("fedavg",), rounds=3)
    whole = contributions(run.study.hospitals, run.records)
    undoing = replace(run.records[2], outcome="skipped", undoes=2)
    left = contributions(run.study.hospitals, [*run.records[:2], undoing])
    assert (whole["alike"].rounds, left["alike"].rounds) == (3, 1)


def test_nobody_took_part_by_a_round_that_was_skipped_or_undone() -> None:
    first, second, third = make_run(arms=("fedavg",), rounds=3).records
    assert "alike" in trained_by([first])
    assert not trained_by([replace(first, outcome="skipped")])
    undoing = replace(third, outcome="skipped", undoes=2)
    assert not trained_by([replace(first, outcome="skipped"), second, undoing])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'name = "north\n', "TOML"),
        (b'name = "north"\nname = "south"\n', "TOML"),
        (b"\xff\xfen", "UTF-8"),
        (b"", "no name"),
        (b"records = 3", "records = 3"),
        (b'records = "a\\u0000b"', "records"),
        (b'records = "~nobody-of-this-name/records"', "~nobody-of-this-name"),
        (None, "site.toml"),
    ],
)
def test_a_site_file_that_says_no_folder_of_records_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, said: str
) -> None:
    assert main(["status", str(tmp_path)]) == 3  # an empty folder
    if text is not None:
        (tmp_path / "site.toml").write_bytes(text)
    capsys.readouterr()
    assert main(["status", str(tmp_path / "site.toml")]) == 3
    assert said in capsys.readouterr().out


@contextmanager
def observed_site(folder: Path, expires: datetime | None = None) -> Iterator[SiteObservers]:
    with AuditLog(folder, hospital="north") as log:
        yield SiteObservers(
            folder,
            log,
            name="north",
            coordinator="127.0.0.1:9092",
            certificate_expires=lambda: expires,
        )


def level_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, and what --json says of it."""
    code = main(["status", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == ("OK", "WARNING", "CRITICAL").index(found["health"]["level"])
    return code, " ".join(found["health"]["problems"])


def test_a_site_is_well_only_while_it_is_connected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with observed_site(tmp_path) as site:
        assert level_of(tmp_path, capsys)[0] == 1
        site.connected()
        site._sign._write()
        assert level_of(tmp_path, capsys) == (0, "")
        site.connected(wrong_clock(timedelta(days=-3)))
        site._sign._write()
        code, problems = level_of(tmp_path, capsys)
        assert (code, "3 days behind" in problems) == (1, True)
        site.disconnected("unreachable")
        site._sign._write()
        assert "unreachable" in level_of(tmp_path, capsys)[1]
        later = expiry.now() + timedelta(minutes=11)
        with monkeypatch.context() as patched:
            patched.setattr(expiry, "now", lambda: later)
            assert level_of(tmp_path, capsys)[0] == 2
        site.end("the key was revoked")
        code, problems = level_of(tmp_path, capsys)
        assert (code, "revoked" in problems) == (2, True)


def test_what_a_status_file_says_rewrites_no_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with observed_site(tmp_path) as site:
        site.disconnected("away\x1b[2J\u202e\nOK  running")
        site._sign._write()
        main(["status", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert all(map(str.isprintable, lines))
    assert not any(line.startswith("OK") for line in lines)


@pytest.mark.parametrize(("days", "code"), [(300, 0), (20, 1), (-1, 2)])
def test_a_sites_certificate_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], days: int, code: int
) -> None:
    expires = expiry.now() + timedelta(days=days)
    with observed_site(tmp_path, expires) as site:
        site.connected()
        site._sign._write()
        assert level_of(tmp_path, capsys)[0] == code
        main(["status", str(tmp_path), "--json"])
        assert json.loads(capsys.readouterr().out)["certificate_expires"] == expires.isoformat()
        site.end("stopped")


def test_a_site_that_was_killed_a_moment_ago_is_seen_to_be_gone(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from erosion_common.support.status import StatusFile;"
        "StatusFile(pathlib.Path(sys.argv[1]), site='north', connected=True);"
        "print('ready', flush=True); sys.stdin.read()"
    )
    path = tmp_path / "status.json"
    pipe, command = subprocess.PIPE, [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(["status", str(tmp_path)]) == 0
        assert main(["status", str(tmp_path), "--alive"]) == 0
        process.kill()
        process.wait()
        assert main(["status", str(tmp_path)]) == 2
        assert main(["status", str(tmp_path), "--alive"]) == 1
