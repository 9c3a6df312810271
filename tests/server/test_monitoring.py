"""What the programs export for Prometheus and for monitoring plugins, and who may fetch it."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from erosion_client.records.audit_log import AuditLog, SiteObservers
from erosion_common.errors import LinkError, RunError
from erosion_common.program.command_line import main, parser
from erosion_common.rounds.events import HospitalJoined, HospitalLeft, RoundFinished
from erosion_common.support import expiry, exporter, monitoring, web_server
from erosion_common.support.exporter import exporting
from erosion_common.support.monitoring import Sample, exposition, figures_of_this_program
from erosion_common.support.network import free_address, free_ports
from erosion_common.support.status import StatusFile
from erosion_server.output.events import ObserverDropped, StudyFailed, StudyStarted
from erosion_server.run.status import CoordinatorStatus
from tests.support.patience import PATIENCE, wait_until
from tests.support.refusals import refused
from tests.support.synthetic_run import HOME, make_run, play

RUN = make_run(arms=("fedavg",), rounds=20, skipped=(3,), reasons={"alike": "3 samples"})
FILES = Path(__file__).parents[2] / "docker" / "monitoring"


@pytest.fixture(autouse=True)
def _no_other_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatusFile, "kept", {})


def read(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """By metric and labels, as Prometheus' own parser takes it."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            key = frozenset(sample.labels.items())
            assert key not in series
            series[key] = sample.value
    return found


def exported() -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    return read(exposition(figures_of_this_program()))


def value(found: Mapping[str, Mapping[frozenset[tuple[str, str]], float]], name: str,
          **labels: str) -> float:  # fmt: skip
    (one,) = [v for k, v in found[f"erosion_{name}"].items() if labels.items() <= dict(k).items()]
    return one


def coordinator(path: Path) -> CoordinatorStatus:
    status = CoordinatorStatus(
        path,
        RUN.study,
        lambda: datetime(2030, 1, 2, tzinfo=UTC),
        run="run-1",
        denials=lambda: {"revoked": 3},
    )
    play(status, RUN)
    return status


def test_a_run_s_figures_are_those_of_its_journal(tmp_path: Path) -> None:
    status = coordinator(tmp_path / "status.json")
    status._file._write()
    found = exported()
    outcomes = [record.outcome for record in RUN.records]
    entries = [entry for record in RUN.records for entry in record.hospitals.values()]
    for outcome in ("done", "skipped"):
        assert value(found, "rounds_total", outcome=outcome) == outcomes.count(outcome)
    for outcome in {entry.outcome for entry in entries}:
        expected = sum(entry.outcome == outcome for entry in entries)
        assert value(found, "answers_total", outcome=outcome) == expected
    assert value(found, "sent_bytes_total") == sum(e.bytes_sent or 0 for e in entries)
    assert value(found, "received_bytes_total") == sum(e.bytes_received or 0 for e in entries)
    seconds = sum(record.seconds for record in RUN.records)
    assert value(found, "rounds_seconds_total") == pytest.approx(seconds, abs=1e-3)
    assert value(found, "denials_total", reason="revoked") == 3
    assert value(found, "hospitals") == len(RUN.study.hospitals)
    assert value(found, "certificate_expiry_timestamp_seconds") == 1893542400
    assert all(
        {("study", RUN.study.name), ("run", "run-1")} <= labels
        for name, series in found.items()
        for labels in series
        if name != "erosion_build_info"
    )
    status.notify(StudyFailed("the disk is full"))
    assert value(exported(), "health") == 2


def test_who_is_there_and_waited_for_is_seen_hospital_by_hospital(tmp_path: Path) -> None:
    status = CoordinatorStatus(tmp_path / "status.json", RUN.study)
    status.notify(StudyStarted(RUN.study, "127.0.0.1:1", tmp_path))
    status.notify(HospitalJoined(HOME, 24, ("alike",)))
    status.notify(HospitalJoined("alike", 24, ()))
    status.notify(HospitalLeft("alike"))
    status.waiting_for = lambda: ["alike"]
    status.notify(ObserverDropped("mlflow", "gone"))
    status._file._write()
    found = exported()
    assert value(found, "hospital_connected", hospital=HOME) == 1
    assert value(found, "hospital_connected", hospital="alike") == 0
    assert value(found, "hospital_waited_for", hospital="alike") == 1
    assert value(found, "hospital_waited_for", hospital=HOME) == 0
    assert value(found, "outputs_dropped") == 1
    assert value(found, "health") == 1
    status.ended()


def test_rejections_are_counted_by_code_and_a_hostile_reason_adds_no_series(tmp_path: Path) -> None:
    status = CoordinatorStatus(tmp_path / "status.json", RUN.study)
    record = RUN.records[0]
    for number in range(50):
        entry = replace(
            record.hospitals["alike"], outcome="rejected", reason=f"lie {number}", code="norm"
        )
        status.notify(RoundFinished(replace(record, hospitals={"alike": entry})))
    found = exported()
    assert list(found["erosion_rejections_total"].values()) == [50]
    assert value(found, "rejections_total", reason="norm") == 50
    status.ended()


