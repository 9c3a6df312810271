"""Each attack on hand-sized updates, an attacked simulation, and the page from few cells."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from erosion.simulation.simulator import Simulation, simulate
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import StepResult, TrainRequest
from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Values
from experiments.papers.robustness import (
    ATTACKS,
    CLAIMED_NOISE,
    NO_ATTACK,
    Attacker,
    Knowledge,
    Overheard,
    Wire,
    flip_labels,
    one_arm_study,
    plans,
    run_attack,
)
from experiments.papers.robustness_page import draw, rows, summarise
from experiments.splits import one_split
from tests.support.close import assert_close
from tests.support.small_study import make_site, make_study, twenty_patients

HONEST = torch.tensor([3.0, 4.0])


def sent(
    attack: str, honest: Tensor = HONEST, users_last: Tensor | None = None, seed: int = 0
) -> Tensor:
    others = [torch.tensor([1.0, 10.0]), torch.tensor([3.0, 10.0])]
    randomness = torch.Generator().manual_seed(seed)
    return ATTACKS[attack].update(Knowledge(honest, others, users_last, randomness))


@pytest.mark.parametrize(
    ("attack", "update"),
    [
        ("none", [3.0, 4.0]),
        ("label_flip", [3.0, 4.0]),  # its lie is in the labels
        ("sign_flip", [-3.0, -4.0]),
        ("scaled", [30.0, 40.0]),
        ("free_rider", [0.0, 0.0]),
        ("little", [0.5, 10.0]),  # mean 2, 10; deviation 1, 0; z = 1.5
        ("claimed_noise", [-3.0, -4.0]),
    ],
)
def test_an_attack_sends_what_it_says(attack: str, update: list[float]) -> None:
    assert sent(attack).tolist() == update


def test_the_mimic_copies_the_users_last_update_and_adds_a_step_against_its_own() -> None:
    # |(0, 2)| / 2 = 1 step along -(0.6, 0.8)
    found = sent("mimic", users_last=torch.tensor([0.0, 2.0]))
    assert_close(found, torch.tensor([-0.6, 1.2]))
    assert_close(sent("mimic"), HONEST / 2)  # nothing to copy in the first round
    assert sent("mimic", honest=torch.zeros(2)).tolist() == [0.0, 0.0]


def test_noise_is_ten_times_as_long_as_the_honest_update_and_differs_by_seed() -> None:
    honest = torch.full((10_000,), 0.01)  # of length 1
    assert float(sent("noise", honest).norm()) == pytest.approx(10, rel=0.05)
    assert sent("noise").equal(sent("noise"))
    assert not sent("noise").equal(sent("noise", seed=1))


def test_attachments_are_honest_but_for_the_free_rider_and_the_claimed_noise() -> None:
    stated = {"noise": torch.tensor([2.0]), "control": torch.tensor([1.0, 1.0])}
    assert ATTACKS["sign_flip"].attachments(stated) == stated
    zeros = ATTACKS["free_rider"].attachments(stated)
    assert {name: tensor.tolist() for name, tensor in zeros.items()} == {
        "noise": [0.0],
        "control": [0.0, 0.0],
    }
    claimed = ATTACKS["claimed_noise"].attachments(stated)
    assert claimed["noise"].tolist() == [2.0 * CLAIMED_NOISE]
    assert claimed["control"] is stated["control"]


def test_every_planned_method_suits_the_user_of_few_patients() -> None:
    arms = {
        method: options
        for plan in plans()
        if plan.config["study"] == "breast-cancer" and plan.config["seed"] == 0
        for method, options in plan.config["arm"].items()
    }
    changed = {"arms": arms, "rounds": 2, "evaluation": {"test_share": 0.8, "bootstrap": 100}}
    raw = one_arm_study("breast-cancer", "local", 0).model_dump(mode="json") | changed
    found = one_split(Study.model_validate(raw), None).arms
    assert found.keys() == arms.keys()
    assert all(metrics["log_loss"] > 0 for metrics in found.values())


def test_flipped_labels_are_the_other_class_and_all_else_stays(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("age,sex,ill\n30,f,0\n60,m,1\n70,f,2\n", encoding="utf-8")
    flip_labels(table, make_study())
    assert table.read_text(encoding="utf-8") == "age,sex,ill\n30,f,1\n60,m,0\n70,f,0\n"


def attacked(folder: Path, attack: str, arm: str = "fedavg") -> Simulation:
    """Two rounds with b as the attacker, who has the user's patients but older ones."""
    wire = Wire()
    a = make_site(folder, twenty_patients(), name="a", file="a.csv")
    b = make_site(folder, twenty_patients(older=5), name="b", file="b.csv")
    hospitals: dict[str, Hospital] = {
        "a": Overheard(a, wire),
        "b": Attacker(b, wire, ATTACKS[attack]),
    }
    study = make_study(
        arms=[arm], rounds=2, evaluation={"bootstrap": 100}, federation={"quorum": 1}
    )
    return simulate(study, hospitals)


