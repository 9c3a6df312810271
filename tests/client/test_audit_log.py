"""The log of what a hospital sent: chained, and honest about crashes."""

import fcntl
import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from erosion_client.connection import agent
from erosion_client.connection import serve as serving
from erosion_client.consent.consent import Consent
from erosion_client.records import audit_log as audit_log_module
from erosion_client.records.audit_log import AuditLog, SiteObservers
from erosion_common.errors import NotReady, SiteError
from erosion_common.formats.sent_log import full_files, remove_old, verify
from erosion_common.program.command_line import main
from erosion_common.protocol import wire
from erosion_common.protocol.compression import Compression, compress
from erosion_common.protocol.frames import LONGEST_REASON
from erosion_common.protocol.messages import (
    ColumnSummary,
    Metrics,
    StepReply,
    StepResult,
    SummaryReply,
    TrainReply,
    TrainResult,
)
from tests.support.broken_line import BreaksAfterTheWelcome
from tests.support.said import raises, says
from tests.support.sent_logs import UPDATE, long_log, reply, request, sent
from tests.support.small_study import make_study


def line_of(folder: Path, asked: Message, answer: RecordDict | Error) -> dict[str, Any]:
    """The line of one answer, in a log that verifies."""
    with AuditLog(folder) as audit_log:
        audit_log.record(asked, Message(answer, reply_to=asked))
        assert verify(audit_log.path).num_lines == 1
        line: dict[str, Any] = json.loads(audit_log.path.read_text())
    return line


def test_a_line_says_what_was_sent_when_and_for_which_round(tmp_path: Path) -> None:
    line = json.loads(sent(tmp_path, 1).read_text())
    of = {key: line[key] for key in ("study", "kind", "run", "arm", "round")}
    assert [*of.values()] == ["small", "train", "run-7", "fedavg", 1]
    assert line["norm"] == pytest.approx(5.0)
    assert line["arrays"] == {"update": [6]}
    header = wire.header_text(reply(request()).content)
    content = header.encode() + UPDATE.numpy().astype("<f4").tobytes()
    assert line["bytes"] == len(content)
    assert line["sha256"] == hashlib.sha256(content).hexdigest()
    assert line["previous"] == "0" * 64


def test_errors_and_other_apps_answers_are_in_the_log(tmp_path: Path) -> None:
    line = line_of(tmp_path / "a", request(), Error(2, "b: DataError"))
    assert (line["error"], line["norm"]) == ("b: DataError", None)
    told = RecordDict({"mine": MetricRecord({"accuracy": 0.875, "each": [1, 2]})})
    line = line_of(tmp_path / "b", Message(RecordDict(), 1, wire.TRAIN), told)
    assert line["figures"] == {"mine": {"metrics": {"accuracy": 0.875, "each": [1, 2]}}}


def test_what_is_not_finite_or_makes_no_sense_is_logged(tmp_path: Path) -> None:
    asked = Message(RecordDict({"header": ArrayRecord()}), 1, wire.TRAIN)
    header = wire.decode_train_result(reply(asked).content).header
    spoiled = TrainResult(header, torch.full((6,), torch.nan))
    assert line_of(tmp_path / "a", asked, wire.encode_result(spoiled))["norm"] is None
    strange = TrainResult(header, torch.zeros(600), {"ball": torch.tensor([torch.nan, 1.5])})
    line = line_of(tmp_path / "b", request(), wire.encode_result(strange))
    assert line["values"] == {"ball": [None, 1.5]}


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
def test_the_norm_of_a_compressed_update_is_in_the_log(tmp_path: Path, kind: Compression) -> None:
    header = wire.decode_train_result(reply(request()).content).header
    sent = compress(UPDATE, kind)
    result = wire.encode_result(TrainResult(header, sent, {}))
    line = line_of(tmp_path, request(), result)
    assert line["norm"] == pytest.approx(5.0, rel=0.01)
    assert line["arrays"][f"update.{kind}"] == [6 if kind == "int8" else 12]


