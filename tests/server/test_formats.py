"""Truncated, edited and foreign files of a run: a sentence, never a traceback."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from erosion_common.errors import CheckpointError, ErosionError
from erosion_common.formats.json_file import CHECKSUM, WRITER, with_checksum, write_json
from erosion_common.formats.model_card import read_model, write_model
from erosion_common.formats.tensor_file import metadata
from erosion_common.program.command_line import main
from erosion_common.rounds import checkpoint
from erosion_common.rounds.records import RunState
from erosion_common.rounds.round import first_state
from erosion_common.support.status import find_status, in_words
from erosion_server.coordination.folder_store import RunDecisions, read_run_decisions
from erosion_server.export.saved_run import load_saved_run
from erosion_server.output.report import write_report
from erosion_server.output.run_data import read_run
from erosion_server.run.journal import read_records
from erosion_server.run.run_folder import RunFolder
from tests.support.refusals import refused
from tests.support.synthetic_run import make_run

RUN = make_run(rounds=2)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def read_status(folder: Path) -> str:
    return in_words(*find_status(folder))


FILES: dict[str, Callable[[Path], Any]] = {
    "model.json": read_model,
    "model.safetensors": read_model,
    "result.json": lambda folder: read_run(RunFolder(folder)),
    "rounds.jsonl": lambda folder: read_run(RunFolder(folder)),
    "beginning.json": lambda folder: read_run_decisions(RunFolder(folder)),
    "status.json": read_status,
}
COHORT = ("alike", "home")
VERSIONED = [name for name in FILES if name.endswith(".json")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = RUN.write(tmp_path_factory.mktemp("runs") / "run")
    decided = RunDecisions(
        started="2026-05-04T09:21:07+00:00",
        scaling=None,
        choices={},
        cohort=COHORT,
        study=RUN.study.digest,
        run="first",
    )
    write_json(path / "beginning.json", decided)
    status = {"format": 1, "study": "s", "user": "u", "phase": "training", "weights": {"a": 1.0}}
    (path / "status.json").write_text(json.dumps(status))
    return path


def read_changed(folder: Path, name: str, content: bytes) -> None:
    """Read the file as if it had this content; it is put back."""
    path = folder / name
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        FILES[name](folder)
    finally:
        path.write_bytes(before)


def complaint(folder: Path, name: str, content: bytes) -> str:
    """What is said of the content; "" where it is read. Any other exception is a failure."""
    try:
        read_changed(folder, name, content)
    except ErosionError as problem:
        return str(problem)
    return ""


def as_line(values: dict[str, Any]) -> str:
    """As the program would write these."""
    return json.dumps(with_checksum(without(values, CHECKSUM))) + "\n"


def values_in(content: str) -> list[dict[str, Any]]:
    """Of a journal by line, or of a file that is one object."""
    objects = content.splitlines() if content.startswith('{"') else [content]
    return [json.loads(text) for text in objects]


def without(values: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != left_out}


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_a_sentence(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    # Without the last line's end a file is still whole.
    for length in range(0, len(content) - 1, max(1, len(content) // 40)):
        assert name in complaint(folder, name, content[:length])


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_files_place_is_not_waited_for(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with refused(ErosionError, name):
        FILES[name](tmp_path / "run")


@pytest.mark.parametrize("name", ["model.json", "result.json", "beginning.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_what_is_damaged_may_be_in_a_backup(folder: Path, name: str, content: bytes) -> None:
    assert "backup" in complaint(folder, name, content)


@pytest.mark.parametrize("content", [b"", b"name =", b"\xff"])
def test_a_runs_own_study_is_in_a_backup_and_is_not_corrected(
    folder: Path, tmp_path: Path, content: bytes
) -> None:
    copied = RunFolder(shutil.copytree(folder, tmp_path / "run"))
    copied.study.write_bytes(content)
    with refused(CheckpointError, "study.toml", "backup"):
        read_run(copied)
    copied.report.unlink(missing_ok=True)
    assert main(["server", "--resume", str(copied.path)]) == CheckpointError.exit_code


def test_a_run_without_a_result_is_resumed_and_a_lost_journal_is_in_a_backup(
    folder: Path, tmp_path: Path
) -> None:
    for name, remedy in (("result.json", "--resume"), ("rounds.jsonl", "backup")):
        copied = RunFolder(shutil.copytree(folder, tmp_path / name))
        (copied.path / name).unlink()
        with refused(CheckpointError, name, remedy):
            read_run(copied)


def test_a_journal_with_fewer_rounds_than_the_result_is_refused(folder: Path) -> None:
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    far = as_line({**json.loads(lines[0]), "round": 9}).encode()
    for left in (lines[:-1], lines[1:], [], [far, *lines[1:]]):
        with refused(CheckpointError, "2 rounds"):
            read_changed(folder, "rounds.jsonl", b"".join(left))


def test_a_run_is_not_reported_by_another_study_than_it_was_begun_with(folder: Path) -> None:
    path = folder / "study.toml"
    before = path.read_text()
    path.write_text(re.sub("(?m)^rounds = .*", "rounds = 77", before))
    try:
        with refused(CheckpointError, "study.toml", "beginning.json"):
            read_run(RunFolder(folder))
    finally:
        path.write_text(before)
    assert read_run(RunFolder(folder)).study == RUN.study


def test_another_runs_model_is_neither_reported_nor_exported(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder, run)
    card, model = read_model(run)
    write_model(run, card.model_copy(update={"run": "second"}), model)
    for use in (write_report, lambda path: load_saved_run(path, None, tmp_path)):
        with refused(CheckpointError, "model.json", "second", "first"):
            use(run)
    write_model(run, card.model_copy(update={"run": "first"}), model)
    assert load_saved_run(write_report(run).parent, None, tmp_path).card.run == "first"


@pytest.mark.parametrize("name", ["model.json", "result.json", "beginning.json", "rounds.jsonl"])
def test_another_digit_and_a_file_without_a_checksum_are_refused(folder: Path, name: str) -> None:
    content = (folder / name).read_text()
    digits = [at for at, sign in enumerate(content) if sign.isdigit()]
    assert digits
    for at in digits[:: max(1, len(digits) // 100)]:
        other = f"{content[:at]}{'1' if content[at] != '1' else '2'}{content[at + 1 :]}"
        if values_in(other) != values_in(content):  # the last digits of a number may be idle
            assert name in complaint(folder, name, other.encode())
    bare = "".join(f"{json.dumps(without(v, CHECKSUM))}\n" for v in values_in(content))
    assert CHECKSUM in complaint(folder, name, bare.encode())


@pytest.mark.parametrize("change", [1, -1])
def test_a_model_that_its_card_was_not_written_with_is_refused(folder: Path, change: int) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[change * 4] ^= 1  # in the header's length, or in the last number
    with refused(CheckpointError, "model.safetensors"):
        read_changed(folder, "model.safetensors", bytes(content))


@pytest.mark.parametrize("name", VERSIONED)
@pytest.mark.parametrize("version", [None, 0, 2, "1", True, [1]])
def test_another_version_is_named(folder: Path, name: str, version: Any) -> None:
    values = json.loads((folder / name).read_text())
    values["format"] = version
    with refused(ErosionError, "format", name):
        read_changed(folder, name, json.dumps(values).encode())


@pytest.mark.parametrize("name", ["model.json", "result.json", "beginning.json"])
def test_a_newer_file_names_the_version_that_reads_it(folder: Path, name: str) -> None:
    values = json.loads((folder / name).read_text())
    later = as_line({**values, "format": 2, WRITER: "7.3.0"})
    assert "Use erosion 7.3.0" in complaint(folder, name, later.encode())


@pytest.mark.parametrize("name", ["model.json", "result.json", "beginning.json"])
def test_an_unknown_and_a_missing_key_are_named(folder: Path, name: str) -> None:
    values = json.loads((folder / name).read_text())
    with refused(ErosionError, "from_the_future"):
        read_changed(folder, name, json.dumps({**values, "from_the_future": 1}).encode())
    left_out = "started" if "started" in values else "arm"
    del values[left_out]
    with refused(ErosionError, left_out):
        read_changed(folder, name, json.dumps(values).encode())


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize("name", [name for name in FILES if name != "model.safetensors"])
def test_values_of_any_kind_are_no_traceback(folder: Path, name: str, data: st.DataObject) -> None:
    lines = (folder / name).read_text().splitlines() if name == "rounds.jsonl" else []
    values = json.loads(lines[0] if lines else (folder / name).read_text())
    key = data.draw(st.sampled_from(sorted(values)))
    values[key] = data.draw(JSON)
    if key == CHECKSUM or data.draw(st.booleans()):
        text = json.dumps(values) + "\n"
    else:
        text = as_line(values)
    text += "".join(f"{line}\n" for line in lines[1:])
    assert len(complaint(folder, name, text.encode())) not in range(1, 20)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=200))
@pytest.mark.parametrize("name", FILES)
def test_any_bytes_are_no_traceback(folder: Path, name: str, content: bytes) -> None:
    assert len(complaint(folder, name, content)) not in range(1, 20)


def state() -> RunState:
    algorithm = RUN.study.arms["weight_erosion"].build(RUN.study.build_context)
    return first_state(algorithm, torch.arange(6.0))


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """A checkpoint whose header and tensors went through `change`."""
    checkpoint.save(path, state(), arm="a", study_digest="d")
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["erosion"].partition(" ")[2])  # after its checksum
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(header, tensors)
    save_file(tensors, path, metadata=metadata(header, tensors))
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda h, t: h["state"].pop("skipped_in_a_row"), "skipped_in_a_row"),
        (lambda h, t: h["state"].update(later=1), "later"),
        (lambda h, t: h.update(version=7), "version 7"),
        (lambda h, t: h.pop("state"), "state"),
        (lambda h, t: t.pop("/params"), "state.params"),
        (lambda h, t: h["state"].update(params=[1.0]), "state.params"),
        (lambda h, t: h["state"].update(round="3"), "state.round"),
        (lambda h, t: t.update({"/params": torch.zeros(2, 3)}), "2 dimensions"),
    ],
)
def test_a_checkpoint_of_another_shape_is_explained(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], named: str
) -> None:
    path = rewritten(tmp_path / "a.safetensors", change)
    with refused(CheckpointError, named, path):
        checkpoint.load(path, state(), arm="a", study_digest="d")


def test_the_journal_is_read_as_it_was_written(folder: Path) -> None:
    assert read_records(folder / "rounds.jsonl") == list(RUN.records)