def test_a_site_shows_its_budgets_and_what_is_left_of_them(tmp_path: Path) -> None:
    account = [
        ("studies", "", 3, 50),
        ("rounds", "0123abcd", 40, 20_000),
        ("rounds", "4567cdef", 5, 20_000),
        ("epsilon", "", "inf", 2.5),
    ]
    with AuditLog(tmp_path) as log:
        site = SiteObservers(
            tmp_path,
            log,
            name="north",
            coordinator="here:9092",
            budgets=lambda: {"account": account},
        )
        site.connected()
        found = exported()
        assert value(found, "connected") == 1
        assert value(found, "budget_used", budget="rounds", by="4567cdef") == 5
        assert value(found, "budget_limit", budget="epsilon") == 2.5
        assert value(found, "budget_used", budget="epsilon") == float("inf")
        site.end("stopped")
    assert value(exported(), "connected") == 0


HOSTILE = 'a"b\\c\nerosion_health 7\n\x1b[31m' + "x" * 1000


def test_a_label_of_any_text_stays_one_label() -> None:
    found = read(exposition([Sample("health", 0, {"study": HOSTILE}), Sample("hospitals", 1.25)]))
    ((labels, health),) = found["erosion_health"].items()
    assert health == 0
    assert len(dict(labels)["study"]) <= monitoring.MOST_LABEL
    assert found["erosion_hospitals"] == {frozenset(): 1.25}


def perfdata(line: str) -> dict[str, str]:
    assert line.startswith("| ")
    return dict(re.findall(r"'([^'=]+)'=(\S+)", line))


def test_the_plugin_s_performance_data_are_the_exported_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = expiry.now()
    status = CoordinatorStatus(
        tmp_path / "status.json", RUN.study, lambda: now + timedelta(hours=1)
    )
    play(status, RUN)
    status._file._write()
    monkeypatch.setattr(time, "time", lambda: now.timestamp())
    assert main(["status", str(tmp_path)]) == 1  # the certificate
    *words, last = capsys.readouterr().out.splitlines()
    assert not any("|" in line for line in words)
    told = perfdata(last)
    done = sum(record.outcome == "done" for record in RUN.records)
    assert told["rounds_done"] == f"{done}c"
    assert told["certificate_expiry_seconds"] == "3600s"
    assert told["hospitals"] == str(len(RUN.study.hospitals))
    assert told["sent_bytes"].endswith("B")
    main(["status", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)["performance"]
    assert {k: re.sub("[a-zA-Z]+$", "", v) for k, v in told.items()} == {
        k: f"{v:g}" if v == int(v) and v < 1e5 else told[k].rstrip("csB") for k, v in found.items()
    }
    assert found["rounds_done"] == done
    status.ended()


def test_a_status_file_that_was_edited_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "status.json").write_text('{"format": 1, "study": "x", "hospitals": 3, "phase": 1}')
    assert main(["status", str(tmp_path)]) == 3
    assert "Traceback" not in capsys.readouterr().out


# -- Over HTTP -----------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[int]:
    port = int(free_address().rpartition(":")[2])
    with exporting([("127.0.0.1", port)]):
        yield port


def scrape(port: int, path: str = "/metrics") -> Any:
    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE)


def test_the_page_is_plain_text_at_one_address(served: int, tmp_path: Path) -> None:
    status = coordinator(tmp_path / "status.json")
    with scrape(served) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "erosion_rounds_total" in read(answer.read().decode())
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(served, "/")
    status.ended()


def test_a_port_in_use_is_refused_before_anything_begins(
    served: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(LinkError, str(served)), exporting([("127.0.0.1", served)]):
        pass
    study = tmp_path / "study.toml"
    study.write_bytes((Path(__file__).parents[2] / "erosion/studies/breast-cancer.toml")
                      .read_bytes())  # fmt: skip
    code = main(["server", str(study), "--insecure", "--runs", str(tmp_path / "runs"),
                 "--metrics", str(served)])  # fmt: skip
    assert code == LinkError.exit_code
    assert str(served) in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_many_at_once_and_those_who_drip_cost_the_others_nothing(
    served: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "MOST_REQUESTS", 4)
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", 0.5)
    slow = []
    for _ in range(12):
        connection = socket.create_connection(("127.0.0.1", served), timeout=PATIENCE)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        slow.append(connection)
    for connection in slow:  # each is closed from the other side, the first ones when overdue
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
        connection.close()

    def is_answered() -> bool:
        try:
            with scrape(served) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait_until(is_answered)


@pytest.mark.parametrize("place", ["", "x", "70000", "host:", "host:-1", "run.txt"])
def test_a_place_that_is_none_is_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["client", "site.toml", "--metrics", place])
    assert ended.value.code == 2
    assert "--metrics" in capsys.readouterr().err


# -- As a file -----------------------------------------------------------------------------------


