"""The user's test part."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion_client.dataset.split import Split, split_patients
from erosion_common.learning.local_work import hold_out
from erosion_common.study.sections import Fold
from tests.support.small_study import make_study

STUDY = make_study()


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