def test_the_log_is_for_the_sites_account_alone(tmp_path: Path) -> None:
    path = sent(tmp_path / "records", 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_log_goes_on_where_it_stopped_and_half_a_line_after_a_crash_goes(tmp_path: Path) -> None:
    path = sent(tmp_path, 2)
    with path.open("a") as file:
        file.write('{"number":3,"time":"20')
    assert verify(path).cut_off
    with AuditLog(tmp_path) as audit_log:
        asked = request(3)
        audit_log.record(asked, reply(asked, 3))
        head = audit_log.head
    found = verify(path)
    assert (found.num_lines, found.head, found.cut_off) == (3, head, False)


@pytest.mark.parametrize(
    ("place", "name", "file_bytes"),
    [(os, "fdatasync", 2**20), (audit_log_module, "_opened", 1)],  # 1: every line fills a file
    ids=["line", "file"],
)
def test_nothing_is_sent_without_a_log(
    tmp_path: Path, place: Any, name: str, file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_what: object) -> None:
        raise OSError(28, "No space left on device")

    asked = request()
    with AuditLog(tmp_path, file_bytes=file_bytes) as audit_log:
        audit_log.record(asked, reply(asked))
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            for _ in range(2):
                with raises(NotReady, "No space"):
                    audit_log.record(asked, reply(asked))
        audit_log.record(asked, reply(asked))  # somebody made room
    assert verify(tmp_path / "sent.jsonl").num_lines == 2


def test_a_log_that_was_taken_away_is_not_written_into(tmp_path: Path) -> None:
    path, away, asked = tmp_path / "sent.jsonl", tmp_path / "sent.jsonl.1", request()
    with AuditLog(tmp_path) as audit_log:
        audit_log.record(asked, reply(asked))
        path.rename(away)
        for is_replaced in (False, True):
            if is_replaced:
                path.touch()
            with raises(NotReady, "removed", "replaced", "it back"):
                audit_log.record(asked, reply(asked))
        away.replace(path)
        whole = path.read_bytes()
        path.write_bytes(b"")  # as logrotate's copytruncate does
        with raises(NotReady, "cut off", "it back"):
            audit_log.record(asked, reply(asked))
        path.write_bytes(whole)
        audit_log.record(asked, reply(asked))
    assert verify(path).num_lines == 2


class Line(BreaksAfterTheWelcome):
    """A connection on which one notice comes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sent: list[Message] = []

    def receive(self, _seconds: float) -> Message:
        notice = wire.Notice(text="the study has ended", final=False, ended=("r",))
        return Message(wire.encode_header(notice), 1, wire.NOTICE)

    def reply(self, _request: Message, reply: Message, _log_head: str | None) -> None:
        self.sent.append(reply)


@pytest.mark.parametrize(
    ("kind", "is_repeated", "is_paced"),
    [
        (wire.NOTICE, False, True),
        (wire.DESCRIBE, False, True),
        (wire.SUMMARY, False, True),
        (wire.TRAIN, False, False),
        (wire.TRAIN, True, True),
    ],
)
def test_what_no_budget_bounds_is_answered_at_a_pace(
    kind: str, is_repeated: bool, is_paced: bool
) -> None:
    """Else a coordinator could fill a hospital's disk with lines of its log."""
    counted: list[float] = []

    class Pace:
        def seconds_to_wait(self, now: float, num_bytes: int = 0) -> float:
            counted.append(now)
            return 0.0

    site = agent.Agent(
        Line,  # type: ignore[arg-type]
        ClientApp(),
        address="127.0.0.1:9092",
        is_repeated=lambda: is_repeated,
    )
    vars(site)["_pace"] = Pace()
    asked = Message(RecordDict(), 1, kind)
    site._send(Line(), asked, Message(RecordDict(), reply_to=asked))  # type: ignore[arg-type]
    assert bool(counted) is is_paced


@pytest.mark.parametrize("kind", [wire.NOTICE, wire.EVALUATE])
def test_what_is_logged_at_any_length_is_paced_by_it(kind: str) -> None:
    """A notice that ends a thousand runs fills a megabyte; final figures asked for again, 45 kB."""
    counted: list[int] = []

    class Pace:
        def seconds_to_wait(self, now: float, num_bytes: int = 0) -> float:
            counted.append(num_bytes)
            return 0.0

    site = agent.Agent(Line, ClientApp(), address="127.0.0.1:9092", is_repeated=lambda: True)  # type: ignore[arg-type]
    vars(site)["_pace"] = Pace()
    for ended in ((), ("r" * 1000,) * 1000):
        said = wire.Notice(text="the study has ended", final=False, ended=ended)
        asked = Message(wire.encode_header(said), 1, kind)
        site._send(Line(), asked, Message(wire.encode_header(said), reply_to=asked))  # type: ignore[arg-type]
    short, long = counted
    assert short < agent.BYTES_EACH
    assert long > 1000 * 1000


def test_its_agent_knows_repeated_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site.toml"
    site.write_text(
        'name = "b"\n[data]\npath = "data.csv"\n[coordinator]\naddress = "127.0.0.1:1"\n'
    )
    consents: list[Consent] = []
    agents: list[agent.Agent] = []

    def make_app(_hospital: object, consent: Consent) -> ClientApp:
        consents.append(consent)
        return ClientApp()

    monkeypatch.setattr(serving, "make_app", make_app)
    monkeypatch.setattr(serving, "_run", lambda made, _watch: agents.append(made))
    serving.serve(site, agent.Until())
    for is_repeated in (True, False):
        consents[0].is_repeated = is_repeated
        assert vars(agents[0])["_is_repeated"]() is is_repeated


def test_a_site_that_cannot_log_signs_out_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "LAST_RETRY_SECONDS", 0.01)
    lines: list[Line] = []

    def connect() -> Line:
        lines.append(Line())
        return lines[-1]

    class Watcher:
        def connected(self, _clock: str) -> None:
            pass

        def disconnected(self, why: str) -> None:
            assert "no room" in why

        def sending(self, request: Message, reply: Message) -> str | None:
            if len(lines) < 3:
                raise NotReady("no room")
            return None

    agent.Agent(
        connect,  # type: ignore[arg-type]
        ClientApp(),
        address="127.0.0.1:9092",
        until=agent.Until(study_ends=True),
        watchers=[Watcher()],  # type: ignore[list-item]
    ).run()
    assert [len(line.sent) > 0 for line in lines] == [False, False, True]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda a, b, c, d: [a, b.replace('"round":2', '"round":9'), c, d], "line 3"),
        (lambda a, _b, c, d: [a, c, d], "line 2"),
        (lambda _a, b, c, d: [b, c, d], "line 2"),
        (lambda a, b, c, d: [a, c, b, d], "line 2"),
        (lambda a, b, c, d: [a, b, b, c, d], "line 3"),
        (lambda a, b, *_: [a, b, "not a line\n"], "line 3"),
    ],
)
def test_changed_lines_show(tmp_path: Path, change: Callable[..., list[str]], where: str) -> None:
    path = sent(tmp_path, 4)
    lines = change(*lines_of(path))
    path.write_text("".join(lines))
    with raises(SiteError, where):
        verify(path)
    if "not a line\n" in lines:
        with raises(SiteError, "erosion log"):
            AuditLog(tmp_path)


