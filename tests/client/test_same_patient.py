"""Rows of one patient, and duplicates: found, reported, and never on both sides of a split."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.same_patient import SamePatient, same_patient
from erosion_client.dataset.split import Split, split_patients
from erosion_client.evaluation.final_figures import final_figures
from erosion_client.training.limits import check_limits
from erosion_common.errors import DataError, Refusal
from erosion_common.learning.local_work import hold_out
from erosion_common.study.sections import Fold
from tests.support.said import raises, says
from tests.support.small_study import TASK, make_site, make_study

STUDY = make_study()


def continuous(num_rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows = np.random.default_rng(0).normal(60, 20, (num_rows, 4))
    return rows, np.arange(num_rows) % 2


def num_patients(found: SamePatient) -> int:
    return len(set(found.groups.tolist()))


def test_a_table_written_twice_is_as_many_patients_as_once() -> None:
    rows, labels = continuous(80)
    found = same_patient(np.r_[rows, rows], np.r_[labels, labels])
    assert found.exact.tolist() == list(range(80, 160))
    assert found.groups[:80].tolist() == found.groups[80:].tolist()
    assert num_patients(found) == 80


@pytest.mark.parametrize("column", [0, 2, None])
def test_rows_that_differ_in_one_column_are_named_and_stay_two_patients(column: int | None) -> None:
    rows, labels = continuous(80)
    copies, copied = rows[:3].copy(), labels[:3].copy()
    if column is None:
        copied = 1 - copied
    else:
        copies[:, column] += 10
    found = same_patient(np.r_[rows, copies], np.r_[labels, copied])
    assert len(found.exact) == 0
    assert found.near.tolist() == [0, 1, 2, 80, 81, 82]
    assert num_patients(found) == 83
    keys = np.r_[np.arange(80), 0, 1, 5]  # visits of the same patients, but for the last
    assert same_patient(np.r_[rows, copies], np.r_[labels, copied], keys).near.tolist() == [2, 82]


@pytest.mark.parametrize("missing", [np.nan, 0.0])
def test_patients_without_the_same_panel_are_as_many_as_they_are(missing: float) -> None:
    draw = np.random.default_rng(0)
    panel = draw.normal(100, 20, (1000, 10)).round(1)
    panel[draw.random(1000) < 0.6] = missing
    rows = np.c_[draw.integers(18, 95, 1000), draw.integers(2, size=1000), panel]
    labels = np.arange(1000) % 2
    assert num_patients(same_patient(rows, labels)) == 1000
    measured = np.flatnonzero(panel[:, 0] > 0)
    again = same_patient(np.r_[rows, rows[measured]], np.r_[labels, labels[measured]])
    assert num_patients(again) == 1000


def test_missing_values_are_equal_to_each_other() -> None:
    rows, labels = continuous(80)
    rows[::3, 1] = np.nan
    assert num_patients(same_patient(np.r_[rows, rows], np.r_[labels, labels])) == 80


def test_a_key_ties_rows_together_and_joins_what_duplicates_tie() -> None:
    rows, labels = continuous(20)
    rows[5], labels[5] = rows[0], labels[0]
    keys = np.arange(20)
    keys[4] = keys[5]
    keys[1] = keys[2]
    groups = same_patient(rows, labels, keys).groups
    assert groups[1] == groups[2]
    # One patient has row 4 and row 5, which is row 0 again.
    assert groups[0] == groups[4] == groups[5]
    assert len(set(groups.tolist())) == 17


def test_equal_images_are_tied_and_nearly_equal_ones_named() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 12, 12)).astype(np.uint8)
    noisy = np.clip(images.astype(int) + 1, 0, 255).astype(np.uint8)
    blank = np.zeros((2, 1, 12, 12), np.uint8)
    blank[1, 0, 0, 0] = 1  # no contrast: nothing can be said
    found = same_patient(np.concatenate([images, images[:5], noisy[5:10], blank]), np.zeros(32))
    assert found.exact.tolist() == list(range(20, 25))
    assert found.near.tolist() == [*range(5, 10), *range(25, 30)]
    assert num_patients(found) == 27
    keys = np.r_[np.arange(25), 5:10, 30, 31]
    found = same_patient(
        np.concatenate([images, images[:5], noisy[5:10], blank]), np.zeros(32), keys
    )
    assert found.near.tolist() == []


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), min_size=2, max_size=40),
    st.floats(0.05, 0.95),
    st.sampled_from([None, 3]),
)
def test_patients_stay_apart(drawn: list[tuple[int, int]], share: float, folds: int | None) -> None:
    groups = np.unique([group for group, _ in drawn], return_inverse=True)[1]
    labels = np.array([label for _, label in drawn])
    fold = {"number": 1, "of": folds} if folds else None
    study = make_study(evaluation={"test_share": share}, fold=fold)
    rows = np.arange(len(drawn), dtype=float)[:, None]
    try:
        split = split_patients(study, "a", rows, labels, groups)
    except DataError:
        assert folds
        return
    tested = set(groups[split.test].tolist())
    assert not tested & set(groups[split.training].tolist())
    if not folds:
        assert sorted([*split.training, *split.test]) == list(range(len(drawn)))
        for label in (0, 1):
            patients = {g for g in set(groups.tolist()) if labels[groups == g].max() == label}
            if len(patients) > 1:
                assert 0 < len(patients & tested) < len(patients)


def doubled(num_patients: int = 40) -> str:
    rows, labels = continuous(num_patients)
    lines = [
        f"{age:.2f},{'fm'[i % 2]},{y}"
        for i, (age, y) in enumerate(zip(rows[:, 0], labels, strict=True))
    ]
    return "age,sex,ill\n" + "\n".join(lines + lines[:20]) + "\n"


def test_duplicates_are_told_of_with_their_lines(tmp_path: Path) -> None:
    kept = load_patients(make_site(tmp_path, doubled()), STUDY)
    assert (len(kept.targets), kept.num_patients) == (60, 40)
    assert kept.notes == (
        "20 rows are the same as another one, kept on one side of the split:"
        " line 42, line 43, line 44, line 45, line 46, ...",
    )
    assert (kept.num_recorded, kept.num_repeated) == (60, 20)


def test_duplicates_do_not_straddle_a_hospitals_own_split(tmp_path: Path) -> None:
    prepared = LocalDataset(make_site(tmp_path, doubled()), STUDY)
    training, test = (part.inputs[:, 0].tolist() for part in prepared.parts(None))
    assert len(training) + len(test) == 60
    assert not set(training) & set(test)


def test_patients_whom_a_declared_split_has_on_both_sides_are_told_of(tmp_path: Path) -> None:
    head, *rows = doubled().splitlines()
    parts = ["test" if number >= 50 else "train" for number in range(60)]
    text = "\n".join([f"{head},part", *map(",".join, zip(rows, parts, strict=True)), ""])
    study = make_study(evaluation={"split_column": "part"})
    same, *others = load_patients(make_site(tmp_path, text), study).notes
    assert says(same, "20 rows", "line 42")
    assert len(others) == 1
    assert says(others[0], "10 test", "patients")
    assert len(load_patients(make_site(tmp_path, text, name="b"), study).notes) == 1


def test_a_declared_test_part_of_one_class_is_told_of(tmp_path: Path) -> None:
    rows = [f"{30 + i},f,{i % 2},{'test' if i % 2 and i > 20 else 'train'}" for i in range(60)]
    text = "\n".join(["age,sex,ill,part", *rows, ""])
    study = make_study(evaluation={"split_column": "part"})
    (note,) = load_patients(make_site(tmp_path, text), study).notes
    assert says(note, "split_column", "class 'ill'")
    assert not load_patients(make_site(tmp_path, text, name="b"), study).notes


def test_a_declared_split_through_a_patient_is_refused(tmp_path: Path) -> None:
    head, *rows = stays(4).splitlines()
    parts = ["test" if number % 4 == 3 and number > 20 else "train" for number in range(40)]
    text = "\n".join([f"{head},part", *map(",".join, zip(rows, parts, strict=True)), ""])
    study = make_study(evaluation={"split_column": "part"})
    with raises(DataError, "5 patients", "split_column"):
        load_patients(make_site(tmp_path, text, data={"patient": "pid"}), study)
    assert load_patients(make_site(tmp_path, text, name="b", data={"patient": "pid"}), study)


def test_a_declared_split_without_a_test_part_counts_rows(tmp_path: Path) -> None:
    head, *rows = stays(4).splitlines()
    text = "\n".join([f"{head},part", *(f"{row},train" for row in rows), ""])
    study = make_study(evaluation={"split_column": "part"})
    site = make_site(tmp_path, text, data={"patient": "pid"})
    with raises(DataError, "40 training", "0 test"):
        LocalDataset(site, study).parts(None)


def stays(per_patient: int, missing: str = "") -> str:
    rows, labels = continuous(40)
    lines = [
        f"p{i // per_patient},{rows[i, 0]:.2f},{'fm'[i % 2]},{labels[i // per_patient]}"
        for i in range(40)
    ]
    return "pid,age,sex,ill\n" + "\n".join(lines) + "\n" + missing


def test_a_limit_of_patients_counts_patients_and_not_their_stays(tmp_path: Path) -> None:
    site = make_site(tmp_path, stays(4), name="b", data={"patient": "pid"})
    prepared = LocalDataset(site, STUDY)
    assert (prepared.num_training, prepared.training_counts.num_patients) == (40, 10)
    strict = site.model_copy(update={"limits": site.limits.model_copy(update={"min_patients": 11})})
    with raises(Refusal, "training", "limits.min_patients = 11"):
        check_limits(strict, STUDY, prepared.training_counts)


def test_a_verdict_counts_patients_and_not_their_stays(tmp_path: Path) -> None:
    site = make_site(tmp_path, stays(4), data={"patient": "pid"})
    prepared = LocalDataset(site, STUDY)
    stays_tested, tested = len(prepared.split.test), len(prepared.tested_outcomes)
    assert stays_tested == 4 * tested
    arms = {
        arm: np.full((tested, 2), [chance, 1 - chance])
        for arm, chance in (("fedavg", 0.4), ("local", 0.5))
    }
    found = final_figures(prepared, arms, None)
    assert found.comparison is not None
    assert found.comparison.num_patients == found.arms["fedavg"].num_patients == tested


def test_a_patient_key_that_is_absent_or_empty_is_explained(tmp_path: Path) -> None:
    with raises(DataError, "'id'", "column of"):
        load_patients(make_site(tmp_path, stays(4), data={"patient": "id"}), STUDY)
    text = stays(4, ",50,f,1\n")
    with raises(DataError, "'pid'", "line 42"):
        load_patients(make_site(tmp_path, text, data={"patient": "pid"}), STUDY)


def test_a_user_whose_rows_are_all_of_one_patient_cannot_be_measured(tmp_path: Path) -> None:
    rows = "".join(f"p{i % 2},{50 + i},f,{i % 2}\n" for i in range(10))
    site = make_site(tmp_path, "pid,age,sex,ill\n" + rows, data={"patient": "pid"})
    with raises(DataError, "class", "patients"):
        LocalDataset(site, STUDY)


def rows_of(labels: NDArray[np.int64], distinct: int = 10**6) -> NDArray[np.float64]:
    return (np.arange(len(labels)) % distinct).astype(np.float64)[:, None]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_both_sides_have_each_class_in_its_share(drawn: list[int], share: float) -> None:
    labels = np.array(drawn)
    study = make_study(evaluation={"test_share": share})
    split = split_patients(study, "a", rows_of(labels), labels)
    assert sorted([*split.training, *split.test]) == list(range(len(labels)))
    for label in set(drawn):
        total = drawn.count(label)
        tested = int((labels[split.test] == label).sum())
        if total == 1:
            assert tested == 0
        else:
            assert 1 <= tested <= total - 1
            assert abs(tested - share * total) <= 0.5 or tested in (1, total - 1)


@given(st.permutations(range(30)), st.sampled_from([3, 30]))
def test_the_order_of_rows_does_not_matter(order: list[int], distinct: int) -> None:
    labels = np.arange(30) % 2
    rows = rows_of(labels, distinct)
    one = split_patients(STUDY, "a", rows, labels)
    other = split_patients(STUDY, "a", rows[order], labels[order])
    tested = sorted(zip(rows[one.test, 0], labels[one.test], strict=True))
    shuffled = sorted(zip(rows[order][other.test, 0], labels[order][other.test], strict=True))
    assert tested == shuffled


def test_patients_who_are_equal_by_chance_do_not_all_land_on_one_side() -> None:
    labels = np.arange(200) % 2
    rows = np.zeros((200, 1))
    split = split_patients(STUDY, "a", rows, labels)
    assert len(split.test) == 60
    assert split.test.min() < 50
    assert split.test.max() > 150


def test_a_new_patient_hardly_changes_the_split() -> None:
    labels = np.zeros(101, dtype=np.int64)
    before = split_patients(STUDY, "a", rows_of(labels[:100]), labels[:100])
    after = split_patients(STUDY, "a", rows_of(labels), labels)
    assert len(set(before.test.tolist()) ^ set(after.test.tolist())) <= 2


def test_the_split_changes_with_seed_study_and_hospital_only() -> None:
    labels = np.arange(40) % 2
    rows = rows_of(labels)

    def test_part(hospital: str = "a", **changes: object) -> list[int]:
        study = make_study(**{"user": hospital, **changes})
        tested: list[int] = split_patients(study, hospital, rows, labels).test.tolist()
        return tested

    usual = test_part()
    assert test_part() == usual
    assert test_part(rounds=9, training={"epochs": 3}, arms=["local"]) == usual
    others = [test_part("b"), test_part(seed=1), test_part(name="other")]
    assert usual not in others
    # Frozen: a change here would move patients of running studies into training.
    assert usual == FROZEN


FROZEN = [3, 4, 6, 8, 13, 17, 19, 30, 36, 37, 38, 39]


def test_other_hospitals_train_on_everything() -> None:
    labels = np.arange(10) % 2
    split = split_patients(STUDY, "b", rows_of(labels), labels)
    assert split.training.tolist() == list(range(10))
    assert len(split.test) == 0


def test_images_are_split_by_their_pixels() -> None:
    pixels = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
    labels = np.arange(10) % 2
    assert len(split_patients(STUDY, "a", pixels, labels).test) == 4


def test_folds_share_out_the_training_part_and_leave_the_test_part_alone() -> None:
    labels = (np.arange(43) % 3 == 0).astype(np.int64)
    whole = split_patients(STUDY, "a", rows_of(labels), labels)
    held_out: list[int] = []
    for number in range(4):
        study = make_study(fold={"number": number, "of": 4})
        split = split_patients(study, "a", rows_of(labels), labels)
        assert sorted([*split.training, *split.test]) == whole.training.tolist()
        assert 1 <= labels[split.test].sum() < len(split.test)  # both classes
        held_out += split.test.tolist()
    assert sorted(held_out) == whole.training.tolist()


def test_a_patient_s_rows_are_in_one_fold_of_a_declared_training_part() -> None:
    labels, groups = np.arange(40) // 2 % 2, np.arange(40) // 2
    is_test = np.arange(40) >= 32
    held_out: list[int] = []
    for number in range(4):
        study = make_study(fold={"number": number, "of": 4})
        split = split_patients(study, "a", rows_of(labels), labels, groups, is_test)
        assert not set(groups[split.training]) & set(groups[split.test])
        held_out += split.test.tolist()
    assert sorted(held_out) == list(range(32))


NUM_PATIENTS, OFTEN = 400, 128  # the first so many of them have four rows each, the others one
OF_PATIENT = np.concatenate([np.repeat(np.arange(OFTEN), 4), np.arange(OFTEN, NUM_PATIENTS)])
LABELS = (OF_PATIENT % 5 < 2).astype(np.int64)


def visits(**changes: object) -> Split:
    """The split of patients some of whom came four times."""
    study = make_study(evaluation={"test_share": 0.3}, **changes)
    return split_patients(study, "a", rows_of(LABELS), LABELS, OF_PATIENT)


def set_aside(seed: int) -> Split:
    """As a method does with a quarter of its training patients."""
    generator = torch.Generator().manual_seed(seed)
    strata = torch.from_numpy(np.arange(NUM_PATIENTS) % 5 < 2).long()
    rest, held_out = hold_out(strata, 0.25, generator, torch.from_numpy(OF_PATIENT))
    return Split(rest.numpy(), held_out.numpy())


@pytest.mark.parametrize(
    ("draw", "share"),
    [
        (lambda seed: visits(seed=seed), 0.3),
        (lambda seed: visits(seed=seed, fold={"number": seed % 4, "of": 4}), 0.7 / 4),
        (lambda seed: fold_of_all(seed, Fold(number=seed % 5, of=5, cut=seed % 2 + 1)), 0.2),
        (set_aside, 0.25),
    ],
    ids=["test part", "fold of a selection", "fold of an evaluation", "set aside by a method"],
)
def test_repeated_patients_are_tested_alike(draw: Callable[[int], Split], share: float) -> None:
    of_often, tested = 0, 0
    for seed in range(60):
        patients = np.unique(OF_PATIENT[draw(seed).test])
        assert abs(len(patients) - share * NUM_PATIENTS) <= 2  # the share is of patients
        of_often += int((patients < OFTEN).sum())
        tested += len(patients)
    expected = OFTEN / NUM_PATIENTS
    deviation = np.sqrt(expected * (1 - expected) / tested)
    assert abs(of_often / tested - expected) < 4 * deviation


def fold_of_all(seed: int, fold: Fold) -> Split:
    """A fold of a cross-fitted evaluation of the same patients."""
    study = make_study(evaluation={"folds": fold.of, "repeats": 2}, seed=seed)
    asked = study.model_copy(update={"fold": fold})
    return split_patients(asked, "a", rows_of(LABELS), LABELS, OF_PATIENT)


@given(st.permutations(range(40)))
def test_patients_who_share_rows_are_split_alike(order: list[int]) -> None:
    groups = np.array([*range(20), *range(20)]) % 25
    labels = np.zeros(40, dtype=np.int64)
    rows = rows_of(labels, distinct=10)

    def tested(at: list[int]) -> list[tuple[float, ...]]:
        test = split_patients(STUDY, "a", rows[at], labels[at], groups[at]).test
        patients = [groups[at][row] for row in test]
        return sorted(
            tuple(sorted(rows[groups == patient, 0].tolist())) for patient in set(patients)
        )

    assert tested(order) == tested(list(range(40)))


def test_a_patient_with_several_incomplete_rows_is_left_out_once(tmp_path: Path) -> None:
    rows = [f"p{i // 2},{'' if i < 5 else 40 + i},f,{i // 2 % 2}" for i in range(60)]
    site = make_site(
        tmp_path, "who,age,sex,ill\n" + "\n".join(rows) + "\n", data={"patient": "who"}
    )
    found = load_patients(site, make_study(task={**TASK, "missing": "drop"}))
    assert (found.num_recorded, len(found.targets), found.num_incomplete) == (60, 55, 3)
