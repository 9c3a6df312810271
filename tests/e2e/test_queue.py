"""`erosion server --queue`: studies in turn, over one line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from erosion.simulation.free_ports import free_address
from erosion_common.errors import DiskError, RunError
from erosion_common.program.command_line import main
from erosion_common.rounds.presence import HospitalsAwayError
from erosion_common.study.study import Study, load_study
from erosion_server.coordination import study_queue
from erosion_server.coordination.study_queue import StudyQueue
from erosion_server.run.run_folder import RunFolder
from experiments.faults.program import Program
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study, write_site

KEYS = """[coordinator]
root_certificate = "ca.crt"
certificate = "node.crt"
private_key = "node.key"
"""


def put(queue: Path, file: str, study: Study) -> None:
    queue.mkdir(exist_ok=True)
    values = study.model_dump(mode="json", exclude_none=True)
    (queue / file).write_text(tomli_w.dumps(values))


def run_all(queue: Path, run: Callable[[Study, RunFolder], object]) -> None:
    StudyQueue(queue, queue.parent / "runs", run).serve(until_empty=True)


def test_studies_have_their_turns_by_name_and_a_bad_one_is_left_out(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    put(queue, "b.toml", small_study(name="second"))
    put(queue, "a.toml", small_study(name="first"))
    (queue / "aa.toml").write_text("name = ")
    seen: list[str] = []

    def run(study: Study, folder: RunFolder) -> None:
        assert folder.study.exists()
        seen.append(study.name)
        if study.name == "second":
            raise RunError("The disk is full.")

    run_all(queue, run)
    assert seen == ["first", "second"]
    assert (queue / "done" / "a.toml").exists()
    assert "aa.toml" in (queue / "failed" / "aa.txt").read_text()
    assert (queue / "failed" / "b.txt").read_text() == "The disk is full.\n"
    assert not list(queue.glob("*.toml"))


def test_one_whose_hospitals_are_away_gives_way_and_is_gone_on_with(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study(name="first"))
    put(queue, "b.toml", small_study(name="second"))
    seen: list[tuple[str, Path]] = []

    def run(study: Study, folder: RunFolder) -> None:
        seen.append((study.name, folder.path.resolve()))
        if len(seen) == 1:
            raise HospitalsAwayError("alice did not connect")

    run_all(queue, run)
    assert [name for name, _ in seen] == ["first", "second", "first"]
    assert seen[0][1] == seen[2][1]


class CutOff(BaseException):
    """The coordinator is gone."""


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_queue_that_was_cut_off_goes_on_with_the_run_unless_the_study_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_edited: bool
) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study())
    folders: list[Path] = []

    def run(_study: Study, folder: RunFolder) -> None:
        folders.append(folder.path.resolve())
        if len(folders) == 1:
            raise CutOff

    with pytest.raises(CutOff):
        run_all(queue, run)
    if is_edited:
        put(queue, "a.toml", small_study(seed=4))
    run_all(queue, run)
    assert (folders[0] == folders[1]) != is_edited
    assert (f"another study than that of the run in {folders[0]}" in caplog.text) == is_edited


def test_a_fault_of_the_program_costs_a_study_its_own_turn_alone(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study(name="first"))
    put(queue, "b.toml", small_study(name="second"))
    seen: list[str] = []

    def run(study: Study, _folder: RunFolder) -> None:
        seen.append(study.name)
        if study.name == "first":
            raise ZeroDivisionError("division by zero")

    run_all(queue, run)
    assert seen == ["first", "second"]
    assert "ZeroDivisionError" in (queue / "failed" / "a.txt").read_text()
    assert (queue / "done" / "b.toml").exists()


def test_a_full_disk_ends_the_queue_and_no_study(tmp_path: Path) -> None:
    queue, folders = tmp_path / "queue", []
    put(queue, "a.toml", small_study(name="first"))
    put(queue, "b.toml", small_study(name="second"))

    def run(study: Study, folder: RunFolder) -> None:
        folders.append(folder.path)
        if len(folders) == 1:
            raise DiskError(f"The run of {study.name} cannot be written: no space is left.")

    with pytest.raises(DiskError):
        run_all(queue, run)
    assert sorted(path.name for path in queue.glob("*.toml")) == ["a.toml", "b.toml"]
    assert not (queue / "failed").exists()
    run_all(queue, run)
    assert folders[0] == folders[1]  # it is gone on with
    assert sorted(path.name for path in (queue / "done").iterdir()) == ["a.toml", "b.toml"]


def test_a_queue_whose_runs_cannot_be_written_keeps_its_studies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, runs = tmp_path / "queue", tmp_path / "runs"
    put(queue, "a.toml", small_study())
    runs.write_text("a file")
    where = ["--insecure", "--address", free_address(), "--runs", str(runs), "--until-empty"]
    assert main(["server", "--queue", str(queue), *where]) == 7
    said = " ".join(capsys.readouterr().err.split())
    assert str(queue) in said
    assert "it resumes the run" in said
    assert (queue / "a.toml").exists()


def test_a_study_file_that_is_taken_away_while_it_runs_costs_nothing(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study(name="first"))
    put(queue, "b.toml", small_study(name="second"))
    run_all(queue, lambda study, _: (queue / "a.toml").unlink(missing_ok=True))
    assert [path.name for path in (queue / "done").iterdir()] == ["b.toml"]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_file_that_is_changed_while_it_runs_has_a_turn_of_its_own(
    tmp_path: Path, has_failed: bool
) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study(rounds=4))
    before = (queue / "a.toml").read_bytes()
    seen: list[int] = []

    def run(study: Study, _folder: RunFolder) -> None:
        seen.append(study.rounds)
        if len(seen) == 1:
            put(queue, "a.toml", small_study(rounds=5))
            if has_failed:
                raise RunError("Every round was skipped.")

    run_all(queue, run)
    assert seen == [4, 5]
    first = queue / ("failed" if has_failed else "done") / "a.toml"
    then = queue / "done" / ("a.toml" if has_failed else "a-2.toml")
    assert first.read_bytes() == before
    assert load_study(then).rounds == 5
    assert not list(queue.glob("*.toml"))


def test_a_study_that_is_taken_away_between_two_of_its_turns_is_told_of_once(
    tmp_path: Path,
) -> None:
    queue = tmp_path / "queue"
    turns: list[str] = []
    withdrawn: list[RunFolder] = []
    put(queue, "a.toml", small_study(name="first"))
    put(queue, "b.toml", small_study(name="second"))

    def run(study: Study, _folder: RunFolder) -> None:
        turns.append(study.name)
        if turns == ["first", "second"]:
            (queue / "a.toml").unlink()
        if study.name == "first" or len(turns) < 3:
            raise HospitalsAwayError("alice did not connect")

    runs = tmp_path / "runs"
    StudyQueue(queue, runs, run, withdrawn=withdrawn.append).serve(until_empty=True)
    assert turns == ["first", "second", "second"]
    assert [load_study(folder.study).name for folder in withdrawn] == ["first"]


def test_what_is_put_away_is_what_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the file is changed between two looks at it."""
    queue = tmp_path / "queue"
    seen: list[int] = []
    put(queue, "a.toml", small_study(rounds=4))
    read = study_queue._content

    def read_and_change(path: Path) -> bytes | None:
        content = read(path)
        if not seen:
            put(queue, "a.toml", small_study(rounds=5))
        return content

    monkeypatch.setattr(study_queue, "_content", read_and_change)
    run_all(queue, lambda study, _folder: seen.append(study.rounds))
    assert seen == [4, 5]
    done = [load_study(queue / "done" / name).rounds for name in ("a.toml", "a-2.toml")]
    assert done == seen