def test_a_file_is_whole_at_any_time_and_ends_with_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "FILE_SECONDS", 0.01)
    path = tmp_path / "collector" / "erosion.prom"
    assert parser().parse_args(["client", "s.toml", "--metrics", str(path)]).metrics == [path]
    with exporting([path]):
        assert path.stat().st_mode & 0o777 == 0o644
        status = coordinator(tmp_path / "status.json")
        wait_until(lambda: "erosion_rounds_total" in read(path.read_text()))
        assert value(read(path.read_text()), "health") == 0
        status.notify(StudyFailed("x"))
    assert value(read(path.read_text()), "health") == 2
    assert [p.name for p in path.parent.iterdir()] == ["erosion.prom"]


def test_a_file_that_cannot_be_written_is_refused_at_the_start_and_survived_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with refused(RunError, "erosion.prom"), exporting([tmp_path / "file" / "erosion.prom"]):
        pass
    monkeypatch.setattr(exporter, "FILE_SECONDS", 0.01)
    path = tmp_path / "erosion.prom"
    with exporting([path]):
        path.unlink()
        path.mkdir()
        wait_until(lambda: "erosion.prom" in caplog.text)
        first = caplog.text.count("tried again")
    assert first == 1


# -- The files for Prometheus and Grafana ---------------------------------------------------------


def expressions() -> list[str]:
    board = json.loads((FILES / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_metric_in_the_files_is_exported() -> None:
    known = {monitoring.PREFIX + name for name in monitoring.METRICS}
    text = " ".join([*expressions(), (FILES / "alerts.yml").read_text()])
    used = set(re.findall(r"\berosion_\w+", text))
    assert len(used) > 12
    assert used <= known


def test_the_page_lists_every_metric_as_the_program_explains_it() -> None:
    page = (FILES.parents[1] / "docs" / "monitoring.md").read_text()
    listed = re.findall(r"^\| `erosion_(\w+)` \| (.*) \|$", page, re.MULTILINE)
    explained = [(name, said[0].lower() + said[1:]) for name, said in monitoring.METRICS.items()]
    assert listed == explained


@pytest.mark.skipif(which("promtool") is None, reason="promtool (Debian: prometheus) is missing")
def test_promtool_accepts_the_alerts_the_dashboard_and_what_is_exported(tmp_path: Path) -> None:
    rules = [{"record": f"r:{n}", "expr": e} for n, e in enumerate(expressions())]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "b", "rules": rules}]}))
    for command in (
        ["check", "config", str(FILES / "prometheus.yml")],
        ["check", "rules", str(FILES / "alerts.yml"), str(tmp_path / "board.yml")],
    ):
        run = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    status = coordinator(tmp_path / "status.json")
    text = exposition(figures_of_this_program())
    run = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    status.ended()


@pytest.mark.skipif(
    which("prometheus") is None, reason="Prometheus (Debian: prometheus) is missing"
)
def test_prometheus_scrapes_ten_times_a_second_and_its_alerts_fire(
    served: int, tmp_path: Path
) -> None:
    """As `docker/monitoring` configures it, but for the times and the port."""
    for name, changes in {
        "prometheus.yml": {"interval: 15s": "interval: 100ms", ":9464": f":{served}"},
        "alerts.yml": {r"for: \d+m": "for: 200ms"},
    }.items():
        text = (FILES / name).read_text()
        for pattern, new in changes.items():
            text, count = re.subn(pattern, new, text)
            assert count
        (tmp_path / name).write_text(text)
    (port,) = free_ports(1)
    tomorrow = expiry.now() + timedelta(days=1)
    status = CoordinatorStatus(tmp_path / "status.json", RUN.study, lambda: tomorrow)
    play(status, RUN)
    status.notify(HospitalJoined(HOME, 24, ("alike",)))
    status.notify(HospitalLeft(HOME))
    options = [
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("w") as log:
        program = subprocess.Popen(["prometheus", *options], stdout=log, stderr=log)

    def asked(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=60) as page:
            return json.load(page)["data"]

    def firing() -> dict[str, dict[str, str]]:
        assert program.poll() is None, (tmp_path / "log").read_text()
        try:
            alerts = asked("alerts")["alerts"]
        except OSError:  # it is starting
            return {}
        return {a["labels"]["alertname"]: a["labels"] for a in alerts if a["state"] == "firing"}

    try:
        wait_until(lambda: firing().keys() >= {"ErosionHospitalAway", "ErosionCertificateEnds"})
        assert firing()["ErosionHospitalAway"]["hospital"] == HOME
        assert "ErosionDown" not in firing()
        (rounds,) = asked("query?query=sum(erosion_rounds_total)")["result"]
        assert int(rounds["value"][1]) == len(RUN.records)

        def scrapes() -> int:
            (counted,) = asked("query?query=count_over_time(up[1h])")["result"]
            return int(counted["value"][1])

        wait_until(lambda: scrapes() > 20)
    finally:
        program.kill()
        program.wait(PATIENCE)
        status.ended()