def test_lines_removed_at_the_end_show_only_against_a_hash_that_was_noted(tmp_path: Path) -> None:
    path = sent(tmp_path, 4)
    noted = verify(path).head
    assert verify(sent(tmp_path, 3), head=noted).num_lines == 7
    assert verify(path, head="0" * 64).num_lines == 7
    path.write_text("".join(lines_of(path)[:2]))
    assert verify(path).num_lines == 2
    with raises(SiteError, "were removed"):
        verify(path, head=noted)
    with raises(SiteError, "coordinator", "1 hashes"):
        verify(path, witnessed=[noted])


def test_a_full_file_is_set_aside_and_the_chain_goes_on(tmp_path: Path) -> None:
    heads = [*long_log(tmp_path, 9), *long_log(tmp_path, 3)]
    files = sorted(path.name for path in tmp_path.glob("sent*.jsonl"))
    assert len(files) > 2
    assert files[0] == "sent-000000001.jsonl"
    found = verify(tmp_path / "sent.jsonl", witnessed=heads)
    assert (found.num_lines, found.head, found.num_witnessed) == (12, heads[-1], 12)
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in files)


def test_a_crash_between_two_files_costs_no_line(tmp_path: Path) -> None:
    heads = long_log(tmp_path, 9)
    current = tmp_path / "sent.jsonl"
    first = json.loads(current.read_text().splitlines()[0])["number"]
    current.rename(tmp_path / f"sent-{first:09d}.jsonl")
    with AuditLog(tmp_path) as audit_log:
        assert audit_log.head == heads[-1]
        audit_log.record(request(), reply(request()))
    assert verify(current).num_lines == 10


