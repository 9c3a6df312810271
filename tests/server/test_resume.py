"""A coordinator killed at any moment and resumed: its files, with hospitals that follow a script.

Real sites and the line are in tests/e2e/test_resume.py.
"""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erosion_common.errors import CheckpointError, ErosionError, RunError
from erosion_common.formats.json_file import with_checksum, without_checksum
from erosion_common.formats.sent_log import Witness, read_witness
from erosion_common.program.command_line import main
from erosion_common.rounds import checkpoint
from erosion_common.rounds.arm import initial_state
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import EVERY_USER, Study, load_study
from erosion_common.support.network import free_address
from erosion_common.support.text import printable
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.run_study import Planned
from erosion_server.run.journal import Journal, read_journal, read_records
from erosion_server.run.run_folder import (
    RunFolder,
    alone_in,
    new_run_folder,
    open_run_folder,
    resumed_run_folder,
    user_folder,
    write_study,
)
from tests.support.killed_coordinator import (
    BULLETS,
    TRIAL_BULLETS,
    conduct,
    conduct_every_user,
    conduct_queue,
    same_run,
    without_times,
)
from tests.support.patience import PATIENCE
from tests.support.processes import start
from tests.support.refusals import refused
from tests.support.small_study import make_study
from tests.support.synced import synced
from tests.support.synthetic_run import make_run


