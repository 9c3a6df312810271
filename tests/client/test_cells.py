"""The small-cell rule: what a site tells is never about a few, whatever is subtracted from what."""

import sqlite3
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion_client.disclosure.control import (
    COLUMN,
    ColumnFigures,
    DisclosureControl,
    column_figures,
    rounded,
    rounded_count,
    rounded_deviation,
    sums_of,
)
from erosion_client.disclosure.summary import column_summaries
from erosion_client.records.private_database import PrivateDatabase, Values
from erosion_client.records.records import Records
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal, SiteError
from erosion_common.protocol.messages import ColumnSummary, Summary, count_range, relative_step
from erosion_common.study.study import Study
from erosion_common.tasks.inputs import TabularTask
from erosion_server.output.description import Descriptions
from tests.support.said import raises
from tests.support.small_study import TEN_NUMBERS, make_site, make_study, twenty_patients
from tests.support.small_study import site_with_cell as site

CELL = 10
SECRET = b"a site's own"


def normal(num: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(100, 15, num)


def one_each(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.arange(len(values))


def told(cells: DisclosureControl, values: NDArray[np.float64]) -> ColumnFigures:
    return cells.column("x", values, one_each(values))


def test_rounding_by_hand() -> None:
    assert rounded_count(9, 10, 0.99) == 0
    assert rounded_count(10, 10, 0.99) == 10
    assert [rounded_count(57, 10, at) for at in (0.0, 0.29, 0.31)] == [50, 50, 60]
    assert [relative_step(n, 10) for n in (10, 20, 40, 50, 1000)] == [1, 0.5, 0.25, 0.25, 0.015625]
    assert [rounded(7.3, 0.5, at) for at in (0.0, 0.39, 0.41)] == [7.0, 7.0, 7.5]
    assert rounded(7.3, 0.0, 0.5) == 7.3
    assert [rounded_deviation(10.0, 20, 10, at) for at in (0.0, 0.99)] == [8.0, 2**3.5]
    assert rounded_deviation(0.0, 20, 10, 0.5) == 0


@settings(max_examples=15)
@given(st.integers(10, 500))
def test_a_rounded_count_is_right_on_average(count: int) -> None:
    many = [rounded_count(count, CELL, (i + 0.5) / 1000) for i in range(1000)]
    assert np.mean(many) == pytest.approx(count, abs=0.02)
    assert all(value % CELL == 0 and abs(value - count) < CELL for value in many)


def test_figures_are_near_the_truth_and_on_their_grid() -> None:
    values = normal(400)
    found = column_figures(values, CELL, SECRET, "x")
    step = found.deviation * relative_step(found.count, CELL)
    assert found.count == 400
    assert abs(found.mean - values.mean()) <= step
    assert found.deviation == pytest.approx(values.std(), rel=0.05)
    for value in (found.mean, *found.quantiles):
        assert value is not None
        assert value / step == pytest.approx(round(value / step))
    assert found.quantiles[2] == pytest.approx(np.median(values), abs=2 * step)


def test_nothing_is_told_of_fewer_than_a_cell() -> None:
    assert column_figures(normal(9), CELL, SECRET, "x") == ColumnFigures(count=0)
    assert sums_of(ColumnFigures(count=0)) == (0, 0.0, 0.0)
    left_out = [q is None for q in column_figures(normal(50), CELL, SECRET, "x").quantiles]
    assert left_out == [True, False, False, False, True]  # too few patients lie beyond
    values = np.zeros(100)
    values[:9] = 1e6  # in which only a few differ
    found = column_figures(values, CELL, SECRET, "x")
    assert (found.mean, found.deviation, {*found.quantiles}) == (0, 0, {0})


@settings(max_examples=15)
@given(st.floats(0, 1e12), st.integers(0, 99))
def test_nobodys_extreme_moves_a_figure(value: float, whose: int) -> None:
    """The largest value may be anything: beyond the fence all are the same."""
    values = normal(100)
    values[whose] = 1000.0
    at_the_fence = column_figures(values, CELL, SECRET, "x")
    values[whose] = 1000.0 + value
    assert column_figures(values, CELL, SECRET, "x") == at_the_fence


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_two_answers_are_the_same_or_of_sets_that_differ_in_a_cell(data: st.DataObject) -> None:
    """Patients come, go and are corrected between any two questions, in any order of questions.

    What is answered was computed of the patients of the question that it was first the answer to.
    """
    everybody = normal(60, seed=data.draw(st.integers(0, 5)))
    cells = DisclosureControl(site(), SECRET)
    computed: dict[str, set[tuple[int, float]]] = {}
    for _ in range(5):
        present = np.ones(len(everybody), dtype=bool)
        away = data.draw(st.lists(st.integers(0, 59), max_size=25, unique=True))
        present[away] = False
        changed = data.draw(st.lists(st.integers(0, 59), max_size=12, unique=True))
        values = everybody.copy()
        values[changed] += 1.0
        patients = {(i, v) for i, v in enumerate(values.tolist()) if present[i]}
        computed.setdefault(told(cells, values[present]).model_dump_json(), patients)
    for one, other in combinations(computed.values(), 2):
        assert len({i for i, _ in one ^ other}) >= CELL


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, np.nan]), min_size=1, max_size=60), st.data())
def test_one_patient_more_or_less_changes_nothing(column: list[float], data: st.DataObject) -> None:
    """Also where many patients have the same value, and of counts of missing values."""
    values = np.array(column)
    cells = DisclosureControl(site(), SECRET)
    rows = values[:, None]
    before = told(cells, values), cells.numbers(rows, one_each(values))[0]
    without = np.delete(values, data.draw(st.integers(0, len(values) - 1)))
    with_one = np.append(values, data.draw(st.sampled_from([0.0, 2.0, 1e9, np.nan])))
    for others in (without, with_one):
        assert told(cells, others) == before[0]
        assert cells.numbers(others[:, None], one_each(others))[0] == before[1]


