"""`erosion testbed --simulate`."""

from pathlib import Path

import pytest
from rich.console import Console

from erosion.simulation.simulated_testbed import side_by_side, simulate_testbed
from erosion.simulation.simulator import simulate
from erosion.simulation.testbed import study_path
from erosion.sources import make_hospitals
from erosion_client.training.hospital import Hospital
from erosion_common.errors import StudyError
from erosion_common.program.command_line import main
from erosion_common.study.study import load_study
from experiments.splits import one_split
from tests.support.small_study import make_site, make_study, twenty_patients


def shorter(folder: Path, *changes: tuple[str, str]) -> Path:
    text = study_path("breast-cancer").read_text(encoding="utf-8")
    quick = ("rounds = 30", "rounds = 3"), ("[evaluation]\n", "[evaluation]\nreferences = []\n")
    for old, new in (*quick, *changes):
        assert old in text, old
        text = text.replace(old, new, 1)
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_it_prints_the_figures_of_a_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shorter(tmp_path)
    assert main(["testbed", str(path), "--simulate", "--workers", "2"]) == 0
    printed = capsys.readouterr().out
    expected = one_split(load_study(path), None)
    assert expected.comparison is not None
    for arm, metrics in expected.arms.items():
        line = next(line for line in printed.splitlines() if line.startswith(arm))
        assert f"{metrics['log_loss']:.3f}" in line
    assert "base rate" in printed
    assert "104 test patients" in printed


def test_of_a_cross_fitted_study_it_says_whom_it_measured(tmp_path: Path) -> None:
    path = shorter(tmp_path, ("test_share = 0.8", "folds = 2"))
    with (tmp_path / "printed").open("w+", encoding="utf-8") as printed:
        simulate_testbed(path, data_dir=None, console=Console(file=printed, width=200))
        printed.seek(0)
        assert "130 patients, each predicted by models that never saw them" in printed.read()


def test_who_was_missing_is_told_beside_the_verdict(tmp_path: Path) -> None:
    path = shorter(tmp_path)
    for name, made in make_hospitals(load_study(path), tmp_path / "made", None).items():
        table = Path(made["path"]).read_text(encoding="utf-8")
        fitting = table if name != "alike" else table.replace("mean radius", "width", 1)
        (tmp_path / f"{name}.csv").write_text(fitting, encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    start, end = text.index("[testbed]"), text.index("[task]")
    path.write_text(text[:start] + text[end:], encoding="utf-8")
    with (tmp_path / "printed").open("w+", encoding="utf-8") as printed:
        simulate_testbed(path, data_dir=None, console=Console(file=printed, width=1000))
        printed.seek(0)
        last = printed.read().splitlines()[-1]
    assert last.startswith("alike took no part (")


def test_with_every_hospital_as_the_user_it_prints_a_line_for_each(tmp_path: Path) -> None:
    path = shorter(tmp_path, ('user = "home"', 'user = "all"'))
    with (tmp_path / "printed").open("w+", encoding="utf-8") as printed:
        simulate_testbed(path, data_dir=None, console=Console(file=printed, width=200))
        printed.seek(0)
        starts = [line.split()[:1] for line in printed.read().splitlines()]
    study = load_study(path)
    assert all([user] in starts for user in study.hospitals)


def test_a_hospital_s_line_is_that_of_its_own_simulation(tmp_path: Path) -> None:
    text = {"a": twenty_patients(), "b": twenty_patients(older=5)}
    hospitals = {
        name: Hospital(make_site(tmp_path, text[name], name=name, file=f"{name}.csv"))
        for name in text
    }
    study = make_study(
        user="all", arms=["personal_intercept", "local"], rounds=2, evaluation={"bootstrap": 100}
    )
    simulations = {user: simulate(study.for_user(user), hospitals) for user in study.hospitals}
    assert {user: s.evaluation.hospital for user, s in simulations.items()} == {"a": "a", "b": "b"}
    personal = [s.personal["personal_intercept"] for s in simulations.values()]
    assert not personal[0].equal(personal[1])
    found = side_by_side(study, simulations, seconds=1.0)
    assert found.arms == ["personal_intercept", "local"]
    for user, simulation in simulations.items():
        assert found.users[user].arms == simulation.evaluation.arms
        assert found.users[user].weights[user] == 1.0
    with pytest.raises(StudyError):
        simulate(study, hospitals)  # which is for one user


def test_how_hospitals_train_is_of_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "--workers", "2"]) != 0
    assert "--workers goes with --simulate" in capsys.readouterr().err