def test_nothing_that_was_put_away_is_overwritten(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    for seed in (1, 2):
        put(queue, "a.toml", small_study(seed=seed))
        run_all(queue, lambda _study, _folder: None)
        (queue / "b.toml" / "notes").mkdir(parents=True)
        run_all(queue, lambda _study, _folder: None)
    done = sorted((queue / "done").iterdir())
    assert [path.name for path in done] == ["a-2.toml", "a.toml"]
    assert [load_study(path).seed for path in done] == [2, 1]
    failed = sorted(path.name for path in (queue / "failed").iterdir())
    assert failed == ["b-2.toml", "b-2.txt", "b.toml", "b.txt"]


def test_a_study_that_ended_before_its_file_was_put_away_is_not_run_again(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study())

    def run(_study: Study, folder: RunFolder) -> None:
        folder.result.touch()
        folder.report.touch()
        raise CutOff

    with pytest.raises(CutOff):
        run_all(queue, run)
    run_all(queue, run)
    assert (queue / "done" / "a.toml").exists()
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize("is_put_away", [False, True])
def test_a_queue_cut_off_while_it_puts_a_study_away_runs_it_once_for_every_time_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_put_away: bool
) -> None:
    queue = tmp_path / "queue"
    put(queue, "a.toml", small_study())
    folders: list[Path] = []

    def run(_study: Study, folder: RunFolder) -> None:
        folders.append(folder.path)
        folder.result.touch()
        folder.report.touch()

    def cut_off(*_: object) -> None:
        raise CutOff

    def run_and_be_cut_off(study: Study, folder: RunFolder) -> None:
        run(study, folder)
        where, what = (StudyQueue, "_note_runs") if is_put_away else (Path, "replace")
        monkeypatch.setattr(where, what, cut_off)

    with pytest.raises(CutOff):
        run_all(queue, run_and_be_cut_off)
    monkeypatch.undo()
    if is_put_away:
        put(queue, "a.toml", small_study())
    run_all(queue, run)
    assert len(folders) == (2 if is_put_away else 1)
    done = ["a-2.toml", "a.toml"] if is_put_away else ["a.toml"]
    assert sorted(path.name for path in (queue / "done").iterdir()) == done


