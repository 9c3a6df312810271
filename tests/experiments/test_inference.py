"""The attacks on a hospital in this process, and the page about them."""

import numpy as np
import pytest
import torch

from experiments.cells import Cell, CellPlan
from experiments.papers import inference, protections
from experiments.reconstruction import cut_at, num_among, swept

USUAL = {**inference.USUAL, "seed": 0}


def found(attack: str, order: str, **changes: int) -> int:
    config = {"attack": attack, "order": order, **USUAL, **changes}
    return int(inference.run(config, None)["found"])


def test_with_a_public_order_zero_parameters_give_every_record_and_with_a_secret_one_none() -> None:
    assert found("zero", "public", rounds=90) == 60
    assert found("zero", "secret", rounds=90) <= 3


def test_cuts_give_records_where_a_round_goes_over_all_patients_and_not_over_a_part() -> None:
    assert found("cuts-whole", "secret") > 10
    assert found("cuts", "secret") <= 3


def test_a_fit_to_few_rounds_ends() -> None:
    assert found("ordinary", "public", rounds=6, patients=30, steps=2) <= 30


def test_the_one_patient_between_two_cuts_by_hand() -> None:
    """Of (1.5, 4) and (9, 2), who are ill or not, the first is between 1 and 2."""
    config = {"attack": "cuts-whole", "rounds": 2, "patients": 2, "steps": 1, "seed": 0}
    study = inference.study_of(config)
    records = np.array([[1.5, 4.0, 1.0], [9.0, 2.0, 0.0]])
    deltas = []
    for cut in (1.0, 2.0):
        shares = (records[:, 0] > cut) - records[:, 2]
        yes = (shares[:, None] * np.column_stack([records[:, :2], np.ones(2)])).mean(axis=0)
        delta = torch.zeros(6)
        delta[[2, 3, 5]] = torch.from_numpy(-yes).float()
        deltas.append(delta)
    assert swept(study, deltas, 2) == pytest.approx(np.array([[1.5, 4.0]]))
    assert num_among(np.array([[1.5, 4.0]]), records) == 1
    assert num_among(np.zeros((0, 2)), records) == 0
    above = torch.sigmoid(cut_at(1.0)[2:4] @ torch.tensor([1.5, 4.0]) + cut_at(1.0)[5])
    assert float(above) == pytest.approx(1.0, abs=1e-6)


def cell(plan: CellPlan, **figures: object) -> Cell:
    return Cell(plan, figures, "c0ffee", "erosion experiment", 1.0)


def test_the_price_of_a_protection_is_told_beside_the_first() -> None:
    cells = {}
    for plan in protections.plans():
        if "timed" in plan.config:
            cells[plan.name] = cell(plan, alone=0.001, with_records=0.0025)
        else:
            more = list(protections.VARIANTS).index(plan.config["variant"])
            errors = 4 + plan.config["seed"] % 2 + more
            cells[plan.name] = cell(plan, errors=errors, patients=104, log_loss=0.1)
    text = protections.draw(cells).text
    assert "| secret order | 5.50 ± 0.08 | +1.00 ± 0.00 | +0.0000 ± 0.0000 |" in text
    assert "1.0 ms of training and 2.5 ms with approval" in text


def test_each_row_says_how_many_splits_it_is_of() -> None:
    cells = {}
    for plan in protections.plans():
        variant, seed = plan.config.get("variant"), plan.config["seed"]
        if (variant == protections.REFERENCE and seed < 4) or (
            variant == "cells of 10" and seed > 1
        ):
            cells[plan.name] = cell(plan, errors=4 + seed % 2, patients=104, log_loss=0.1)
    rows = {
        row.split(" | ")[0]: row
        for row in protections.draw(cells).text.splitlines()
        if " ± " in row
    }
    assert rows[f"| {protections.REFERENCE}"].endswith(" | 4 |")
    assert rows["| cells of 10"].endswith(" | +0.00 ± 0.00 | +0.0000 ± 0.0000 | 2 |")


def test_one_split_with_cells_and_a_secret_is_measured() -> None:
    plan = next(p for p in protections.plans() if p.config.get("variant") == "secret order")
    figures = protections.run(plan.config, None)
    assert figures["patients"] == 104
    assert 0 <= figures["errors"] <= 40