def small_study() -> Study:
    return make_study(
        hospitals=["a", "b", "c"],
        rounds=4,
        arms={
            "weight_erosion": {"distance_penalty": 0.01},
            "bias_correction": {"server_optimizer": "momentum"},
        },
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = open_run_folder(tmp_path_factory.mktemp("runs") / "whole", small_study())
    conduct(small_study().canonical_json(), str(folder.path), None)
    return folder


@pytest.mark.parametrize("phase", BULLETS)
def test_killed_at_any_moment_and_resumed_is_bit_identical(
    tmp_path: Path, uninterrupted: RunFolder, phase: str
) -> None:
    study = small_study()
    text, folder = study.canonical_json(), open_run_folder(tmp_path / "run", study)
    killed = start(conduct, text, str(folder.path), phase)
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    assert not folder.has_ended
    conduct(text, str(folder.path), None)
    assert same_run(study, folder, uninterrupted)
    assert not list((folder.path / "checkpoints").glob(".*"))


def selecting_study(**changes: Any) -> Study:
    """Eight trials of four rounds: two arms, two candidates, two folds."""
    candidates = {
        "weight_erosion": [{}, {"distance_penalty": 1.0}],
        "fedavg": [{}, {"server_optimizer": "momentum"}],
    }
    arms = {"weight_erosion": {"distance_penalty": 0.01}, "fedavg": {}}
    selection = {"folds": 2, "candidates": candidates}
    values = {"hospitals": ["a", "b", "c"], "arms": arms, "selection": selection}
    return make_study(**{**values, **changes})


@pytest.fixture(scope="module")
def uninterrupted_selection(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    study = selecting_study()
    folder = open_run_folder(tmp_path_factory.mktemp("runs") / "whole", study)
    conduct(study.canonical_json(), str(folder.path), None)
    return folder


def lines_in_trials(folder: RunFolder) -> list[dict[str, Any]]:
    return [line for number in range(8) for line in read_journal(folder.finished_fold(number))]


def same_selection(study: Study, folder: RunFolder, whole: RunFolder) -> bool:
    """The same run, with the same trials and the same choices?"""
    trials = [list(map(without_times, lines_in_trials(f))) for f in (folder, whole)]
    choices = [json.loads(f.beginning.read_text())["choices"] for f in (folder, whole)]
    return same_run(study, folder, whole) and trials[0] == trials[1] and choices[0] == choices[1]


@pytest.mark.parametrize("phase", ["before sending", *TRIAL_BULLETS])
def test_a_study_with_a_selection_is_gone_on_with_wherever_it_is_killed(
    tmp_path: Path, uninterrupted_selection: RunFolder, phase: str
) -> None:
    study = selecting_study()
    text, folder = study.canonical_json(), open_run_folder(tmp_path / "run", study)
    killed = start(conduct, text, str(folder.path), phase)
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    conduct(text, str(folder.path), None)
    assert same_selection(study, folder, uninterrupted_selection)


@pytest.mark.parametrize("phase", ["in a later trial", "before the choice is kept"])
def test_a_queue_goes_on_with_a_study_that_was_killed_in_its_trials(
    tmp_path: Path, uninterrupted_selection: RunFolder, phase: str
) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    write_study(queue / "study.toml", selecting_study())
    killed = start(conduct_queue, str(queue), phase)
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    conduct_queue(str(queue), None)
    assert not (queue / "failed").exists()
    assert (queue / "done" / "study.toml").exists()
    (run,) = (tmp_path / "runs").iterdir()
    assert same_selection(selecting_study(), RunFolder(run), uninterrupted_selection)


def test_with_every_user_trials_that_were_killed_are_gone_on_with(tmp_path: Path) -> None:
    study = selecting_study(user="all")
    whole, cut = (open_run_folder(tmp_path / name, study) for name in ("whole", "cut"))
    conduct_every_user(study.canonical_json(), str(whole.path), None)
    killed = start(conduct_every_user, study.canonical_json(), str(cut.path), "in b's trials")
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    assert cut.of_user("a").has_ended
    assert json.loads(cut.of_user("b").beginning.read_text())["choices"] == {}
    conduct_every_user(study.canonical_json(), str(cut.path), None)
    assert cut.has_ended
    for user in study.hospitals:
        assert same_selection(study.for_user(user), cut.of_user(user), whole.of_user(user))


def test_a_run_that_ended_and_a_folder_without_a_run_are_not_resumed(
    tmp_path: Path, uninterrupted: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, code, said in (
        (uninterrupted.path, 7, "has ended"),
        (tmp_path, 8, "is not a run folder"),
    ):
        assert main(["server", "--resume", str(path), "--insecure"]) == code
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("what", [["--resume"], ["--queue"]])
def test_two_coordinators_do_not_share_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: list[str]
) -> None:
    folder = open_run_folder(tmp_path / "run", small_study())
    folder.spool.mkdir()  # the other's, with updates of the round under way
    with alone_in(folder.path):
        assert main(["server", *what, str(folder.path), "--insecure"]) == 7
        with refused(RunError, folder.path):
            resumed_run_folder(folder.path, another_study())
    assert str(folder.path) in "".join(capsys.readouterr().err.split())
    assert folder.spool.exists()
    assert load_study(folder.study).digest == small_study().digest
    with alone_in(tmp_path), refused(RunError, tmp_path):
        open_run_folder(tmp_path, small_study())


def another_study() -> Study:
    return small_study().model_copy(update={"seed": 4711})


LEFT = [
    *("beginning.json", "rounds.jsonl", "folds/0.jsonl", "result.json"),
    *("checkpoints/fedavg.safetensors", "folds/0/rounds.jsonl", "sealed/round"),
    "users/a/beginning.json",
]


def test_a_study_that_is_corrected_before_its_run_begins_is_what_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service and the compose file resume with the study file before --resume."""
    folder = open_run_folder(tmp_path / "run", small_study())
    corrected = tmp_path / "study.toml"
    write_study(corrected, another_study())
    ran: list[tuple[str, RunFolder]] = []

    def run(planned: Sequence[Planned], _: object) -> None:
        ran.extend((each.study.digest, each.folder) for each in planned)

    monkeypatch.setattr("erosion_server.coordination.run_study.run_studies", run)
    assert main(["server", str(corrected), "--resume", str(folder.path), "--insecure"]) == 0
    assert ran == [(another_study().digest, folder)]
    assert load_study(folder.study).digest == another_study().digest


def test_a_study_file_in_a_folder_of_ones_own_is_not_written_over(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "mine", small_study())
    (folder.path / "patients.csv").touch()
    before = folder.study.read_bytes()
    with refused(RunError, folder.path):
        resumed_run_folder(folder.path, another_study())
    assert folder.study.read_bytes() == before
    folder.status.touch()  # which every coordinator writes first
    resumed_run_folder(folder.path, another_study())
    assert folder.study.read_bytes() != before


@pytest.mark.parametrize("left", LEFT)
def test_a_folder_with_a_run_is_given_to_no_study_and_goes_on_with_its_own_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    folder = open_run_folder(tmp_path / "run", small_study())
    before = folder.study.read_bytes()
    with refused(RunError, folder.path):
        open_run_folder(folder.path, another_study())
    assert open_run_folder(folder.path, small_study()).study.read_bytes() == before
    (folder.path / left).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / left).touch()
    for study in (small_study(), another_study()):
        with refused(RunError, folder.path):
            open_run_folder(folder.path, study)
    changed = tmp_path / "study.toml"
    write_study(changed, another_study())
    assert main(["server", str(changed), "--resume", str(folder.path), "--insecure"]) == 7
    assert str(folder.study) in "".join(capsys.readouterr().err.split())
    assert folder.study.read_bytes() == before
    assert resumed_run_folder(folder.path, load_study(folder.study)) == folder


# -- What the sites know a run by --------------------------------------------------------------


def test_a_run_in_the_place_of_one_that_was_moved_away_has_another_name(tmp_path: Path) -> None:
    """The service's folder is always called the same; sites answer a round of a run once."""
    path, study = tmp_path / "run", small_study()
    names = {new_run_folder(tmp_path / "runs", study).run for _ in range(2)}
    for number in range(2):
        names.add(open_run_folder(path, study).run)
        path.rename(tmp_path / f"run.{number}")
    assert len(names) == 4
    assert {len(name) for name in names} == {24}  # so messages of two runs weigh the same
    assert all(name.isascii() and name == printable(name) for name in names)


def test_a_run_has_its_name_wherever_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study().model_copy(update={"user": EVERY_USER})
    folder = open_run_folder(tmp_path / "run", study)
    name = folder.run
    assert user_folder(folder, study.for_user("b")).run == f"{name}.b"
    assert open_run_folder(folder.path, study).run == name  # it has not begun
    moved = folder.path.rename(tmp_path / "Läufe")
    monkeypatch.chdir(moved)
    for path in (moved, Path()):
        again = resumed_run_folder(path, study)
        assert again.run == name
        assert user_folder(again, study.for_user("b")).run == f"{name}.b"


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"\xff\n", b"\x1b[2J\n"])
def test_a_name_that_is_damaged_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    folder = open_run_folder(tmp_path / "run", small_study())
    folder.name.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"name\.txt, by which sites know the run"):
        assert not folder.run
    folder.name.unlink()
    os.mkfifo(folder.name)
    with pytest.raises(CheckpointError, match="no ordinary file"):
        assert not folder.run


