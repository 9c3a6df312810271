"""Encoding, pooled scaling, and the treatment of missing values."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from torch import Tensor

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.preprocessing import (
    notes_of_cut,
    notes_of_unlike,
    stand_ins,
    table_inputs,
)
from erosion_common.errors import DataError
from erosion_common.learning.local_sgd import (
    Samples,
    predictions_of,
    round_generator,
    train_locally,
)
from erosion_common.learning.training import Training
from erosion_common.protocol.messages import FeatureSums, Scaling
from erosion_common.protocol.scaling import CUT, NOT_FOUND, number_columns, pool, problem_with_sums
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.inputs import TabularTask
from tests.support import small_study
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study
from tests.support.tasks import tabular

NAN = float("nan")
TASK = tabular(
    target="ill",
    classes=[0, 1],
    features=["age", {"name": "stage", "categories": ["I", "II", "III"]}, "weight"],
)
ROWS = np.array([[1, 0, 5], [3, 1, NAN], [NAN, 2, 7], [2, NAN, 6]])  # stage by its index


def feature_sums(task: TabularTask, rows: NDArray[np.float64]) -> FeatureSums:
    """Per encoded column: number, sum and sum of squares of the values in rows (n, features).

    Exact, as a hospital could make them of rows that may be known to all.
    """
    count: list[int] = []
    total: list[float] = []
    squares: list[float] = []
    for feature, column in zip(task.features, rows.T, strict=True):
        if isinstance(feature, NumberFeature):
            values = column[~np.isnan(column)]
            count.append(len(values))
            total.append(float(values.sum()))
            squares.append(float(np.square(values).sum()))
        else:
            zeros = [0] * task.width(feature)
            count += zeros
            total += zeros
            squares += zeros
    return FeatureSums(count=tuple(count), total=tuple(total), squares=tuple(squares))


def test_categories_become_indicators_and_missing_numbers_zero_or_their_mean() -> None:
    assert TASK.input_shape == (4,)
    assert number_columns(TASK) == (True, False, False, True)
    scaling = Scaling(mean=(2, 0, 0, 6), deviation=(0.5, 1, 1, 2))
    expected = [[-2, 0, 0, -0.5], [2, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 0]]
    assert table_inputs(TASK, ROWS, scaling).tolist() == expected
    expected = [[1, 0, 0, 5], [3, 1, 0, 6.5], [2.5, 0, 1, 7], [2, 0, 0, 6]]
    assert table_inputs(TASK, ROWS, None, (2.5, 0, 0, 6.5)).tolist() == expected


def test_what_is_scaled_is_cut_and_in_a_column_without_a_deviation_sooner() -> None:
    rows = np.array([[4000.0, 0, 4000.0], [-4000, 0, -4000], [3, 0, 180], [NAN, 0, NAN]])
    scaling = Scaling(mean=(0, 0, 0, 0), deviation=(1, 1, 1, 2))
    numbers = table_inputs(TASK, rows, scaling)[:, [0, 3]]
    assert numbers.tolist() == [[10, 100], [-10, -100], [3, 90], [0, 0]]
    assert list(notes_of_cut(TASK, rows, scaling, CUT)) == [
        "age: values cut because they lie more than 10 from the mean: 2 of 3. Look for slips, or"
        " for another unit",
        "weight: values cut because they lie more than 100 deviations from the mean: 2 of 3. Look"
        " for slips, or for another unit",
    ]
    assert list(notes_of_cut(TASK, rows[2:], scaling, CUT)) == []
    assert table_inputs(TASK, rows, None)[0].tolist() == [4000, 0, 0, 4000]


def test_a_deviation_of_one_that_was_found_is_told_from_none() -> None:
    rows = np.array([[-1.0, 0, 4], [1, 0, 4]])
    deviation = pool([feature_sums(TASK, rows)], TASK).deviation
    assert deviation[0] == pytest.approx(1)
    assert deviation[0] != NOT_FOUND
    assert deviation[3] == NOT_FOUND
    constant_or_empty = pool([feature_sums(TASK, np.array([[0.1, 0, NAN]] * 7))], TASK)
    assert constant_or_empty.deviation == (1, 1, 1, 1)
    assert constant_or_empty.mean == pytest.approx((0.1, 0, 0, 0))


tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.just(2)),
    elements=st.just(NAN) | st.floats(-1e3, 1e3, width=16, allow_subnormal=False),
)
TWO_NUMBERS = tabular(target="ill", classes=[0, 1], features=["age", "weight"])


@settings(max_examples=30)
@given(st.lists(tables, min_size=1, max_size=2))  # of three, one may be outvoted
def test_pooled_scaling_is_that_of_all_rows(hospitals: list[NDArray[np.float64]]) -> None:
    scaling = pool([feature_sums(TWO_NUMBERS, rows) for rows in hospitals], TWO_NUMBERS)
    together = np.concatenate(hospitals)
    for column, mean, deviation in zip(together.T, scaling.mean, scaling.deviation, strict=True):
        values = column[~np.isnan(column)]
        if len(values) == 0:
            assert (mean, deviation) == (0, 1)
            continue
        assert mean == pytest.approx(values.mean(), abs=1e-9)
        if np.ptp(values) == 0:
            assert deviation == 1
        else:
            assert deviation == pytest.approx(values.std(), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"count": (3, 0, 0)}, "sums of 3 columns, expected 4"),
        ({"count": (10**12, 0, 0, 3)}, "column 0 has 1000000000000 values"),
        ({"count": (0, 0, 0, 3)}, "column 0 has the sum of squares 14 of 0 values"),
        ({"squares": (-1.0, 0, 0, 110)}, "column 0 has the sum of squares -1 of 3 values"),
        ({"squares": (1e300, 0, 0, 110)}, "column 0 has the sum of squares 1e+300 of 3 values"),
        ({"total": (99.0, 0, 0, 18)}, "column 0 has a sum too large for its sum of squares"),
        ({"count": (3, 1, 0, 3)}, "sums of the category column 1, which is not scaled"),
    ],
)
def test_sums_that_no_data_have_are_told_apart(changes: dict[str, object], problem: str) -> None:
    sums = feature_sums(TASK, ROWS).model_dump() | changes
    assert problem_with_sums(FeatureSums.model_validate(sums), TASK) == problem


def with_policies(**policies: str) -> TabularTask:
    features = [f.model_copy(update={"missing": policies.get(f.name)}) for f in TASK.features]
    return TASK.model_copy(update={"features": tuple(features)})


COUNTS = (4, 0, 0, 0)  # values that a mean is of, by column


def test_a_missing_category_is_the_commonest_one_or_is_told_the_model() -> None:
    scaling = Scaling(mean=(0, 0, 0, 0), deviation=(1, 1, 1, 1))
    mode = with_policies(stage="mode")
    rows = np.array([[1, 0, 5], [3, 2, 5], [2, 2, 7], [2, NAN, 6]])
    standing_in = stand_ins(mode, rows, (0, 0, 0, 0), COUNTS, scaled=True)
    assert standing_in[1:3] == (0, 1)  # III
    assert mode.input_shape == (4,)
    assert table_inputs(mode, rows, scaling, standing_in)[3].tolist() == [2, 0, 1, 6]
    indicator = with_policies(stage="indicator")
    assert indicator.input_shape == (5,)
    assert number_columns(indicator) == (True, False, False, False, True)
    assert len(feature_sums(indicator, rows).count) == 5
    wide = Scaling(mean=(0,) * 5, deviation=(1,) * 5)
    assert table_inputs(indicator, rows, wide)[:, 1:4].tolist() == [
        [0, 0, 0],
        [0, 1, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]


def test_too_few_values_have_nothing_that_could_stand_for_one() -> None:
    rows = np.array([[1.0, NAN, NAN], [3.0, NAN, NAN]])
    with raises(DataError, "patient", "commonest"):
        stand_ins(with_policies(stage="mode"), rows, (2, 0, 0, 0), COUNTS, scaled=True)
    imputed = with_policies(weight="impute")
    few = np.array([[1.0, 1, 7.4], [3.0, 2, NAN], [2.0, 2, NAN], [2.0, 2, NAN]])  # no cell
    for each in (rows, few):
        with raises(DataError, "weight"):
            stand_ins(imputed, each, (2, 0, 0, 0), COUNTS, scaled=False)
    assert len(stand_ins(imputed, rows, (2, 0, 0, 0), COUNTS, scaled=True)) == 4
    assert stand_ins(imputed, few, (2, 0, 0, 7.4), (4, 0, 0, 1), scaled=False)[3] == 7.4


@pytest.mark.parametrize("user", ["a", "b"])
def test_a_hospital_with_too_few_values_is_not_scaled_by_none(tmp_path: Path, user: str) -> None:
    head, *lines = small_study.twenty_patients().splitlines()
    lines = [line if row < 2 else "," + line.split(",", 1)[1] for row, line in enumerate(lines)]
    site = make_site(tmp_path, "\n".join([head, *lines]))  # two ages, and a cell is three
    task = small_study.with_missing("impute")
    with raises(DataError, "value", "mean"):
        LocalDataset(site, make_study(user=user, task=task, scaling="none"))
    for scaling in ("federated", "user", "local"):
        found = LocalDataset(site, make_study(user=user, task=task, scaling=scaling))
        assert found.missing_values is None  # the mean that a column is scaled by


def sums_of(mean: float, deviation: float, count: int) -> FeatureSums:
    """One hospital's, of one number."""
    squares = count * (deviation**2 + mean**2)
    return FeatureSums(count=(count,), total=(count * mean,), squares=(squares,))