def test_an_attacker_that_is_honest_changes_nothing(tmp_path: Path) -> None:
    files = {"a": twenty_patients(), "b": twenty_patients(older=5)}
    plain = {
        name: Hospital(make_site(tmp_path, text, name=name, file=f"{name}.csv"))
        for name, text in files.items()
    }
    study = make_study(arms=["fedavg"], rounds=2, evaluation={"bootstrap": 100})
    expected = simulate(study, plain).finals["fedavg"].params
    assert attacked(tmp_path, NO_ATTACK).finals["fedavg"].params.equal(expected)


def test_the_attacker_hears_this_rounds_updates_and_the_users_last(tmp_path: Path) -> None:
    # The only other hospital is the user: with one update the deviation is 0, and its mean is it.
    follows = attacked(tmp_path, "little", "weight_erosion").records["weight_erosion"]
    assert [record.hospitals["b"].distance for record in follows] == [0.0, 0.0]
    mimics = attacked(tmp_path, "mimic").records["fedavg"]
    assert all((record.hospitals["b"].distance or 0) > 0 for record in mimics)


def test_an_absent_attacker_answers_no_other_step_of_a_round(tmp_path: Path) -> None:
    record = attacked(tmp_path, "absent", "fedlin").records["fedlin"][0]
    gradient, _ = record.steps
    assert (gradient.step, gradient.hospitals["b"].outcome) == ("gradient", "absent")
    assert (record.outcome, record.hospitals["b"].outcome) == ("done", "absent")


def test_a_free_riders_gradient_is_nothing_and_the_sign_flips_honest(tmp_path: Path) -> None:
    site, study = make_site(tmp_path, twenty_patients()), make_study(arms=["fedlin"])
    asked = TrainRequest(study, "fedlin", 1, torch.zeros(6), None, step="gradient")

    def gradient(hospital: Hospital) -> Tensor:
        answer = hospital.answer(asked)
        assert isinstance(answer, StepResult)
        return answer.tensors["gradient"]

    own = gradient(Hospital(site))
    assert gradient(Attacker(site, Wire(), ATTACKS["free_rider"])).equal(torch.zeros(6))
    assert gradient(Attacker(site, Wire(), ATTACKS["sign_flip"])).equal(own)
    assert bool(own.any())


def test_a_free_rider_is_at_distance_one(tmp_path: Path) -> None:
    free = attacked(tmp_path, "free_rider").records["fedavg"][0]
    assert free.hospitals["b"].distance == 1.0  # |0 - d_0| / |d_0|


def test_every_method_that_fits_is_planned_and_claims_are_asked_of_one() -> None:
    found = {plan.name: plan.config for plan in plans()}
    assert len(found) == len(plans())
    assert "claimed_noise" in found["breast-cancer-0-evidence_erosion"]["attacks"]
    assert "claimed_noise" not in found["breast-cancer-7-weight_erosion"]["attacks"]
    assert "heart-disease-4-weight_erosion_recommended" in found
    assert "breast-cancer-0-network_gems" not in found  # the study's model has no hidden layer


