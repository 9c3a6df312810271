"""Every hospital as the user: which parts are run, and what becomes of those that fail."""

from pathlib import Path

import pytest

from erosion_common.errors import CheckpointError, HopelessError, ModelError, RunError
from erosion_common.formats.json_file import write_json
from erosion_common.program.command_line import main
from erosion_common.rounds.presence import UserDeclinedError
from erosion_common.study.study import Study, load_study
from erosion_server.coordination.run_study import run_every_user
from erosion_server.output.events import EveryUserFinished, RunEvent, UserFailed
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder, new_run_folder, resumed_run_folder, user_folder
from tests.support.federation import small_study
from tests.support.refusals import refused
from tests.support.synthetic_run import make_run

STUDY = small_study(user="all", arms=["fedavg", "local"])
RESULT = make_run(("fedavg", "local"), STUDY.hospitals, rounds=2).result


class Parts:
    """Runs a hospital's part as a test wants it."""

    def __init__(self, **problems: Exception) -> None:
        self.problems, self.events, self.ran = problems, list[RunEvent](), list[str]()

    def run_one(self, study: Study, folder: RunFolder) -> Result:
        self.ran.append(study.user)
        if (problem := self.problems.get(study.user)) is not None:
            raise problem
        result = RESULT.model_copy(update={"user": study.user})
        write_json(folder.result, result)
        folder.report.touch()
        return result


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run_folder(tmp_path, STUDY)


def test_every_hospital_is_the_user_once(folder: RunFolder) -> None:
    parts = Parts()
    found = run_every_user(STUDY, folder, parts.run_one, parts.events.append)
    assert parts.ran == list(found.users) == list(STUDY.hospitals)
    assert found.without_model == {}
    assert parts.events == [EveryUserFinished(found, folder.path)]
    assert folder.result.exists()
    report = folder.report.read_text()
    assert [f'href="users/{user}/report.html"' in report for user in STUDY.hospitals] == [True] * 3


def test_a_hospital_that_only_helps_has_no_model_and_the_run_has_ended(folder: RunFolder) -> None:
    parts = Parts(bob=UserDeclinedError("limits.as_user = false"))
    found = run_every_user(STUDY, folder, parts.run_one, parts.events.append)
    assert list(found.users) == ["alice", "carol"]
    assert found.without_model == {"bob": "limits.as_user = false"}
    assert parts.events[0] == UserFailed("bob", "limits.as_user = false")
    assert folder.has_ended


def test_a_hospital_that_is_away_costs_no_other_its_model_and_gets_its_own_on_resuming(
    folder: RunFolder,
) -> None:
    away = Parts(bob=RunError("away"))
    with refused(RunError, "bob", "--resume"):
        run_every_user(STUDY, folder, away.run_one, away.events.append)
    assert away.ran == list(STUDY.hospitals)
    assert away.events == [UserFailed("bob", "away")]
    assert "carol" in folder.report.read_text()
    assert not folder.has_ended
    there = Parts()
    found = run_every_user(STUDY, folder, there.run_one, there.events.append)
    assert there.ran == ["bob"]
    assert list(found.users) == list(STUDY.hospitals)
    assert folder.has_ended


@pytest.mark.parametrize(
    ("of_bob", "is_hopeless"),
    [
        (HopelessError("all training diverged"), True),
        (UserDeclinedError("limits.as_user = false"), True),
        (RunError("away"), False),
    ],
)
def test_a_run_is_hopeless_where_no_part_has_a_model_or_may_get_one(
    folder: RunFolder, of_bob: RunError, is_hopeless: bool
) -> None:
    skipped = HopelessError("skipped")
    parts = Parts(alice=skipped, bob=of_bob, carol=skipped)
    with pytest.raises(RunError) as problem:
        run_every_user(STUDY, folder, parts.run_one, parts.events.append)
    assert isinstance(problem.value, HopelessError) == is_hopeless


@pytest.mark.parametrize("text", ["{", '{"format": 99}'])
def test_a_part_whose_result_cannot_be_read_is_named_with_the_remedy(
    folder: RunFolder, text: str
) -> None:
    part = user_folder(folder, STUDY.for_user("alice"))
    part.result.write_text(text)
    part.report.touch()
    parts = Parts()
    with refused(RunError, "alice"):
        run_every_user(STUDY, folder, parts.run_one, parts.events.append)
    assert parts.ran == ["bob", "carol"]
    (told,) = parts.events
    assert isinstance(told, UserFailed)
    assert str(part.path) in told.reason


def corrected(study: Study) -> Study:
    return study.model_copy(update={"seed": study.seed + 1})


def test_a_study_that_is_corrected_before_any_part_begins_is_run(folder: RunFolder) -> None:
    nobody = Parts(**{user: RunError(f"no {user}") for user in STUDY.hospitals})
    with pytest.raises(RunError):
        run_every_user(STUDY, folder, nobody.run_one, nobody.events.append)
    study, then = corrected(STUDY), Parts()
    folder.status.touch()
    assert resumed_run_folder(folder.path, study) == folder
    run_every_user(study, folder, then.run_one, then.events.append)
    assert then.ran == list(STUDY.hospitals)
    parts = [user_folder(folder, study.for_user(user)) for user in STUDY.hospitals]
    assert [load_study(part.study).seed for part in parts] == [study.seed] * 3


def test_no_part_of_a_run_with_other_settings_is_taken(folder: RunFolder) -> None:
    first, then = Parts(carol=RunError("'carol' did not connect within 60 s")), Parts()
    with refused(RunError, "carol"):
        run_every_user(STUDY, folder, first.run_one, first.events.append)
    study = corrected(STUDY)
    with refused(CheckpointError, "alice"):
        run_every_user(study, folder, then.run_one, then.events.append)
    assert then.ran == []


def test_a_part_of_a_run_is_not_resumed_alone(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    part = user_folder(folder, STUDY.for_user("alice"))
    assert main(["server", "--resume", str(part.path), "--insecure"]) == 7
    assert str(folder.path) in capsys.readouterr().err


@pytest.mark.parametrize("fault", [KeyError("log_loss"), ModelError("log_loss")])
def test_a_fault_costs_one_hospital_its_model_and_the_others_nothing(
    folder: RunFolder, fault: Exception
) -> None:
    parts = Parts(alice=fault)
    with refused(RunError, "alice"):
        run_every_user(STUDY, folder, parts.run_one, parts.events.append)
    assert parts.ran == list(STUDY.hospitals)
    (told,) = parts.events
    assert isinstance(told, UserFailed)
    assert (told.user, "log_loss" in told.reason) == ("alice", True)
    assert ("this program" in told.reason) == isinstance(fault, KeyError)


def test_a_full_disk_ends_the_run_at_once(folder: RunFolder) -> None:
    parts = Parts(alice=OSError("No space left on device"))
    with refused(OSError):
        run_every_user(STUDY, folder, parts.run_one, parts.events.append)
    assert parts.ran == ["alice"]
