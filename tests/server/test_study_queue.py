"""The folder of studies that `erosion server --queue` runs in turn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from erosion_common.errors import DiskError, RunError
from erosion_common.program.command_line import main
from erosion_common.rounds.presence import HospitalsAwayError
from erosion_common.study.study import Study, load_study
from erosion_common.support.network import free_address
from erosion_server.coordination.study_queue import StudyQueue
from erosion_server.run.run_folder import RunFolder, write_study
from tests.support.small_study import make_study


class CutOff(BaseException):
    """The coordinator is gone."""


class Queue:
    """A folder of studies, and the turns that they had."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "queue"
        self.path.mkdir()
        self.studies: list[Study] = []
        self.folders: list[Path] = []
        self.withdrawn: list[RunFolder] = []

    def put(self, file: str, **changes: Any) -> None:
        write_study(self.path / file, make_study(**changes))

    def serve(self, *ends: BaseException | Callable[[RunFolder], object]) -> None:
        """Until it is empty. Turns end as told, one after the other, and all that follow well."""
        pending = list(ends)

        def run(study: Study, folder: RunFolder) -> None:
            assert folder.study.exists()
            self.studies.append(study)
            self.folders.append(folder.path.resolve())
            end = pending.pop(0) if pending else lambda _: None
            if isinstance(end, BaseException):
                raise end
            end(folder)

        runs = self.path.parent / "runs"
        StudyQueue(self.path, runs, run, withdrawn=self.withdrawn.append).serve(until_empty=True)

    @property
    def names(self) -> list[str]:
        return [study.name for study in self.studies]

    def files(self, where: str = "") -> list[str]:
        return sorted(path.name for path in (self.path / where).glob("*.t*"))

    def read(self, file: str) -> str:
        return (self.path / file).read_text()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def well(_folder: RunFolder) -> None:
    """A turn without an event."""


def has_ended(folder: RunFolder) -> None:
    folder.result.touch()
    folder.report.touch()


def test_studies_have_their_turns_by_name_and_what_fails_costs_its_own_turn_alone(
    queue: Queue,
) -> None:
    for file, name in (("d", "fourth"), ("b", "second"), ("a", "first"), ("c", "third")):
        queue.put(f"{file}.toml", name=name)
    (queue.path / "aa.toml").write_text("name = ")
    queue.serve(well, RunError("The disk is full."), ZeroDivisionError("division by zero"))
    assert queue.names == ["first", "second", "third", "fourth"]
    assert queue.files("done") == ["a.toml", "d.toml"]
    assert "aa.toml" in queue.read("failed/aa.txt")
    assert queue.read("failed/b.txt") == "The disk is full.\n"
    assert "ZeroDivisionError" in queue.read("failed/c.txt")
    assert queue.files() == []


def test_one_whose_hospitals_are_away_gives_way_and_is_resumed(queue: Queue) -> None:
    queue.put("a.toml", name="first")
    queue.put("b.toml", name="second")
    queue.serve(HospitalsAwayError("alice did not connect"))
    assert queue.names == ["first", "second", "first"]
    assert queue.folders[0] == queue.folders[2]


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_queue_that_was_cut_off_resumes_the_run_unless_the_study_is_another(
    queue: Queue, caplog: pytest.LogCaptureFixture, is_edited: bool
) -> None:
    queue.put("a.toml")
    with pytest.raises(CutOff):
        queue.serve(CutOff())
    if is_edited:
        queue.put("a.toml", seed=4)
    queue.serve()
    assert (queue.folders[0] == queue.folders[1]) != is_edited
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(str(queue.folders[0]) in line for line in warned) == is_edited


def test_a_full_disk_ends_the_queue_and_no_study(queue: Queue) -> None:
    queue.put("a.toml")
    queue.put("b.toml", seed=2)
    with pytest.raises(DiskError):
        queue.serve(DiskError("No space is left."))
    assert queue.files() == ["a.toml", "b.toml"]
    assert queue.files("failed") == []
    queue.serve()
    assert queue.folders[0] == queue.folders[1]  # it is resumed
    assert queue.files("done") == ["a.toml", "b.toml"]