SMALL_LIES = [sums_of(0, 1e-5, 60), sums_of(0.01, 1e-5, 10**9), sums_of(0, 0, 10**9)]
LARGE_LIES = [sums_of(1e6, 0, 60), sums_of(1e29, 1e20, 60), sums_of(-1e6, 1e6, 10**9)]
ONE_NUMBER = tabular(target="ill", classes=[0, 1], features=["age"])
HONEST = [sums_of(50, 10, 60), sums_of(55, 12, 80), sums_of(60, 9, 100), sums_of(48, 11, 20)]


@pytest.mark.parametrize(
    "lie", [sums_of(1e29, 0, 10**9), sums_of(50, 10, 10**9), sums_of(-1e6, 1e6, 60)]
)
def test_of_two_hospitals_the_users_is_the_measure(lie: FeatureSums) -> None:
    own = HONEST[0]
    lied_to = pool([own, lie], ONE_NUMBER, own)
    assert abs(lied_to.mean[0] - 50) < 10
    assert 5 < lied_to.deviation[0] < 20
    both = pool([own, HONEST[1]], ONE_NUMBER, own)
    assert 50 < both.mean[0] < 55


@pytest.mark.parametrize(
    "lie",
    [
        sums_of(50, 10, 10**9),
        sums_of(1e6, 10, 60),
        sums_of(-1e6, 1e6, 10**9),
        sums_of(55, 1e9, 60),
        sums_of(1e29, 0, 10**9),
    ],
)
def test_no_hospital_moves_the_pooled_scaling_far(lie: FeatureSums) -> None:
    honest, lied_to = pool(HONEST, ONE_NUMBER), pool([*HONEST, lie], ONE_NUMBER)
    assert honest.mean[0] == pytest.approx((50 * 60 + 55 * 80 + 60 * 100 + 48 * 20) / 260)
    assert abs(lied_to.mean[0] - honest.mean[0]) < honest.deviation[0]
    assert 0.5 < lied_to.deviation[0] / honest.deviation[0] < 2