def test_the_default_study_loses_an_honest_hospital_by_the_label_flip() -> None:
    study = one_arm_study("breast-cancer", "weight_erosion", 0).model_copy(update={"rounds": 14})
    assert study.hospitals[-1] == "miscoded"  # which is asked last
    found = {attack: run_attack(study, attack, None) for attack in ("none", "label_flip")}
    assert found["none"]["zero_rounds"]["miscoded"] is None
    assert found["label_flip"]["zero_rounds"]["miscoded"] is not None


def figures(log_loss: float, ended: int | None = None) -> Values:
    zero_rounds = {} if ended is None else {"miscoded": ended, "north": None}
    return {"log_loss": log_loss, "accuracy": 0.9, "weight": 1.0, "zero_rounds": zero_rounds}


def cells_of(methods: dict[str, list[int]]) -> dict[str, Cell]:
    """Made-up cells of the default study: methods and their seeds."""
    found = {}
    for method, seeds in methods.items():
        for seed in seeds:
            config = {"study": "breast-cancer", "seed": seed, "arm": {method: {}}}
            plan = CellPlan(f"{method}-{seed}", config)
            by_attack = {
                attack: figures(0.4) if method == "local" else figures(loss + seed / 100, 4 + seed)
                for attack, loss in LOSSES.items()
            }
            found[plan.name] = Cell(plan, by_attack, "c0ffee", "the command", 1.0)
    return found


LOSSES = {"none": 0.2, "absent": 0.3, "sign_flip": 0.8}  # alone the user is at 0.4
HARMED = cells_of({"weight_erosion": [0, 1], "local": [0, 1]})


def test_a_method_without_cells_is_left_out_and_a_seed_that_lacks_one_too() -> None:
    summary = summarise("breast-cancer", cells_of({"local": [0, 1, 2], "fedavg": [0, 1]}))
    assert set(summary.methods) == {"local", "fedavg"}
    assert summary.seeds == [0, 1]
    assert summarise("breast-cancer", cells_of({"fedavg": [0]})).seeds == []
    assert summarise("heart-disease", HARMED).seeds == []


def test_harm_is_against_the_absent_attacker_and_pairs_the_seeds() -> None:
    found = summarise("breast-cancer", HARMED).rows
    row, honest = found["weight_erosion", "sign_flip"], found["weight_erosion", "none"]
    assert (row.harmed, row.below_alone) == (True, True)
    assert row.to_absent == pytest.approx([0.5, 0.5])
    assert row.to_alone == pytest.approx([0.4, 0.41])
    assert (honest.harmed, honest.below_alone) == (False, False)
    one_seed = replace(row, to_absent=[0.5])
    assert (one_seed.harmed, one_seed.perhaps_harmed) == (False, True)  # one proves nothing


def test_what_rounding_makes_alike_in_every_seed_is_no_harm() -> None:
    losses = {"none": 0.3, "absent": 0.3, "sign_flip": 0.300005}
    by_seed = [
        {
            method: {attack: figures(loss + seed / 100) for attack, loss in losses.items()}
            for method in ("fedfomo", "local")
        }
        for seed in (0, 1)
    ]
    assert not any(row.harmed or row.below_alone for row in rows(by_seed).values())


def test_the_page_says_who_fails_and_when_a_weight_ends() -> None:
    text = draw(HARMED).text
    assert "2 seeds, 30 rounds, 5 hospitals; attacker: `miscoded`." in text
    assert "| sign flip | weight_erosion (+0.500) | none | weight_erosion (+0.405) |" in text
    assert "| no attack | none | none | none |" in text
    assert "| weight_erosion | 0.205 ± 0.005 | 0.305 ± 0.005 |  | 0.805 ± 0.005 |" in text
    assert "| sign flip | 4.5 (4 to 5; 2 of 2) | never (0 of 2) |" in text
    assert "| absent |  | never (0 of 2) |" in text