@pytest.mark.parametrize("is_enrolled", [False, True])
def test_a_site_that_is_to_end_with_its_study_waits_for_it(
    tmp_path: Path, is_enrolled: bool
) -> None:
    """Real programs; carol is in the second study alone."""
    queue, address, names = tmp_path / "queue", free_address(), ("alice", "bob", "carol")
    queue.mkdir()
    line = ["--insecure"]
    if is_enrolled:
        federation = make_federation(tmp_path / "federation", *names)
        line = ["--federation", str(federation.path)]
    where = ["--address", address, "--runs", str(tmp_path / "runs")]
    programs = {
        "": Program("", ["server", "--queue", str(queue), *line, *where], tmp_path / "server.log")
    }
    try:
        for name in names:
            if is_enrolled:
                unpack_kit(federation, name, tmp_path)
            path = write_site(tmp_path, name, address)
            if is_enrolled:
                path.write_text(path.read_text().replace("[coordinator]\n", KEYS))
            until = ["--until-study-ends"] if name == "carol" else []
            log = tmp_path / f"{name}.log"
            programs[name] = Program(name, ["client", str(path), *until], log)
        carol = programs["carol"]
        carol.wait_for("connected to the coordinator")
        programs[""].wait_until((queue / "status.json").exists, "status of the queue")
        assert main(["status", str(queue)]) == 0  # between two studies, too, and without any
        quick = {"rounds": 2, "arms": {"fedavg": {}}}
        put(queue, "1.toml", small_study(name="one", hospitals=["alice", "bob"], **quick))
        put(queue, "2.toml", small_study(name="two", **quick))
        assert carol.wait() == 0, carol.text()
        assert carol.text().count("the study has ended") == (1 if is_enrolled else 2)
        assert len(list((tmp_path / "runs").glob("*/report.html"))) == 2
    finally:
        for program in programs.values():
            program.close()


def test_sites_stay_connected_from_one_study_to_the_next(tmp_path: Path) -> None:
    """Real programs; carol is in the last study alone, and comes once updates were kept."""
    queue, address = tmp_path / "queue", free_address()
    quick = {"rounds": 2, "arms": {"fedavg": {}}}
    put(queue, "1.toml", small_study(name="one", hospitals=["alice", "bob"], **quick))
    (queue / "2.toml").write_text("name = 3\n")
    put(queue, "3.toml", small_study(name="three", **quick))
    options = ["--insecure", "--address", address, "--runs", str(tmp_path / "runs")]

    def kept() -> list[Path]:
        return list((tmp_path / "runs").glob("*/spool/updates/alice.f32"))

    programs = [
        Program(
            "coordinator",
            ["server", "--queue", str(queue), *options, "--updates", "disk", "--until-empty"],
            tmp_path / "coordinator.log",
        )
    ]
    try:
        for name in ("alice", "bob", "carol"):
            if name == "carol":
                programs[0].wait_until(lambda: bool(kept()), "update on the disk")
            site = str(write_site(tmp_path, name, address))
            programs.append(Program(name, ["client", site], tmp_path / f"{name}.log"))
        assert programs[0].wait() == 0, programs[0].text()
        for program in programs[1:]:
            assert program.exit_code is None, program.text()
            assert program.text().count("connected to the coordinator") == 1, program.text()
    finally:
        for program in programs:
            program.close()
    assert not kept()
    assert json.loads((queue / "status.json").read_text())["phase"] == "finished"
    assert sorted(path.name for path in (queue / "done").iterdir()) == ["1.toml", "3.toml"]
    assert [path.name for path in (queue / "failed").iterdir()].count("2.toml") == 1
    assert "2.toml is left out" in programs[0].text()
    results = sorted((tmp_path / "runs").glob("*/result.json"))
    assert [json.loads(path.read_text())["study"] for path in results] == ["one", "three"]
    assert all(path.with_name("report.html").exists() for path in results)