def test_a_log_without_its_full_files_is_incomplete_not_altered(tmp_path: Path) -> None:
    long_log(tmp_path / "records", 9)
    current = tmp_path / "records" / "sent.jsonl"
    first = json.loads(current.read_text().splitlines()[0])["number"]
    alone = current.rename(tmp_path / "bob.jsonl")
    with raises(SiteError, "begins", f"line {first}") as problem:
        verify(alone)
    assert says(str(problem.value), "folder", "records")
    assert "changed" not in str(problem.value)


BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
IN_A_YEAR = BEGUN + timedelta(days=365)


def set_clock(monkeypatch: pytest.MonkeyPatch, time: datetime) -> None:
    """The log's clock stands at that time."""
    clock = SimpleNamespace(now=lambda _zone: time)
    monkeypatch.setattr(audit_log_module, "datetime", clock)


def test_old_files_go_but_not_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = tmp_path / "sent.jsonl"
    set_clock(monkeypatch, BEGUN)
    long_log(tmp_path, 9)
    of_last_year = full_files(current)
    assert remove_old(current, now=IN_A_YEAR, keep_days=364) == []  # no file was begun since
    set_clock(monkeypatch, IN_A_YEAR)
    long_log(tmp_path, 9)
    assert remove_old(current, now=IN_A_YEAR, keep_days=366) == []
    assert remove_old(current, now=IN_A_YEAR, keep_days=364)[: len(of_last_year)] == of_last_year
    oldest = full_files(current)[0]
    found = verify(current)
    assert found.first == json.loads(oldest.read_text().splitlines()[0])["number"] > 1
    assert found.num_lines == 19 - found.first


def test_a_wrong_clock_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, BEGUN)
    heads = long_log(tmp_path, 9)
    set_clock(monkeypatch, IN_A_YEAR)
    with AuditLog(tmp_path, file_bytes=1, keep_days=30) as audit_log:
        audit_log.record(request(), reply(request()))  # in another file
    set_clock(monkeypatch, BEGUN)
    with AuditLog(tmp_path, file_bytes=1, keep_days=30) as audit_log:
        audit_log.record(request(), reply(request()))
    found = verify(tmp_path / "sent.jsonl", witnessed=heads)
    assert (found.first, found.num_lines, found.num_witnessed) == (1, 11, 9)


