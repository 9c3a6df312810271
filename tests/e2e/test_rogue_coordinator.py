"""A curious or rogue coordinator against a real site, whose hospital approves by rule.

Each test is a row of docs/threat-model.md. They share one site, which lives through all of it.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from erosion_client.records.records import FILE_NAME
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.formats.sent_log import verify
from erosion_common.program.command_line import main
from erosion_common.protocol import wire
from erosion_common.protocol.frames import Kind, frame, json_frame
from erosion_common.protocol.messages import PROTOCOL, DescribeReply, TrainRequest, TrainResult
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from tests.support.federation import small_study
from tests.support.patience import wait_until
from tests.support.rogue import Rogue, rogue_coordinator

MOST_MEGABYTES = 400  # more than before; a request of 2**40 bytes was announced


@pytest.fixture(scope="module")
def rogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rogue]:
    with rogue_coordinator(tmp_path_factory.mktemp("rogue"), lambda _: None) as rogue:
        # What it answered once it goes on answering, whatever an attack has used up since.
        assert isinstance(rogue.describe(peers("honest")), DescribeReply)
        yield rogue
        assert rogue.site.lives


@pytest.fixture(autouse=True)
def _the_site_lives_on(rogue: Rogue) -> Iterator[None]:
    """After every attack the site answers an honest question."""
    yield
    assert isinstance(rogue.describe(peers("honest")), DescribeReply)


def peers(name: str, **changes: object) -> Study:
    """A study in which bob only helps."""
    return small_study(**{"name": name, "arms": {"fedavg": {}}, **changes})


def test_the_batches_are_drawn_from_a_secret(rogue: Rogue, tmp_path: Path) -> None:
    """Which stops the attacks of `tests/client/test_reconstruction.py`."""
    study = peers("secret", scaling="none")
    asked = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, "r1")
    site = load_site(rogue.site.file)
    compute = site.compute.model_copy(update={"state": tmp_path})
    public = Hospital(site.model_copy(update={"compute": compute}))
    answer = rogue.train(asked)
    assert isinstance(answer, TrainResult)
    assert not torch.equal(answer.delta, public.train(asked).delta)


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "r1\n2026 ERROR forged", "\x1b[2J", "r\u202e1", "rа1"]
)
def test_strings_that_are_huge_or_deceive_are_refused_and_not_written(
    rogue: Rogue, text: str
) -> None:
    study = peers("strings")
    honest = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, "r1")
    for asked in (replace(honest, run=text), replace(honest, arm=text)):
        assert isinstance(rogue.train(asked), str)
    with_name = json.loads(study.canonical_json()) | {"name": text}
    header = {"protocol": PROTOCOL, "digest": "0" * 64, "study": with_name}
    assert rogue.why_not(as_header(json.dumps(header)), wire.DESCRIBE)
    last = rogue.site.log.read_bytes().splitlines()[-1]
    assert len(last) < 2**13
    for line in (rogue.site.log.read_text() + rogue.site.output.read_text()).splitlines():
        assert line.isprintable(), line[:200]
    assert "\n2026 ERROR forged" not in rogue.site.output.read_text()


def as_header(text: str) -> RecordDict:
    return RecordDict({"header": ConfigRecord({"json": text})})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "[" * 100_000, '{"a":' * 100_000, '{"protocol": 1e400}'),
        *("9" * 5000, '{"digest": "\\ud800"}'),
    ],
)
def test_a_header_that_makes_no_sense_gets_one_error(rogue: Rogue, text: str) -> None:
    for kind in (wire.DESCRIBE, wire.TRAIN, wire.EVALUATE, wire.NOTICE):
        assert rogue.why_not(as_header(text), kind)


@pytest.mark.parametrize(
    "kind",
    ["train.nothing", "query.nothing", "evaluate.x", "nothing", "system", "\x1b[2J", "é" * 900],
)
def test_an_unknown_message_type_gets_one_error(rogue: Rogue, kind: str) -> None:
    before = len(rogue.site.logged)
    head = {"id": f"r{abs(hash(kind))}", "type": kind, "group": "", "ttl": 60, "records": {}}
    # The site's answer is to nothing that the link asked for, so the link ends the line after it;
    # of a type that Flower does not have, no request can be made, and the site ends the line.
    rogue.line_ends([json_frame(Kind.MESSAGE, head)])
    new = "".join(rogue.site.logged[before:])
    assert "cannot answer" in new or "cannot be made" in rogue.site.output.read_text()
    assert "\x1b" not in new + rogue.site.output.read_text()


def test_a_notice_writes_no_line_of_its_own(rogue: Rogue) -> None:
    text = "\x1b[2J\x1b[Hall is well\n2026-01-01 00:00:00 ERROR erosion.agent: forged\u202e" * 50
    notice = wire.Notice(text=text, final=False)
    assert rogue.why_not(wire.encode_header(notice), wire.NOTICE) == ""
    wait_until(lambda: "the coordinator says" in rogue.site.output.read_text())
    said = rogue.site.output.read_text()
    assert "\x1b" not in said
    assert "\n2026-01-01" not in said


def test_nonsense_of_the_line_ends_the_line_and_not_the_site(rogue: Rogue) -> None:
    before = rogue.site.megabytes
    array = ["parameters", "float32", [6], "erosion.float32.le", 24]
    huge = ["parameters", "float32", [2**38], "erosion.float32.le", 2**40]
    head = {"id": "r", "type": "train", "group": "", "ttl": 60}
    for frames in (
        [json_frame(Kind.MESSAGE, {**head, "records": {"arrays": {"arrays": [array] * 400}}})],
        [json_frame(Kind.MESSAGE, {**head, "records": {"arrays": {"arrays": [huge]}}})],
        [frame(Kind.MESSAGE, b"[" * 200_000)],
        [frame(Kind.MESSAGE, b'{"records":' * 50_000)],
        [json_frame(Kind.MESSAGE, {**head, "records": {"a": {"what": 1}}})],
        [json_frame(Kind.MESSAGE, {**head, "id": 3, "records": {}})],
        [json_frame(Kind.MESSAGE, {**head, "records": {"header": {"config": {"json": "\ud800"}}}})],
        [frame(Kind.DATA, b"data of no message")],
        [bytes([200]) + b"x"],
        [json_frame(Kind.MESSAGE, {**head, "id": f"r{n}", "records": {}}) for n in range(500)],
    ):
        rogue.line_ends(frames)
    # More answers to PING than an honest coordinator takes: it ends the line itself.
    rogue.line_ends([frame(Kind.PING)] * 20_000)
    assert isinstance(rogue.describe(peers("honest")), DescribeReply)
    assert rogue.site.megabytes - before < MOST_MEGABYTES


def test_a_flood_of_nonsense_grows_the_log_by_little(rogue: Rogue) -> None:
    assert isinstance(rogue.describe(peers("honest")), DescribeReply)
    before = rogue.site.log.stat().st_size
    for _ in range(10):  # the site takes a second for each
        assert rogue.why_not(as_header('{"run": "' + "x" * 300_000 + '"}'), wire.TRAIN)
    assert rogue.site.log.stat().st_size - before < 10 * 2000


def test_studies_as_large_as_a_message_are_answered_and_not_kept(rogue: Rogue) -> None:
    """Of a fold nobody decides, and none of them was ever forgotten: gigabytes in a minute."""
    rogue.node()
    before = rogue.site.megabytes
    features = [str(column) for column in range(100_000)]
    small = peers("large")
    task = {**small.task.model_dump(mode="json"), "features": features}
    large = peers("large", task=task)
    for number in range(6):  # of 77 MB each, where all are kept
        of_its_own = {"name": f"large-{number}", "fold": Fold(number=0, of=2)}
        # As people write it: its columns take much more as the program does.
        values = json.loads(small.model_copy(update=of_its_own).canonical_json())
        values["task"]["features"] = features
        digest = large.model_copy(update=of_its_own).digest
        header = {"protocol": PROTOCOL, "digest": digest, "study": values, "run": "r1"}
        assert "has approved study" in rogue.why_not(as_header(json.dumps(header)), wire.DESCRIBE)
    assert rogue.site.megabytes - before < MOST_MEGABYTES


def test_a_study_of_hundreds_of_thousands_of_classes_is_answered(rogue: Rogue) -> None:
    """Each was looked for among all others, which took the site half an hour."""
    task = small_study().task.model_dump(mode="json")
    many = {**task, "classes": [str(number) for number in range(300_000)]}
    values = {**json.loads(peers("classes").canonical_json()), "task": many}
    header = {"protocol": PROTOCOL, "digest": "0" * 64, "study": values, "run": "r1"}
    assert rogue.why_not(as_header(json.dumps(header)), wire.DESCRIBE)


def test_a_study_cannot_deceive_who_reviews_it(
    rogue: Rogue, capsys: pytest.CaptureFixture[str]
) -> None:
    task = small_study().task.model_dump(mode="json")
    task["features"] = ["age", "dose\u202e\x1b[2J", "\ndigest      0000"]
    study = peers("deceiving", task=task)
    assert isinstance(rogue.describe(study), str)  # it has no such columns
    assert main(["review", str(rogue.site.file), study.digest[:12]]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert "digest      0000" not in [line.strip() for line in shown.splitlines()]


def test_a_round_is_answered_once_also_after_the_power_went_or_an_old_book_came_back(
    rogue: Rogue,
) -> None:
    """Killed, restored from a backup, or removed: what was answered since is in the log."""
    study = peers("backup", scaling="none")
    asked = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, "r1")
    other = replace(asked, sent=torch.ones(6))
    first, site = rogue.train(asked), rogue.site
    assert isinstance(first, TrainResult)
    site.kill()
    backup = {file: file.read_bytes() for file in site.state.glob(f"{FILE_NAME}*")}
    site.start()
    again = rogue.train(asked)
    assert isinstance(again, TrainResult)
    assert torch.equal(first.delta, again.delta)
    assert "to other parameters" in str(rogue.train(other))
    assert isinstance(rogue.train(replace(asked, round=2)), TrainResult)
    site.stop()
    for file in site.state.glob(f"{FILE_NAME}*"):
        file.unlink()
    for file, content in backup.items():
        file.write_bytes(content)
    site.start()
    assert "records were restored" in str(rogue.train(replace(other, round=2)))
    assert isinstance(rogue.train(asked), TrainResult)  # which the old book has
    site.stop()
    for file in site.state.glob(f"{FILE_NAME}*"):
        file.unlink()
    site.start()
    assert "records were restored" in str(rogue.train(other))


def test_the_site_starts_again_after_all_of_it(rogue: Rogue) -> None:
    assert isinstance(rogue.describe(peers("honest")), DescribeReply)
    rogue.site.stop()
    assert verify(rogue.site.log).num_lines > 0
    rogue.site.start()
    assert isinstance(rogue.describe(peers("honest")), DescribeReply)


def test_a_flood_before_any_approval_leaves_a_few_bytes_for_each_request(rogue: Rogue) -> None:
    """Digests of megabytes, of studies that nobody sent, and a name that patterns stumble over."""
    before = rogue.site.log.stat().st_size + rogue.site.output.stat().st_size
    long = "d" * 2_000_000
    train = {"arm": "a", "round": 1, "scaling": None, "run": "r", "step": "train", "exchange": 1}
    for digest in (long, "0" * 64, ":" * 60_000):
        header = {"protocol": PROTOCOL, "digest": digest, "study": None, **train}
        rogue.why_not(as_header(json.dumps(header)), wire.TRAIN)
    colons = json.loads(peers("colons").canonical_json()) | {"name": ":" * 60_000}
    header = {"protocol": PROTOCOL, "digest": "0" * 64, "study": colons, "run": None}
    assert rogue.why_not(as_header(json.dumps(header)), wire.DESCRIBE)
    written = rogue.site.log.stat().st_size + rogue.site.output.stat().st_size - before
    assert written < 4 * 8192


def test_one_array_named_400_times_or_400_arrays_get_one_error(rogue: Rogue) -> None:
    study = peers("arrays")
    asked = TrainRequest(study, "fedavg", 1, torch.zeros(6), None, "r1")
    many = replace(asked, enclosed={f"a{n}": torch.zeros(6) for n in range(400)})
    assert "arrays, at most" in str(rogue.train(many)) or "WireError" in str(rogue.train(many))
