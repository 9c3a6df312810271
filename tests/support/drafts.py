"""Drafts of a study and of a site file from a table that a test writes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from erosion_client.scaffold.column_match import Match, match_columns
from erosion_client.scaffold.column_profile import Profile, read_whole
from erosion_common.program.command_line import main
from erosion_common.study.study import Study, load_study
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from tests.support.small_study import make_study


def profiles_of(folder: Path, text: str) -> list[Profile]:
    (folder / "other.csv").write_text(text, encoding="utf-8")
    return read_whole(folder / "other.csv")[1]


def one_match(folder: Path, feature: Mapping[str, object], text: str) -> Match:
    task = {**make_study().task.model_dump(mode="json"), "features": [feature]}
    checked = make_study(task=task).task
    assert isinstance(checked, TabularTask)
    return match_columns(checked, profiles_of(folder, text))[0]


def column(name: str, values: Iterable[object]) -> str:
    return f"{name},ill\n" + "".join(f"{value},{i % 2}\n" for i, value in enumerate(values))


def drafted(folder: Path, table: str, target: str, *more: str) -> Study:
    (folder / "trial.csv").write_text(table, encoding="utf-8")
    command = ["study", "new", str(folder / "trial.csv"), "--target", target, *more]
    assert main(command) == 0
    return load_study(folder / "study.toml")


def features_of(study: Study) -> Sequence[NumberFeature | CategoryFeature]:
    assert isinstance(study.task, TabularTask)
    return study.task.features


def site_of(folder: Path) -> Path:
    """The site file of the hospital whose table `drafted` wrote."""
    command = ["site", "new", "--study", str(folder / "study.toml"), "--name", "hospital-1"]
    assert main([*command, "--data", str(folder / "trial.csv")]) == 0
    return folder / "sites/hospital-1.toml"