def test_a_second_program_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, BEGUN)
    long_log(tmp_path, 9)
    set_clock(monkeypatch, IN_A_YEAR)
    long_log(tmp_path, 9)
    full = full_files(tmp_path / "sent.jsonl")
    with (tmp_path / "sent.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with raises(SiteError, "runs already"):
            AuditLog(tmp_path, keep_days=30)
    assert full_files(tmp_path / "sent.jsonl") == full
    AuditLog(tmp_path, keep_days=30).__exit__(None, None, None)
    assert full_files(tmp_path / "sent.jsonl") != full


def test_what_a_request_calls_itself_is_quoted_short_and_printable(tmp_path: Path) -> None:
    """A line over 64 KiB once kept a site from starting again."""
    header = {"run": "r" * 100_000, "arm": "\x1b[2J\u202e", "round": 10**400, "digest": 3}
    asked = Message(
        RecordDict({"header": ConfigRecord({"json": json.dumps(header)})}), 1, wire.TRAIN
    )
    with AuditLog(tmp_path) as audit_log:
        audit_log.record(asked, Message(Error(2, "x" * LONGEST_REASON), reply_to=asked))
        line = json.loads(audit_log.path.read_text())
    assert len(line["run"]) == 200
    assert line["arm"].isprintable()
    assert line["round"] is None
    assert audit_log.path.stat().st_size < 6000
    with AuditLog(tmp_path) as audit_log:
        assert verify(audit_log.path).num_lines == 1


MANY = {f"code {number:06d}": number for number in range(20_000)}
MANY_CODES = ColumnSummary(name="sex", kind="category", count=120, missing=0, shares=MANY)
AGE = ColumnSummary(name="age", kind="number", count=120, missing=0, mean=54.7, deviation=19.03)
METRICS = {"num_patients": 30, "accuracy": 0.9375, "log_loss": 0.25}
ANSWERS = {
    "summary": wire.encode_header(
        SummaryReply(
            hospital="b",
            software="1",
            min_cell=10,
            num_samples=120,
            num_patients=120,
            columns=(AGE, MANY_CODES),
        )
    ),
    "train": wire.encode_result(
        TrainResult(
            TrainReply(
                hospital="b",
                arm="gems",
                round=1,
                num_samples=20,
                samples_seen=8,
                seconds=0.125,
                metrics=Metrics.model_validate(METRICS),
                own_loss=0.75,
            ),
            torch.zeros(600),
            {"ball": torch.tensor([1.5, 0.875, 0.625, 16.0]), "noise": torch.tensor([0.3125])},
        )
    ),
    "step": wire.encode_result(
        StepResult(
            StepReply(
                hospital="b",
                arm="gems",
                round=1,
                step="check",
                seconds=0.25,
                values={"accuracy": 0.84375, "each": [0.5, {"of": 17}]},
            ),
            {"radii": torch.tensor([2.5, 3.5]), "codes": torch.tensor([7, 9], dtype=torch.uint8)},
        )
    ),
}


def numbers_in(value: object) -> list[float]:
    """Every number of JSON."""
    if isinstance(value, dict):
        return [number for inner in value.values() for number in numbers_in(inner)]
    if isinstance(value, list):
        return [number for inner in value for number in numbers_in(inner)]
    return [float(value)] if type(value) in (int, float) else []  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_number_that_is_told_is_in_the_log(tmp_path: Path, kind: str) -> None:
    answer = ANSWERS[kind]
    line = line_of(tmp_path, request(), answer)
    assert line["figures"] == json.loads(wire.header_text(answer))
    told = numbers_in(json.loads(wire.header_text(answer)))
    for name, array in answer.array_records.get("arrays", {}).items():
        values = np.frombuffer(array.data, array.dtype).tolist()
        assert line["values"].get(name) == (values if len(values) <= 16 else None)
        told += values if len(values) <= 16 else []
    assert len(told) >= 5
    assert not Counter(told) - Counter(numbers_in({k: line[k] for k in ("figures", "values")}))


def test_an_answer_that_the_log_cannot_hold_is_not_sent(tmp_path: Path) -> None:
    asked, header = request(), ConfigRecord({"json": json.dumps({"figures": "1" * (4 * 2**20)})})
    with AuditLog(tmp_path) as audit_log:
        with raises(SiteError, "4 MiB", "most"):
            audit_log.record(asked, Message(RecordDict({"header": header}), reply_to=asked))
        audit_log.record(asked, reply(asked))
        assert verify(audit_log.path).num_lines == 1


def test_a_pipe_or_a_file_in_the_logs_place_is_told_of(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sent.jsonl")
    with raises(SiteError, "sent.jsonl", "no ordinary file"):
        AuditLog(tmp_path)
    (tmp_path / "records").write_text("")
    with raises(SiteError, "records"):
        AuditLog(tmp_path / "records")


def test_a_log_cut_at_its_end_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Message(wire.encode_describe(make_study()), 1, wire.DESCRIBE)
    with AuditLog(tmp_path) as log:
        watch = SiteObservers(tmp_path, log, name="b", coordinator="c")
        for _ in range(3):
            watch.sending(asked, Message(Error(0, "no"), reply_to=asked))
        watch.end("the program ended")
    path = tmp_path / "sent.jsonl"
    assert main(["log", "verify", str(path)]) == 0
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1]))
    assert main(["log", "verify", str(path)]) != 0
    assert "removed" in capsys.readouterr().err


def test_the_log_names_the_approved_study_and_not_what_a_request_calls_it(tmp_path: Path) -> None:
    study = make_study()
    called = json.loads(wire.header_text(wire.encode_describe(study)))
    called["study"]["name"] = "another"
    request = RecordDict({"header": ConfigRecord({"json": json.dumps(called)})})
    asked = Message(request, 1, wire.DESCRIBE)
    with AuditLog(tmp_path) as log:
        watch = SiteObservers(
            tmp_path, log, name="b", coordinator="c", study_named={study.digest: study.name}.get
        )
        watch.sending(asked, Message(Error(0, "no"), reply_to=asked))
        watch.end("the program ended")
    line = json.loads((tmp_path / "sent.jsonl").read_text())
    assert line["study"] == study.name
    assert line["digest"] == study.digest