@pytest.mark.parametrize("as_user", [False, True])
def test_of_three_hospitals_the_user_is_one_as_any_other(as_user: bool) -> None:
    near, far = [sums_of(50, 10, 60), sums_of(52, 10, 60)], sums_of(1000, 10, 60)
    scaling = pool([far, *near], ONE_NUMBER, far if as_user else None)
    assert scaling == pool(near, ONE_NUMBER)


def two_constant_and_one(unit: float) -> list[FeatureSums]:
    return [sums_of(0, 0, 100), sums_of(0, 0, 120), sums_of(250 * unit, 280 * unit, 110)]


@pytest.mark.parametrize("user", [None, 0, 2])
@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_a_unit_changes_no_scaled_value(user: int | None, factor: float) -> None:
    """A constant's stand-in of a deviation was taken for a usual one: in mg, 250 was far off."""
    usual, other = (
        pool(sums, ONE_NUMBER, None if user is None else sums[user])
        for sums in (two_constant_and_one(1), two_constant_and_one(factor))
    )
    assert other.mean[0] == pytest.approx(factor * usual.mean[0])
    assert other.deviation[0] == pytest.approx(factor * usual.deviation[0])
    assert usual.mean[0] == pytest.approx(250 * 110 / 330)


@pytest.mark.parametrize("factor", [1.0, 0.001])
def test_a_unit_changes_nothing_where_the_users_column_is_the_same_for_all(factor: float) -> None:
    user, _, peer = two_constant_and_one(factor)
    scaling = pool([user, peer], ONE_NUMBER, user)
    assert scaling.mean[0] == pytest.approx(factor * 250 * 100 / 200)  # the peer counts for as many


@pytest.mark.parametrize("lie", [*SMALL_LIES, *LARGE_LIES])
def test_where_few_hospitals_values_differ_the_users_are_the_measure(lie: FeatureSums) -> None:
    honest = two_constant_and_one(1)
    truth, lied_to = (
        pool(sums, ONE_NUMBER, honest[2]) for sums in (honest, [*honest, lie, sums_of(0, 0, 100)])
    )
    assert abs(lied_to.mean[0] - truth.mean[0]) < truth.deviation[0]
    assert 0.5 < lied_to.deviation[0] / truth.deviation[0] < 2


