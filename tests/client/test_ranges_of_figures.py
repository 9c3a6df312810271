"""Figures under the small-cell rule say between which two numbers the truth lies."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from erosion_client.disclosure.control import DisclosureControl
from erosion_client.disclosure.summary import column_summaries
from erosion_client.site_file import Site
from erosion_common.protocol.messages import ColumnSummary, Summary, count_range
from erosion_common.tasks.inputs import TabularTask
from erosion_server.description.description import Descriptions
from tests.support.small_study import make_study

CATEGORIES = ("f", "m")


def site_of(cell: int) -> Site:
    return Site.model_validate(
        {
            "name": "a",
            "data": {"path": "a.csv"},
            "coordinator": {"address": "127.0.0.1:9092"},
            "limits": {"min_cell": cell},
        }
    )


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Rows of patients, of whom some have several, with gaps."""
    draws = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_patients, most = draw(st.integers(1, 150)), draw(st.integers(1, 5))
    groups = np.repeat(np.arange(num_patients), draws.integers(1, most + 1, num_patients))
    num = len(groups)
    numbers = draws.normal(50, 9, num_patients)[groups] + draws.normal(0, 3, num)
    kinds = draws.choice(2, num, p=draws.dirichlet(np.ones(2))).astype(float)
    gaps = draws.random((2, num)) < draws.random((2, 1)) * 0.6
    return {
        "cell": draw(st.sampled_from([3, 10, 20])),
        "secret": draws.bytes(16),
        "groups": groups,
        "rows": np.column_stack([np.where(gaps[0], np.nan, numbers),
                                 np.where(gaps[1], np.nan, kinds)]),
        "targets": draws.integers(0, 2, num),
    }  # fmt: skip


def within(value: float, low: float, high: float) -> bool:
    return low - 1e-9 * abs(value) <= value <= high + 1e-9 * abs(value)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_each_range_holds_the_truth(table: dict[str, Any]) -> None:
    task = make_study().task
    assert isinstance(task, TabularTask)
    cell, groups, rows = table["cell"], table["groups"], table["rows"]
    cells = DisclosureControl(site_of(cell), table["secret"])
    age, sex, ill = column_summaries(cells, task, rows, table["targets"], groups)
    num_samples, _, num_patients = cells.numbers(rows, groups)
    patients = [rows[groups == patient] for patient in np.unique(groups)]
    assert within(len(patients), *count_range(num_patients, cell))
    assert within(len(rows), *count_range(num_samples, cell))

    means = np.array([np.nanmean(r[:, 0]) for r in patients if not np.isnan(r[:, 0]).all()])
    assert within(len(means), *age.count_range(cell))
    assert within(len(patients) - len(means), *count_range(age.missing, cell))
    if age.mean is not None:
        off = age.off_by(cell)
        assert within(fenced(means, cell).mean(), age.mean - off, age.mean + off)
        assert within(fenced(means, cell).std(), *age.deviation_range(cell))

    assert_categories(sex, commonest(patients), cell)
    of_class = task.groups(task.targets_of_patients(table["targets"], groups))
    assert_categories(ill, of_class, cell)
    total = sum(of_class.values())
    assert total == len(patients)
    for column in (sex, ill):
        assert sum(column.shares.values()) == column.count
        low, high = column.count_range(cell)
        missing = count_range(column.missing, cell)
        assert low + missing.low <= len(patients) <= high + missing.high


def commonest(patients: list[np.ndarray[Any, Any]]) -> dict[str, int]:
    """By hand: each patient's commonest category, the first of equally common ones."""
    counted = dict.fromkeys(CATEGORIES, 0)
    for rows in patients:
        own = [int(code) for code in rows[:, 1] if not np.isnan(code)]
        if own:
            best = min(range(2), key=lambda code: (-own.count(code), code))
            counted[CATEGORIES[best]] += 1
    return counted


def assert_categories(column: ColumnSummary, true: dict[str, int], cell: int) -> None:
    assert within(sum(true.values()), *column.count_range(cell))
    for name, count in true.items():
        assert within(count, *count_range(column.shares[name], cell))
        if total := sum(true.values()):
            assert within(count / total, *column.share_range(name, cell))


def fenced(values: np.ndarray[Any, Any], cell: int) -> np.ndarray[Any, Any]:
    ordered = np.sort(values)
    reach = min(cell, max(1, len(ordered) // 4))
    low, high = ordered[reach - 1], ordered[-reach]
    clipped: np.ndarray[Any, Any] = np.clip(
        ordered, low - 1.5 * (high - low), high + 1.5 * (high - low)
    )
    return clipped


def test_a_patient_with_many_rows_is_one_in_every_count(tmp_path: Path) -> None:
    """22 patients of 44 rows, as a site of a cell of three tells of them."""
    study, groups = make_study(), np.repeat(np.arange(22), 2)
    assert isinstance(study.task, TabularTask)
    rows = np.column_stack([40.0 + groups, (groups % 2).astype(float)])
    cells = DisclosureControl(site_of(3), b"secret")
    columns = tuple(column_summaries(cells, study.task, rows, groups % 2, groups))
    num_samples, _, num_patients = cells.numbers(rows, groups)
    told = Summary(min_cell=3, num_samples=num_samples, num_patients=num_patients, columns=columns)
    found = Descriptions(study, {"a": told}, {}).figures["hospitals"]["a"]  # type: ignore[dict-item]
    assert found["patients"]["low"] <= 22 <= found["patients"]["high"] <= 26
    for column in ("sex", "ill"):
        categories = found["columns"][column]["categories"]
        assert all(c["patients"]["low"] <= 11 <= c["patients"]["high"] < 16
                   for c in categories.values())  # fmt: skip
        assert all(c["share"]["low"] <= 0.5 <= c["share"]["high"] for c in categories.values())
        parts = sum(c["patients"]["disclosed"] for c in categories.values())
        assert parts == found["columns"][column]["patients"]["disclosed"]
