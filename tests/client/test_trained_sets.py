"""Updates are of the same patients as before, or of sets that differ in at least a cell of them."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion.client.cells.cells import Cells
from erosion.client.site_file import Site
from erosion.client.training.hospital import Hospital
from erosion.common.errors import Refusal
from erosion.common.protocol.messages import TrainRequest
from erosion.common.study.study import Study
from tests.support.small_study import make_site, make_study

CELL = 10
SECRET = b"a site's own"


def site(folder: Path | None = None) -> Site:
    values = {
        "name": "b",
        "data": {"path": "b.csv"},
        "coordinator": {"address": "127.0.0.1:1"},
        "limits": {"min_cell": CELL},
        "compute": {} if folder is None else {"state": str(folder)},
    }
    return Site.model_validate(values)


def normal(num: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(100, 15, (num, 2))


def trained_on(
    cells: Cells, rows: NDArray[np.float64], whole: NDArray[np.uint64] | None = None
) -> set[tuple[float, ...]]:
    """The rows that are left."""
    targets, patients = np.zeros(len(rows)), np.arange(len(rows))
    kept = cells.trained_on("b", rows, targets, patients, whole)
    return {tuple(row) for row in rows[kept].tolist()}


def as_set(rows: NDArray[np.float64]) -> set[tuple[float, ...]]:
    return {tuple(row) for row in rows.tolist()}


def test_a_patient_who_came_is_left_out_until_a_cell_of_patients_came() -> None:
    cells, rows = Cells(site(), SECRET), normal(60)
    before = trained_on(cells, rows[:40])
    assert before == as_set(rows[:40])
    for num in (41, 45, 49):
        assert trained_on(cells, rows[:num]) == before
    assert trained_on(cells, rows[:50]) == as_set(rows[:50])


def test_with_a_patient_who_went_others_are_left_out() -> None:
    cells, rows = Cells(site(), SECRET), normal(60)
    trained_on(cells, rows)
    after = trained_on(cells, rows[1:])
    assert after < as_set(rows[1:])
    assert len(after) == 60 - CELL
    assert trained_on(cells, rows[1:]) == after  # asked again, by another study


def test_who_is_left_out_depends_on_the_secret() -> None:
    rows, found = normal(60), set()
    for secret in (b"one", b"two"):
        cells = Cells(site(), secret)
        trained_on(cells, rows)
        found.add(frozenset(trained_on(cells, rows[1:])))
    assert len(found) == 2


def test_a_corrected_record_is_one_that_went_and_one_that_came() -> None:
    cells, rows = Cells(site(), SECRET), normal(60)
    trained_on(cells, rows)
    corrected = rows.copy()
    corrected[7, 1] += 1
    after = trained_on(cells, corrected)
    assert tuple(corrected[7].tolist()) not in after
    assert len(after) == 60 - CELL


def test_a_row_is_known_again_where_a_study_asks_for_other_columns() -> None:
    """One patient lacks a value of the further column and would be left out alone."""
    cells, rows = Cells(site(), SECRET), normal(60)
    whole = np.arange(60, dtype=np.uint64) * np.uint64(7919)
    trained_on(cells, rows, whole)
    other = np.column_stack([rows, np.ones(60)])
    after = trained_on(cells, other[1:], whole[1:])
    assert len(after) == 60 - CELL


def test_too_few_patients_to_leave_out_are_a_refusal_that_says_no_number() -> None:
    cells, rows = Cells(site(), SECRET), normal(15)
    trained_on(cells, rows)
    with pytest.raises(Refusal, match=r"limits\.min_cell = 10") as refused:
        trained_on(cells, rows[1:])
    assert "15" not in str(refused.value)


def test_what_was_trained_on_is_remembered_by_the_next_program(tmp_path: Path) -> None:
    rows = normal(60)
    before = trained_on(Cells(site(tmp_path), SECRET), rows[:59])
    assert trained_on(Cells(site(tmp_path), SECRET), rows) == before
    assert b"100" not in (tmp_path / "b" / "cells.sqlite").read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_two_trained_sets_are_the_same_or_differ_in_a_cell(data: st.DataObject) -> None:
    """Whoever comes, goes or is corrected between any two of six studies."""
    everybody = normal(90, seed=data.draw(st.integers(0, 5)))
    cells = Cells(site(), SECRET)
    found: set[frozenset[tuple[float, ...]]] = set()
    for _ in range(6):
        present = np.ones(90, dtype=bool)
        present[data.draw(st.lists(st.integers(0, 89), max_size=25, unique=True))] = False
        rows = everybody.copy()
        rows[data.draw(st.lists(st.integers(0, 89), max_size=12, unique=True))] += 1
        try:
            found.add(frozenset(trained_on(cells, rows[present])))
        except Refusal:
            continue
    for one, other in combinations(found, 2):
        assert max(len(one - other), len(other - one)) >= CELL


def sixty(without_dose: int | None = None) -> str:
    draws = np.random.default_rng(4)
    lines = ["age,sex,dose,ill"]
    for number in range(60):
        dose = "" if number == without_dose else f"{draws.normal():.3f}"
        lines.append(f"{30 + number / 2:g},{'fm'[number % 2]},{dose},{number // 30}")
    return "\n".join(lines) + "\n"


def with_dose(study: Study) -> Study:
    """The same with a further column, whose missing values leave patients out."""
    task = study.task.model_dump(mode="json")
    task["features"] = [*task["features"], {"name": "dose", "missing": "drop"}]
    return make_study(name="more", task=task, training=study.training.model_dump())


def gradient_of(hospital: Hospital, study: Study) -> torch.Tensor:
    """A full-batch update from zero parameters, as a sum over the patients: columns and bias."""
    dim = max(place.stop for place in study.build_context.layout().values())
    request = TrainRequest(study, "fedavg", 1, torch.zeros(dim), None, study.name)
    update = hospital.train(request).delta.double()
    columns = (dim - 2) // 2
    ill = torch.cat([update[columns : columns + 2], update[-1:]])
    return ill / -study.training.learning_rate / (study.training.epochs or 1)


def found_record(folder: Path, *, cell: int) -> bool:
    """Whether two studies' updates together give the record of the one patient without a dose."""
    limits = {"min_cell": cell}
    patient = 17
    hospital = Hospital(
        make_site(folder, sixty(patient), name="b", file="b.csv", limits=limits), SECRET
    )
    study = make_study(training={"epochs": 2, "batch_size": 60, "learning_rate": 1e-7})
    whole, without = (gradient_of(hospital, asked) for asked in (study, with_dose(study)))
    difference = 60 * whole - 59 * without
    age, sex = (difference[:2] / difference[2]).tolist()
    return bool(abs(age - (30 + patient / 2)) < 0.5 and abs(sex - patient % 2) < 0.1)


def test_studies_that_differ_in_one_exclusion_do_not_give_the_excluded_record(
    tmp_path: Path,
) -> None:
    """By hand: the full-batch gradient times n is a sum, and two sums differ by one patient."""
    assert not found_record(tmp_path, cell=CELL)


def test_the_attack_works_where_nothing_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Cells, "trained_on", lambda self, name, rows, *_: np.ones(len(rows), dtype=bool)
    )
    assert found_record(tmp_path, cell=CELL)
