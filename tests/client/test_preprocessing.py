"""Encoding, pooled scaling, and the treatment of missing values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from erosion.client.dataset.preprocessing import feature_sums, imputes_missing, table_inputs
from erosion.common.protocol.messages import FeatureSums, Scaling
from erosion.common.protocol.scaling import number_columns, pool, problem_with_sums
from tests.support.tasks import tabular

NAN = float("nan")
TASK = tabular(
    target="ill",
    classes=[0, 1],
    features=["age", {"name": "stage", "categories": ["I", "II", "III"]}, "weight"],
)
ROWS = np.array([[1, 0, 5], [3, 1, NAN], [NAN, 2, 7], [2, NAN, 6]])  # stage by its index


def test_a_category_becomes_an_indicator_for_every_category_but_the_first() -> None:
    assert TASK.input_shape == (4,)
    assert number_columns(TASK) == (True, False, False, True)
    stages = table_inputs(TASK, ROWS, None)[:, 1:3]
    assert stages.tolist() == [[0, 0], [1, 0], [0, 1], [0, 0]]


def test_sums_leave_out_missing_values_and_say_nothing_of_categories() -> None:
    sums = feature_sums(TASK, ROWS)
    assert sums.count == (3, 0, 0, 3)
    assert sums.total == (6, 0, 0, 18)
    assert sums.squares == (14, 0, 0, 110)
    assert problem_with_sums(sums, TASK) is None


def test_missing_numbers_become_zero_after_scaling() -> None:
    scaling = Scaling(mean=(2, 0, 0, 6), deviation=(0.5, 1, 1, 2))
    expected = [[-2, 0, 0, -0.5], [2, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 0]]
    assert table_inputs(TASK, ROWS, scaling).tolist() == expected


def test_missing_numbers_become_the_given_mean_without_scaling() -> None:
    expected = [[1, 0, 0, 5], [3, 1, 0, 6.5], [2.5, 0, 1, 7], [2, 0, 0, 6]]
    assert table_inputs(TASK, ROWS, None, (2.5, 0, 0, 6.5)).tolist() == expected


def test_a_constant_or_empty_column_keeps_its_unit() -> None:
    rows = np.array([[0.1, 0, NAN]] * 7)
    scaling = pool([feature_sums(TASK, rows)], TASK)
    assert scaling.deviation == (1, 1, 1, 1)
    assert scaling.mean == pytest.approx((0.1, 0, 0, 0))


tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.just(2)),
    elements=st.just(NAN) | st.floats(-1e3, 1e3, width=16, allow_subnormal=False),
)
TWO_NUMBERS = tabular(target="ill", classes=[0, 1], features=["age", "weight"])


@settings(max_examples=30)
@given(st.lists(tables, min_size=1, max_size=4))
def test_pooled_scaling_is_the_scaling_of_all_rows_together(
    hospitals: list[NDArray[np.float64]],
) -> None:
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
        ({"count": (-3, 0, 0, 3)}, "column 0 has -3 values"),
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


def test_a_task_imputes_where_one_feature_does() -> None:
    assert not imputes_missing(TASK)
    features = (*TASK.features[:2], TASK.features[2].model_copy(update={"missing": "impute"}))
    assert imputes_missing(TASK.model_copy(update={"features": features}))
