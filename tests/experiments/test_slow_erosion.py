"""The search for an erosion share: arms that a study takes, and what is lost to the best share."""

from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell
from erosion.experiments.papers import confirmation, local_steps, slow_erosion
from erosion.experiments.testbed import study_path


def test_every_experiment_of_arms_is_made_of_valid_studies() -> None:
    for plans in (slow_erosion.plans(), local_steps.plans(), confirmation.plans()):
        for plan in {plan.config["study"]: plan for plan in plans}.values():
            raw = load_study(study_path(plan.config["study"])).model_dump(mode="json")
            raw |= {"user": plan.config.get("user", raw["user"]), "arms": plan.config["arms"]}
            raw["evaluation"]["compare"] = None
            assert list(Study.model_validate(raw).arms) == list(plan.config["arms"])


def test_what_is_lost_to_the_best_share_is_averaged_over_the_settings() -> None:
    cells = {}
    for plan in slow_erosion.plans():
        place = 1.0 if plan.config["study"] == "breast-cancer" else 0.0
        figures = {
            arm: {"log_loss": 0.5 + 0.1 * place * number}
            for number, arm in enumerate(slow_erosion.ARMS)
        }
        cells[plan.name] = Cell(plan, figures, "c0ffee", "command", 1.0)
    text = slow_erosion.draw(cells).text
    # the second share loses .1 in one of five settings
    assert "| share-200 | 0.600 ± 0.000 | 0.500 ± 0.000 |" in text
    assert "| 0.0200 | 0.1000 |" in text


def test_local_steps_are_set_beside_training_alone() -> None:
    cells = {}
    for plan in local_steps.plans():
        if plan.config["seed"] > 4:
            continue
        figures = {
            arm: {"log_loss": 0.5 - 0.1 * number - 0.002 * plan.config["seed"] * number}
            for number, arm in enumerate(local_steps.ARMS)
        }
        cells[plan.name] = Cell(plan, {**figures, "patients": 50}, "c0ffee", "command", 1.0)
    text = local_steps.draw(cells).text
    assert "50 test patients, 100 local steps in all." in text
    assert "| steps a round | 1 (5 splits) | 5 (5 splits) | 20 (5 splits) |" in text
    assert "| weighted_gradient | 0.396 ± 0.001<br>-0.104 (" in text