def test_samples_and_patients_are_told_of_one_set() -> None:
    """So that a number told later is not of one patient more, by another draw."""
    rows = normal(600)[:, None]
    of_ten = np.repeat(np.arange(60), 10)
    fewer, fewer_of_ten = rows[:-3], of_ten[:-3]
    cells = DisclosureControl(site(), SECRET)
    assert cells.numbers(rows, of_ten) == cells.numbers(fewer, fewer_of_ten) == (600, 60, 60)
    assert DisclosureControl(site(), SECRET).numbers(rows, of_ten, np.arange(600))[1] == 600


def test_a_patient_with_many_rows_is_one_patient() -> None:
    values = normal(60)
    cells = DisclosureControl(site(), SECRET)
    before = told(cells, values)
    assert cells.column("y", np.append(values, 150.0), np.arange(61)) == before  # the same patients
    again = np.append(values, normal(40, seed=9))
    groups = np.append(one_each(values), np.full(40, 60))
    assert cells.column("x", again, groups) == before
    assert cells.column("x", again, one_each(again)) != before
    alone = np.append(np.full(30, np.nan), normal(40))  # its rows are no cell
    groups = np.append(np.arange(30), np.full(40, 30))
    assert DisclosureControl(site(), SECRET).column("x", alone, groups) == ColumnFigures(count=0)
    rows, means = np.repeat(np.arange(60.0), 3) + np.tile([-9.0, 0.0, 9.0], 60), np.arange(60.0)
    found = DisclosureControl(site(), SECRET).column("x", rows, np.repeat(np.arange(60), 3))
    assert found.count == 60
    assert found.deviation < 1.5 * means.std()


def test_what_was_told_is_remembered_by_the_next_program(tmp_path: Path) -> None:
    values = normal(60)
    before = told(DisclosureControl(site(tmp_path), SECRET), values)
    assert told(DisclosureControl(site(tmp_path), SECRET), np.append(values, 130.0)) == before
    book = tmp_path / "a" / "records.sqlite"
    assert book.stat().st_mode & 0o777 == 0o600
    assert b"100." not in book.read_bytes().replace(str(before.mean).encode(), b"")


def test_a_book_and_a_secret_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    """By another secret nobody is known again, and every figure would be told once more."""
    values = normal(60)
    told(DisclosureControl(site(tmp_path), SECRET), values)
    with raises(SiteError, "secret.key"):
        DisclosureControl(site(tmp_path), b"drawn anew, because the file was lost")
    assert DisclosureControl(site(tmp_path)).disclosed()  # as `erosion review` looks at it
    assert Hospital(site(tmp_path), secret=SECRET).disclosed()


@pytest.mark.parametrize("cell", [10, 50, 100])
@pytest.mark.parametrize("more", [0, 5])
def test_columns_of_few_patients_keep_figures_of_their_own(cell: int, more: int) -> None:
    """Whole numbers, too, of which another column has a few by chance."""
    cells = DisclosureControl(site(cell=cell), SECRET)
    num = cell + more
    for seed, (name, mean) in enumerate({"age": 64, "sodium": 140, "troponin": 5000}.items()):
        values = np.random.default_rng(seed).normal(mean, 10, num).round()
        values[0] = 100
        found = cells.column(name, values, np.arange(num))
        assert found.count >= cell
        assert abs(found.mean - values.mean()) <= 4 * values.std()


@pytest.mark.parametrize("cell", [10, 50, 100])
def test_test_parts_that_share_nobody_are_both_measured(cell: int) -> None:
    cells = DisclosureControl(site(cell=cell), SECRET)
    targets, each = np.arange(cell) % 2, np.arange(cell)
    whole = np.arange(5 * cell, dtype=np.uint64) * np.uint64(7919)
    for part in range(5):
        rows = normal(cell, seed=part)[:, None]
        cells.check_test_part("a", rows, targets, each, whole[part * cell + each])


