"""Updates are of the same patients as before, or of sets that differ in at least a cell of them."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from erosion_client.dataset.text_table import hash_of_text
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import TrainRequest
from erosion_common.rounds.selection import fold_studies
from erosion_common.study.study import Study
from tests.support.said import raises
from tests.support.small_study import make_site, make_study
from tests.support.small_study import site_with_cell as site

CELL = 10
SECRET = b"a site's own"


def normal(num: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(100, 15, (num, 2))


def trained_on(
    cells: DisclosureControl, rows: NDArray[np.float64], whole: NDArray[np.uint64] | None = None
) -> set[tuple[float, ...]]:
    """The rows that are left."""
    targets, patients = np.zeros(len(rows)), np.arange(len(rows))
    kept = cells.trained_on("b", rows, targets, patients, whole)
    return {tuple(row) for row in rows[kept].tolist()}


def as_set(rows: NDArray[np.float64]) -> set[tuple[float, ...]]:
    return {tuple(row) for row in rows.tolist()}


def test_a_patient_who_came_is_left_out_until_a_cell_of_patients_came() -> None:
    cells, rows = DisclosureControl(site(), SECRET), normal(60)
    before = trained_on(cells, rows[:40])
    assert before == as_set(rows[:40])
    for num in (41, 45, 49):
        assert trained_on(cells, rows[:num]) == before
    assert trained_on(cells, rows[:50]) == as_set(rows[:50])


def test_with_a_patient_who_went_others_are_left_out() -> None:
    cells, rows = DisclosureControl(site(), SECRET), normal(60)
    trained_on(cells, rows)
    after = trained_on(cells, rows[1:])
    assert after < as_set(rows[1:])
    assert len(after) == 60 - CELL
    assert trained_on(cells, rows[1:]) == after  # asked again, by another study


def test_who_is_left_out_depends_on_the_secret() -> None:
    rows, found = normal(60), set()
    for secret in (b"one", b"two"):
        cells = DisclosureControl(site(), secret)
        trained_on(cells, rows)
        found.add(frozenset(trained_on(cells, rows[1:])))
    assert len(found) == 2


def test_a_corrected_record_is_one_that_went_and_one_that_came() -> None:
    cells, rows = DisclosureControl(site(), SECRET), normal(60)
    trained_on(cells, rows)
    corrected = rows.copy()
    corrected[7, 1] += 1
    after = trained_on(cells, corrected)
    assert tuple(corrected[7].tolist()) not in after
    assert len(after) == 60 - CELL


def test_a_row_is_known_again_where_a_study_asks_for_other_columns() -> None:
    """One patient lacks a value of the further column and would be left out alone."""
    cells, rows = DisclosureControl(site(), SECRET), normal(60)
    whole = np.arange(60, dtype=np.uint64) * np.uint64(7919)
    trained_on(cells, rows, whole)
    other = np.column_stack([rows, np.ones(60)])
    after = trained_on(cells, other[1:], whole[1:])
    assert len(after) == 60 - CELL


def test_too_few_patients_to_leave_out_are_a_refusal_that_says_no_number() -> None:
    cells, rows = DisclosureControl(site(), SECRET), normal(15)
    trained_on(cells, rows)
    with raises(Refusal, "limits.min_cell = 10") as refused:
        trained_on(cells, rows[1:])
    assert "15" not in str(refused.value)


def test_what_was_trained_on_is_remembered_by_the_next_program(tmp_path: Path) -> None:
    rows = normal(60)
    before = trained_on(DisclosureControl(site(tmp_path), SECRET), rows[:59])
    assert trained_on(DisclosureControl(site(tmp_path), SECRET), rows) == before
    assert b"100" not in (tmp_path / "a" / "records.sqlite").read_bytes()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_two_trained_sets_are_the_same_or_differ_in_a_cell(data: st.DataObject) -> None:
    """Whoever comes, goes or is corrected between any two of six studies."""
    everybody = normal(90, seed=data.draw(st.integers(0, 5)))
    cells = DisclosureControl(site(), SECRET)
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


COLUMNS = ([0, 1], [0], [2, 3])  # of one table: numbers, one of them alone, and two of few values


def asked_for(
    cells: DisclosureControl, table: NDArray[np.float64], columns: list[int], stamp: int = 0
) -> tuple[list[tuple[float, ...]], set[tuple[float, ...]]]:
    """What an update is computed of: the columns' values, in order, and the whole rows."""
    hashes = [hash_of_text(f"{stamp} {row}") for row in table.tolist()]
    whole = np.array(hashes, dtype=np.uint64)
    values, num = table[:, columns], len(table)
    kept = cells.trained_on("b", values, np.zeros(num), np.arange(num), whole)
    return sorted(tuple(row) for row in values[kept].tolist()), as_set(table[kept])


def four_columns(num: int, seed: int = 0) -> NDArray[np.float64]:
    return np.column_stack([normal(num, seed), np.arange(num) % 2, np.arange(num) % 3 == 0])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_trained_sets_of_other_columns_differ_in_a_cell(data: st.DataObject) -> None:
    everybody = four_columns(90, seed=data.draw(st.integers(0, 5)))
    cells = DisclosureControl(site(), SECRET)
    found: list[tuple[list[int], list[tuple[float, ...]], set[tuple[float, ...]]]] = []
    rows = everybody
    for _ in range(7):
        if data.draw(st.booleans()):  # otherwise another study asks about the same patients
            rows = everybody.copy()
            changed = data.draw(st.lists(st.integers(0, 89), max_size=12, unique=True))
            rows[changed, data.draw(st.integers(0, 3))] += 1
            away = data.draw(st.lists(st.integers(0, 89), max_size=12, unique=True))
            rows = np.delete(rows, away, axis=0)
        columns = data.draw(st.sampled_from(COLUMNS))
        try:
            values, whole = asked_for(cells, rows, columns)
        except Refusal:
            continue
        if all((columns, values) != known[:2] for known in found):  # else: the update of before
            found.append((columns, values, whole))
    for (_, _, one), (_, _, other) in combinations(found, 2):
        assert one == other or max(len(one - other), len(other - one)) >= CELL