@pytest.mark.parametrize("lie", SMALL_LIES)
@pytest.mark.parametrize("user", [None, 0])
def test_a_lie_of_hardly_any_deviation_makes_no_hospitals_numbers_large(
    lie: FeatureSums, user: int | None
) -> None:
    honest = two_constant_and_one(1)
    users = None if user is None else honest[user]
    truth, lied_to = (pool(sums, ONE_NUMBER, users) for sums in (honest, [*honest, lie]))
    assert lied_to.deviation[0] > truth.deviation[0] / 2


def doses(num_dosed: int, usual: str = "none") -> str:
    """300 patients as CSV: the older the likelier ill, and a dose of thousands for a few.

    The others' is `usual`: "none", "some" (a thousandth for one in ten) or "alike" (about 4).
    """
    draws = np.random.default_rng(1)
    age = draws.normal(60, 12, 300)
    others = {
        "none": np.zeros(300),
        "some": np.where(np.arange(300) % 10 == 0, 0.001, 0.0),
        "alike": 4 + 0.4 * np.sin(np.arange(300)),
    }
    dose = others[usual]
    dose[draws.choice(300, num_dosed, replace=False)] = draws.uniform(2000, 8000, num_dosed)
    ill = np.where(draws.random(300) < 1 / (1 + np.exp((60 - age) / 6)), "yes", "no")
    lines = [f"{a:.3f},{d:.3f},{i}" for a, d, i in zip(age, dose, ill, strict=True)]
    return "\n".join(["age,dose,ill", *lines]) + "\n"


@pytest.mark.parametrize(("num_dosed", "is_cut"), [(9, True), (0, False), (100, False)])
def test_a_rare_column_does_not_outweigh(tmp_path: Path, num_dosed: int, is_cut: bool) -> None:
    site = make_site(tmp_path, doses(num_dosed), limits={"min_cell": 10})
    dataset = LocalDataset(site, make_study(scaling="local", task=small_study.TWO_NUMBERS))
    without_dose = torch.tensor([1.0, 0.0])
    losses = [local_loss(dataset, fed) for fed in (torch.ones(2), without_dose)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert any(note.startswith("dose: values cut") for note in dataset.notes) == is_cut


@pytest.mark.parametrize(("num_dosed", "usual"), [(1, "alike"), (3, "alike"), (9, "some")])
def test_a_few_slips_do_not_outweigh(tmp_path: Path, num_dosed: int, usual: str) -> None:
    site = make_site(tmp_path, doses(num_dosed, usual), limits={"min_cell": 10})
    dataset = LocalDataset(site, make_study(scaling="local", task=small_study.TWO_NUMBERS))
    training, test = dataset.parts(None)
    assert max(part.inputs.abs().max() for part in (training, test)) == 100
    (note,) = [found for found in dataset.notes if found.startswith("dose: values cut")]
    assert says(note, "100 deviations", num_dosed, "300")
    losses = [local_loss(dataset, fed) for fed in (torch.ones(2), torch.tensor([1.0, 0.0]))]
    assert losses[0] == pytest.approx(losses[1], abs=0.1)


def local_loss(dataset: LocalDataset, fed: Tensor) -> float:
    """Of the test part, after 20 rounds of training alone; columns are multiplied by `fed` (2,)."""
    task = dataset.study.task
    training, test = dataset.parts(None, "local")
    samples = Samples(training.inputs * fed, training.targets, task.training_loss(training.targets))
    settings = Training(steps=20, batch_size=16, learning_rate=0.1)
    position = torch.zeros(dataset.dim)
    for number in range(1, 21):
        draws = round_generator(0, "a", number)
        result = train_locally(dataset.model, position, samples, settings, draws, None, number)
        position = position + result.delta
    predicted = predictions_of(task, dataset.model, position, test.inputs * fed)
    return task.held_out_loss(predicted, test.targets)


def test_what_few_patients_have_of_a_column_of_0_and_1_is_no_slip() -> None:
    task = make_study(
        task={**make_study().task.model_dump(mode="json"), "features": ["rare", "age"]}
    ).task
    assert isinstance(task, TabularTask)
    rows = np.array([[float(i % 25 == 0), 40.0 + i % 21] for i in range(200)])
    scaling = Scaling(mean=(0.04, 50.0), deviation=(0.196, 6.0))
    assert not list(notes_of_unlike(task, rows, scaling))
    rows[0, 0] = 7
    (note,) = notes_of_unlike(task, rows, scaling)
    assert says(note, "1", "200")