PATIENTS = "age,sex,ill\n" + "".join(
    f"{30 + i % 50}.{i % 7},{'fmmmmf'[i % 6]},{i % 3 % 2}\n" for i in range(115)
)


def of_sex(*categories: str, name: str = "sex", classes: object = ("0", "1")) -> Study:
    features = ["age", {"name": name, "categories": categories}]
    task = {"kind": "tabular", "target": "ill", "classes": classes, "features": features}
    return make_study(task=task)


def described(folder: Path, study: Study, **data: object) -> tuple[int, dict[str, int], list[int]]:
    """The number of patients, and the counts of the categories and of the classes."""
    where = make_site(
        folder,
        PATIENTS,
        limits={"min_cell": CELL},
        name="b",
        data=data,
        compute={"state": str(folder / "state")},
    )
    found = Hospital(where, SECRET).summarise(study)
    _, sex, ill = (column.shares or {} for column in found.columns)
    return found.num_samples, {k: v for k, v in sex.items() if k in "fm"}, list(ill.values())


def test_counts_are_the_same_in_whatever_order_a_study_writes_the_categories(
    tmp_path: Path,
) -> None:
    """Also with one that nobody has, or where classes are called otherwise."""
    before = described(tmp_path, of_sex("f", "m"))
    for categories in (("m", "f"), ("x", "f", "m"), ("f", "y", "m")):
        assert described(tmp_path, of_sex(*categories)) == before
    called = [{"name": "well", "values": [0]}, {"name": "0", "values": ["1"]}]
    assert described(tmp_path, of_sex("f", "m", classes=called)) == before
    data = {"columns": {"gender": "sex"}}
    assert described(tmp_path, of_sex("m", "f", name="gender"), **data) == before
    turned = described(tmp_path, of_sex("f", "m", classes=["1", "0"]))
    assert turned == (before[0], before[1], before[2][::-1])


def test_the_number_of_patients_is_the_same_whatever_columns_a_study_asks_for() -> None:
    cells, each = DisclosureControl(site(), SECRET), np.arange(115)
    whole = np.arange(115, dtype=np.uint64) * np.uint64(7919)
    told = {
        cells.numbers(normal(115, seed)[:num, None], each[:num], None, whole[:num])[0]
        for seed in range(8)
        for num in (115, 114)
    }
    assert len(told) == 1
    stamped = whole + np.uint64(1)  # by another export no row is known as a whole
    assert cells.numbers(normal(115)[:, None], each, None, stamped)[0] in told
    assert cells.numbers(normal(115, 9)[:, None], each, None, stamped)[0] in told


def test_counts_of_the_data_are_neither_averaged_nor_subtracted() -> None:
    counts, rows, cells = {"rows": 57, "left out": 9}, normal(57)[:, None], site()
    first = DisclosureControl(cells, SECRET)
    told = first.data_counts(counts, rows, np.arange(57), None)
    assert told["rows"] in (50, 60)
    assert told["left out"] == 0
    more = {"rows": 64, "left out": 15}
    assert first.data_counts(more, np.append(rows, [[1.0]], 0), np.arange(58), None) == told
    for seed in range(1, 20):  # as studies of other columns, or that drop others, see the data
        others = normal(57, seed)[:, None]
        assert first.data_counts(counts, others, np.arange(57), None) == told
    assert first.data_counts(more, normal(64, 30)[:, None], np.arange(64), None) != told


@pytest.mark.parametrize("other_name", ["x", "lab_7"])
def test_sets_of_patients_are_a_budget(other_name: str) -> None:
    """The hospital calls the study's x lab_7."""
    limited = site(budget={"sets": 2})
    data = limited.data.model_copy(update={"columns": {"x": "lab_7"}})
    cells = DisclosureControl(limited.model_copy(update={"data": data}), SECRET)
    told(cells, normal(60))
    cells.column(other_name, normal(60, seed=1), one_each(normal(60)))
    words = "of x have left for 2 different sets of patients; budget.sets = 2. Ask the hosp"
    with raises(Refusal, words):
        told(cells, normal(60, seed=2))
    told(cells, normal(60))  # was told before


def test_a_test_part_of_few_patients_is_not_measured(tmp_path: Path) -> None:
    hospital = Hospital(make_site(tmp_path, twenty_patients(), limits={"min_cell": 10}))
    with raises(Refusal, "fewer", "10 patients"):
        hospital.describe(make_study())
    assert hospital.describe(make_study(evaluation={"test_share": 0.5})).num_samples == 10