@pytest.mark.parametrize("replaced", [False, True], ids=["corrected", "replaced"])
def test_a_study_of_fewer_columns_does_not_hide_who_was_corrected(replaced: bool) -> None:
    """These columns are as they were, so the study itself is trained on everybody again."""
    cells, table = DisclosureControl(site(), SECRET), four_columns(60)
    before = asked_for(cells, table, [0, 1])[1]
    few = asked_for(cells, table, [2])
    changed = table.copy()
    changed[17, : 2 if replaced else 1] += 1
    assert asked_for(cells, changed, [2])[0] == few[0]
    after = asked_for(cells, changed, [0, 1])[1]
    assert after < before
    assert len(after) == 60 - CELL


def test_another_study_asked_first_does_not_hide_who_was_corrected() -> None:
    """Every export has another time stamp in each row, so no row is known as a whole."""
    cells, table = DisclosureControl(site(), SECRET), four_columns(60)
    before = asked_for(cells, table, [0, 1], stamp=1)[1]
    changed = table.copy()
    changed[17, 0] += 1
    asked_for(cells, changed, [2, 3], stamp=2)
    after = asked_for(cells, changed, [0, 1], stamp=2)[1]
    assert after < before
    assert len(after) == 60 - CELL


def test_the_same_patients_with_a_few_values_left_out_are_not_the_same() -> None:
    """A study of other ranges sees three values as missing: the two updates show these."""
    cells, table = DisclosureControl(site(), SECRET), four_columns(60)
    whole = np.arange(60, dtype=np.uint64) * np.uint64(7919)
    trained_on(cells, table[:, :2], whole)
    ranged = table[:, :2].copy()
    ranged[:3, 0] = np.nan
    after = trained_on(cells, ranged, whole)
    assert after < as_set(table[3:, :2])
    assert len(after) == 60 - CELL


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


def test_one_exclusion_does_not_give_its_record(tmp_path: Path) -> None:
    """By hand: the full-batch gradient times n is a sum, and two sums differ by one patient."""
    assert not found_record(tmp_path, cell=CELL)


def test_a_value_that_is_cut_otherwise_does_not_give_its_record(tmp_path: Path) -> None:
    """The oldest is 59.5: where nobody else's age changes, two updates differ by this patient."""
    text = sixty()
    hospital = Hospital(
        make_site(tmp_path, text, name="b", file="b.csv", limits={"min_cell": CELL}), SECRET
    )
    updates = []
    for name, cut in (("one", 59.0), ("other", 59.5)):
        task = {
            "kind": "tabular",
            "target": "ill",
            "classes": ["0", "1"],
            "features": [{"name": "age", "winsorise": [0, cut]}, "dose"],
            "interactions": [["age", "dose"]],
        }
        training = {"epochs": 2, "batch_size": 60, "learning_rate": 1e-7}
        study = make_study(name=name, task=task, training=training)
        request = TrainRequest(study, "fedavg", 1, torch.zeros(8), None, name)
        updates.append(hospital.train(request).delta.double())
    of_age, _, of_both = (updates[1] - updates[0])[3:6].tolist()
    dose = float(text.splitlines()[60].split(",")[2])
    assert abs(of_both / of_age - dose) > 0.1


def add_picture(folder: Path, number: int) -> None:
    """Of 8 x 8 grey pixels; every third is ill."""
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
    into = folder / "pictures" / ("healthy" if number % 3 else "ill")
    into.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(into / f"{number}.png")


def with_pictures(folder: Path) -> Hospital:
    for number in range(30):
        add_picture(folder, number)
    data = {"source": "images", "path": folder / "pictures", "resize": "stretch"}
    return Hospital(make_site(folder, name="b", data=data, limits={"min_cell": CELL}), SECRET)


def of_pictures(*shape: int, **keys: object) -> Study:
    task = {"kind": "image", "target": "ill", "classes": ["healthy", "ill"], "shape": shape}
    return make_study(task=task, **keys)


OTHER_SHAPES = [(1, 8, 8), (1, 7, 7), (3, 8, 8), (1, 16, 4)]


def test_pictures_are_known_again_where_a_study_asks_for_another_size(tmp_path: Path) -> None:
    hospital = with_pictures(tmp_path)
    hospital._prepare(of_pictures(1, 8, 8)).begin()
    add_picture(tmp_path, 99)
    for shape in OTHER_SHAPES:
        after = hospital._prepare(of_pictures(*shape, name="other"))
        assert len(after.outcomes) == 31
        assert after.num_training == 30


def test_pictures_of_another_size_are_measured_once(tmp_path: Path) -> None:
    hospital = with_pictures(tmp_path)
    asked = {"user": "b", "evaluation": {"folds": 2}}
    hospital._prepare(fold_studies(of_pictures(1, 8, 8, **asked))[0]).begin()
    add_picture(tmp_path, 99)
    for shape in OTHER_SHAPES:
        with raises(Refusal, "test patients"):
            hospital._prepare(fold_studies(of_pictures(*shape, **asked, name="other"))[0])


def test_the_unsettled_attack_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DisclosureControl,
        "trained_on",
        lambda self, name, rows, *_, **__: np.ones(len(rows), dtype=bool),
    )
    assert found_record(tmp_path, cell=CELL)