@pytest.fixture
def cut_off(tmp_path: Path, uninterrupted: RunFolder) -> RunFolder:
    """A run that lacks its end alone."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(uninterrupted.path, folder.path)
    for file in (folder.result, folder.report):
        file.unlink(missing_ok=True)
    return folder


def _lose(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")


def _flip(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def _change(path: Path, key: str, value: Any) -> None:
    """As another version of the program would have written it."""
    values = {**without_checksum(json.loads(path.read_text())), key: value}
    path.write_text(json.dumps(with_checksum(values)))


CHOICE: dict[str, Any] = {"settings": {}, "rounds": 4, "loss": None}
DAMAGES: list[tuple[str, Callable[[RunFolder], object], str]] = [
    ("a lost checkpoint", lambda run: _lose(run.checkpoint("weight_erosion")), "is missing"),
    ("a linked one", lambda run: _link_to_nothing(run.checkpoint("weight_erosion")), "is missing"),
    ("a short one", lambda run: _cut(run.checkpoint("weight_erosion")), "weight_erosion.safet"),
    (
        "an older one",
        lambda run: checkpoint.save(
            run.checkpoint("weight_erosion"),
            initial_state(small_study(), "weight_erosion"),
            arm="weight_erosion",
            study_digest=small_study().digest,
        ),
        "is missing",
    ),
    ("a short journal", lambda run: _cut(run.journal), "lacks rounds"),
    ("no beginning", lambda run: _lose(run.beginning), "beginning.json is missing"),
    ("other arms", lambda run: _change(run.beginning, "choices", {"x": CHOICE}), "of the arms x"),
    (
        "no rounds",
        lambda run: _change(
            run.beginning, "choices", {arm: {**CHOICE, "rounds": -3} for arm in small_study().arms}
        ),
        "choices.weight_erosion.rounds",
    ),
    (
        "too many rounds",
        lambda run: _change(
            run.beginning, "choices", {arm: {**CHOICE, "rounds": 5} for arm in small_study().arms}
        ),
        "more rounds of weight_erosion than the study",
    ),
    (
        "a narrow scaling",
        lambda run: _change(run.beginning, "scaling", {"mean": [1.0], "deviation": [1.0]}),
        "not of 2 columns",
    ),
    ("another number", lambda run: _flip(run.beginning, '"rounds": 4', '"rounds": 3'), "damaged"),
    ("no user", lambda run: _change(run.beginning, "cohort", ["b"]), "lack the user, a"),
    ("another study", lambda run: write_study(run.study, another_study()), "other settings"),
]


@pytest.mark.parametrize(("damage", "said"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_a_run_that_cannot_be_gone_on_with_is_refused_before_anybody_is_waited_for(
    cut_off: RunFolder,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[RunFolder], object],
    said: str,
) -> None:
    before = cut_off.journal.read_bytes()
    damage(cut_off)
    journal = cut_off.journal.read_bytes()
    address = free_address()
    assert main(["server", "--resume", str(cut_off.path), "--insecure", "--address", address]) == 8
    assert said in " ".join(capsys.readouterr().err.split())
    assert cut_off.journal.read_bytes() == journal  # no finished round is taken off
    assert before.startswith(journal)


LOST = {  # of a run that was killed in the third round of its first arm
    "name.txt": "Write that into it",
    "study.toml": "is not a run folder",
    "beginning.json": "beginning.json is missing",
    "rounds.jsonl": "lacks rounds",
    "checkpoints/weight_erosion.safetensors": "its checkpoint is missing",
    "checkpoints/weight_erosion.1.safetensors": "",
    "checkpoints/weight_erosion.2.safetensors": "",
}


def test_a_run_that_lost_any_file_is_refused_or_ends_as_if_it_had_not(
    tmp_path: Path, uninterrupted: RunFolder
) -> None:
    study, cut_off = small_study(), open_run_folder(tmp_path / "cut off", small_study())
    killed = start(conduct, study.canonical_json(), str(cut_off.path), "before aggregating")
    killed.join(PATIENCE)
    left = {str(file.relative_to(cut_off.path)) for file in cut_off.path.rglob("*.*")}
    assert left == set(LOST)
    for number, (lost, said) in enumerate(LOST.items()):
        folder = RunFolder(tmp_path / f"run {number}")
        shutil.copytree(cut_off.path, folder.path)
        (folder.path / lost).unlink()

        def go_on(folder: RunFolder = folder) -> None:
            resumed_run_folder(folder.path)
            with FolderStore(folder) as keeper:
                keeper.check(study)

        if said:
            with pytest.raises(ErosionError, match=said):
                go_on()
        else:
            go_on()
            conduct(study.canonical_json(), str(folder.path), None)
            assert same_run(study, folder, uninterrupted)


@pytest.mark.parametrize("has_links", [True, False])
def test_a_round_is_on_the_disk_before_the_next_one_and_what_it_may_go_back_to_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not has_links:
        monkeypatch.setattr("os.link", no_links)
    study = small_study()
    arm = next(iter(study.arms))
    first = initial_state(study, arm)
    folder = RunFolder(tmp_path)
    with FolderStore(folder) as files:
        files.resume(study, {arm: first})
        for number in (1, 2):
            calls = synced(monkeypatch)
            state = replace(first, round=number, lengths={"a": {"update": 1.0}})
            files.keep_round(study, state, RoundRecord(arm, number, "done", "", {}))
        kept = [call for call in calls if call != ("fdatasync", folder.journal)]  # beside them
    before, after, current = folder.before(arm, 1), folder.before(arm, 2), folder.checkpoint(arm)
    new = kept[0][1]
    assert new.parent == before.parent == after.parent == current.parent
    copied = [] if has_links else [("fdatasync", after)]
    assert kept == [
        ("fdatasync", new),
        *copied,
        ("replace", new),
        ("fsync", current.parent),  # with the other name of what the next round may go back to
    ]
    assert before.read_bytes() != current.read_bytes() == after.read_bytes()
    assert {*current.parent.iterdir()} == {before, after, current}


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next(
    tmp_path: Path, uninterrupted: RunFolder
) -> None:
    trials, witness = tmp_path / "trials.jsonl", tmp_path / "witness.jsonl"
    records = read_records(uninterrupted.journal)
    for record in records[:2]:
        append(trials, record)
        with trials.open("a") as file:
            file.write('{"format": 1, "arm": "weight_er')
        Witness(witness)("a", "train", f"{record.round}")
        with witness.open("a") as file:
            file.write('{"time": "2026')
    append(trials, records[2])
    Witness(witness)("a", "train", "3")
    assert [record.round for record in read_records(trials)] == [1, 2, 3]
    assert [noted.head for noted in read_witness(witness, "a")] == ["1", "2", "3"]
    witness.write_text("{}\n")
    for damaged in (witness, tmp_path / "none"):
        with refused(CheckpointError, damaged, "backup"):
            read_witness(damaged, "a")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_journal_that_somebody_moves_ends_the_run_at_once(
    tmp_path: Path, is_replaced: bool
) -> None:
    """As a rotation of logs would: the rounds that follow would be lost with it."""
    path, (first, second) = tmp_path / "rounds.jsonl", make_run(rounds=2).records[:2]
    journal = Journal(path)
    journal.write(first)
    path.rename(tmp_path / "rounds.jsonl.1")
    if is_replaced:
        path.touch()
    with refused(CheckpointError, "rounds.jsonl", "moved"):
        journal.write(second)
    (tmp_path / "rounds.jsonl.1").replace(path)
    journal.write(second)
    journal.close()
    assert read_records(path) == [first, second]


def append(path: Path, record: RoundRecord) -> None:
    journal = Journal(path)
    journal.write(record)
    journal.close()