def test_a_test_part_that_differs_in_one_patient_is_not_measured() -> None:
    cells = DisclosureControl(site(), SECRET)
    rows, targets = normal(40)[:, None], np.arange(40) % 2
    cells.check_test_part("a", rows, targets, np.arange(40))
    cells.check_test_part("a", rows, targets, np.arange(40))  # the same again
    with raises(Refusal, "test patients"):
        cells.check_test_part("a", rows[1:], targets[1:], np.arange(39))
    corrected = np.where(np.arange(40) == 3, 1 - targets, targets)
    with raises(Refusal, "another seed"):
        cells.check_test_part("a", rows, corrected, np.arange(40))
    cells.check_test_part("a", normal(40, seed=4)[:, None], targets, np.arange(40))


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((57, 34), (57, 34)),
        ((57, 3), (None, None)),
        ((57, 30, 3), (57, None, None)),
        ((57, 6, 5), (57, None, None)),
        ((57, 0), (57, None)),
        ((9, 8, 8), (None, None, None)),
    ],
)
def test_rare_classes_are_not_counted(counts: tuple[int, ...], told: tuple[int, ...]) -> None:
    groups = DisclosureControl(site()).groups(dict(zip("abc", counts, strict=False)))
    assert tuple(groups.values()) == told


def test_rare_classes_cannot_be_worked_out() -> None:
    cells = DisclosureControl(site())
    counts = [cells.at_least(count, 5, total=60) for count in (12, 10, 9, 5, 4, 0, 60)]
    assert counts == [12, 10, 5, 5, 0, 0, 60]
    assert [cells.at_least(total - 8, 5, total) for total in (49, 18, 16, 12)] == [5, 5, 5, 0]
    assert cells.at_least(16, 5, total=25) == 5  # outside the commonest, of whom there are nine


@pytest.mark.parametrize("change", ["figures = substr(figures, 1, 9)", "sketch = x'00'"])
def test_a_book_with_damaged_figures_tells_nothing(tmp_path: Path, change: str) -> None:
    values, ill = normal(40), {"ill": 20, "healthy": 20}

    def ask_all() -> list[object]:
        cells, each = DisclosureControl(site(tmp_path), SECRET), one_each(values)
        return [
            cells.numbers(values[:, None], each)[0],
            told(cells, values),
            cells.counts("sex", ill, values, each),
        ]

    before = ask_all()
    assert ask_all() == before
    path = tmp_path / "a" / "records.sqlite"
    for kind in ("patients", "column", "counts: ill, healthy of sex"):
        with closing(sqlite3.connect(path)) as file, file:
            rows = file.execute("select * from disclosures").fetchall()
            changed = change.replace("1, 9", "1, 0") if kind == "patients" else change
            statement = f"update disclosures set {changed} where kind = ?"
            assert file.execute(statement, (kind,)).rowcount
        with raises(SiteError, "records.sqlite", "not as"):
            ask_all()
        with closing(sqlite3.connect(path)) as file, file:
            file.executemany("replace into disclosures values (?,?,?,?,?)", rows)
    assert ask_all() == before


CATEGORIES = ("f", "m")


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


@settings(max_examples=30, deadline=None)
@given(tables())
def test_each_range_holds_the_truth(table: dict[str, Any]) -> None:
    task = make_study().task
    assert isinstance(task, TabularTask)
    cell, groups, rows = table["cell"], table["groups"], table["rows"]
    cells = DisclosureControl(site(cell=cell), table["secret"])
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


def test_columns_are_noted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit for each flushes the disk a hundred times before a site's first answer."""
    task = make_study(task=TEN_NUMBERS).task
    assert isinstance(task, TabularTask)
    rows, groups = np.random.default_rng(0).normal(size=(40, 10)), np.arange(40)
    records, said = Records(tmp_path, "a"), list[str]()
    cells, execute = DisclosureControl(site(cell=3), b"secret", records), PrivateDatabase.execute

    def watched(file: PrivateDatabase, statement: str, values: Values = ()) -> list[Any]:
        said.append(statement)
        return execute(file, statement, values)

    monkeypatch.setattr(PrivateDatabase, "execute", watched)
    cells.sums(task, rows, groups, is_disclosed=True)
    assert said.count("commit") == 1
    assert len(list(column_summaries(cells, task, rows, groups % 2, groups))) == 11
    assert said.count("commit") == 3  # the outcome has its own
    assert set(records.disclosures.num_disclosed(COLUMN).values()) == {1}


def test_a_patient_with_many_rows_is_one_in_every_count(tmp_path: Path) -> None:
    """22 patients with 44 rows, as a site with `min_cell = 3` discloses them."""
    study, groups = make_study(), np.repeat(np.arange(22), 2)
    assert isinstance(study.task, TabularTask)
    rows = np.column_stack([40.0 + groups, (groups % 2).astype(float)])
    cells = DisclosureControl(site(cell=3), b"secret")
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
