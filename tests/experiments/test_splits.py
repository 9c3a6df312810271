"""A study over many seeds."""

import json
from pathlib import Path

import pytest
import tomli_w

from erosion.simulation.testbed import study_path
from erosion_common.study.study import load_study
from experiments import splits
from tests.support.small_study import TWO_NUMBERS, make_study, sixty_patients


@pytest.mark.usefixtures("few_candidates")
def test_every_seed_is_a_split_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "splits.json"
    monkeypatch.setattr(
        "sys.argv", ["splits", "breast-cancer", "--seeds", "2", "--json", str(output)]
    )
    splits.main()
    result = json.loads(output.read_text())
    assert result["seeds"] == sum(result["verdicts"].values()) == 2
    assert result["arms"]["local"]["log_loss"][1] > 0  # the two differ
    assert {"ridge", "boosted_trees"} < result["arms"].keys()
    by_reference = result["verdicts_by_reference"].values()
    assert sum(sum(verdicts.values()) for verdicts in by_reference) == 2
    assert 0.5 < result["arms"]["local"]["auroc"][0] <= 1
    means = {arm: result["arms"][arm]["log_loss"][0] for arm in result["best_round_loss"]}
    apart = result["loss_minus_reference"]
    assert (result["reference"], set(apart)) == ("local", {"weight_erosion", "fedavg"})
    assert sum(apart["fedavg"]) / 2 == pytest.approx(means["fedavg"] - means["local"])
    best = {arm: mean for arm, (mean, _) in result["best_round_loss"].items()}
    assert all(best[arm] <= means[arm] for arm in means)
    assert best != means  # for one of the arms, at least, the last round was not the best
    assert "weight_erosion: errors" in capsys.readouterr().out


def test_a_study_of_ones_own_tables_has_splits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(task=TWO_NUMBERS, rounds=2, evaluation={"bootstrap": 100})
    (tmp_path / "study.toml").write_text(
        tomli_w.dumps(study.model_dump(mode="json", exclude_none=True))
    )
    for name in study.hospitals:
        (tmp_path / f"{name}.csv").write_text(sixty_patients(name))
    monkeypatch.setattr("sys.argv", ["splits", str(tmp_path), "--seeds", "2"])
    splits.main()
    assert "fedavg: errors" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["titanic", "tcga-brca"])
def test_a_fixed_test_part_is_drawn_in_every_split(name: str) -> None:
    fixed = load_study(study_path(name))
    assert fixed.evaluation.split_column is not None
    found = splits.drawn(fixed).evaluation
    assert (found.split_column, found.test_share) == (None, fixed.evaluation.test_share)
    free = load_study(study_path("breast-cancer"))
    assert splits.drawn(free) is free


def test_a_slow_machine_changes_no_figure() -> None:
    """No step is too late in an experiment, however small the study's deadline."""
    study = load_study(study_path("breast-cancer"))
    hurried = study.model_copy(
        update={
            "rounds": 1,
            "federation": study.federation.model_copy(update={"round_deadline_seconds": 1e-9}),
        }
    )
    assert "local" in splits.one_split(hurried, None).arms
