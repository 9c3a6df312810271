"""Personal GEMS in one round beside methods of many: one split, and the page of all."""

from erosion.experiments.cells import Cell
from erosion.experiments.papers import named, one_round


def test_one_split_measures_every_arm_on_the_same_patients() -> None:
    plan = one_round.plans()[0]
    few = {arm: plan.config["arms"][arm] for arm in ("local", "personal_gems", "gems")}
    ticks: list[int] = []
    figures = one_round.run({**plan.config, "arms": few}, None, lambda: ticks.append(1))
    assert len(ticks) == plan.rounds
    assert set(figures) == set(few)
    assert {metrics["patients"] for metrics in figures.values()} == {104}
    assert figures["personal_gems"]["log_loss"] < figures["local"]["log_loss"]


def test_the_difference_is_taken_within_a_split() -> None:
    arms = one_round.arms(30)

    def cell(seed: int, reference: float) -> Cell:
        plan = one_round.plans()[seed]
        metrics = {"accuracy": 0.9, "patients": 100}
        figures = {arm: {**metrics, "log_loss": reference + 0.125} for arm in arms}
        figures[one_round.REFERENCE]["log_loss"] = reference
        return Cell(plan, figures, "commit", "command", 1.0)

    text = one_round.draw({"0": cell(0, 0.25), "1": cell(1, 0.75)}).text
    assert "| personal_gems | one round | 0.500 ± 0.250 | 10.0 ± 0.0 |  |" in text
    local = "| local | 30 rounds | 0.625 ± 0.250 | 10.0 ± 0.0 | +0.125 (+0.125 to +0.125) |"
    assert local in text


def test_the_experiment_is_one_that_the_command_knows() -> None:
    assert named("one-round").plans() == one_round.plans()