def test_a_queue_whose_runs_cannot_be_written_keeps_its_studies(
    queue: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.put("a.toml")
    (tmp_path / "runs").write_text("a file")
    where = ["--address", free_address(), "--runs", str(tmp_path / "runs"), "--until-empty"]
    assert main(["server", "--queue", str(queue.path), "--insecure", *where]) == 7
    assert str(queue.path) in "".join(capsys.readouterr().err.split())
    assert queue.files() == ["a.toml"]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_file_that_is_changed_while_it_runs_has_a_turn_of_its_own(
    queue: Queue, has_failed: bool
) -> None:
    queue.put("a.toml", rounds=4)
    before = queue.read("a.toml")

    def changes(_: RunFolder) -> None:
        queue.put("a.toml", rounds=5)
        if has_failed:
            raise RunError("Every round was skipped.")

    queue.serve(changes)
    assert [study.rounds for study in queue.studies] == [4, 5]
    assert queue.read("failed/a.toml" if has_failed else "done/a.toml") == before
    then = queue.path / "done" / ("a.toml" if has_failed else "a-2.toml")
    assert load_study(then).rounds == 5
    assert queue.files() == []


def test_a_study_that_is_taken_away_costs_nothing_and_between_two_turns_is_told_of_once(
    queue: Queue,
) -> None:
    queue.put("a.toml", name="first")
    queue.put("b.toml", name="second")
    away = HospitalsAwayError("alice did not connect")

    def takes_the_first_away(_: RunFolder) -> None:
        (queue.path / "a.toml").unlink()
        raise away

    queue.serve(away, takes_the_first_away)
    assert queue.names == ["first", "second", "second"]
    assert [load_study(folder.study).name for folder in queue.withdrawn] == ["first"]
    queue.put("a.toml", name="third")
    queue.serve(lambda _: (queue.path / "a.toml").unlink())  # while it runs
    assert queue.files("done") == ["b.toml"]


def test_nothing_that_was_put_away_is_overwritten(queue: Queue) -> None:
    for seed in (1, 2):
        queue.put("a.toml", seed=seed)
        (queue.path / "b.toml" / "notes").mkdir(parents=True)
        queue.serve()
    assert queue.files("done") == ["a-2.toml", "a.toml"]
    done = [load_study(queue.path / "done" / name).seed for name in ("a.toml", "a-2.toml")]
    assert done == [1, 2]
    assert queue.files("failed") == ["b-2.toml", "b-2.txt", "b.toml", "b.txt"]


def test_a_study_that_ended_before_its_file_was_put_away_is_not_run_again(queue: Queue) -> None:
    def ends_and_is_cut_off(folder: RunFolder) -> None:
        has_ended(folder)
        raise CutOff

    queue.put("a.toml")
    with pytest.raises(CutOff):
        queue.serve(ends_and_is_cut_off)
    queue.serve(ends_and_is_cut_off)
    assert queue.files("done") == ["a.toml"]
    assert len(queue.studies) == 1


@pytest.mark.parametrize("is_put_away", [False, True])
def test_a_queue_cut_off_while_it_puts_a_study_away_runs_it_once_for_every_time_it_came(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, is_put_away: bool
) -> None:
    def cut_off(*_: object) -> None:
        raise CutOff

    def ends(folder: RunFolder) -> None:
        has_ended(folder)
        where, what = (StudyQueue, "_note_runs") if is_put_away else (Path, "replace")
        monkeypatch.setattr(where, what, cut_off)

    queue.put("a.toml")
    with pytest.raises(CutOff):
        queue.serve(ends)
    monkeypatch.undo()
    if is_put_away:
        queue.put("a.toml")
    queue.serve(has_ended)
    assert len(queue.studies) == (2 if is_put_away else 1)
    assert queue.files("done") == (["a-2.toml", "a.toml"] if is_put_away else ["a.toml"])
