"""Values far from all others, codes for "not known", and two units in one column."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.single_column import standing_apart, to_be_asked_about
from erosion_client.scaffold.vocabulary import mixed_units
from erosion_client.site_file import load_site
from erosion_common.errors import DataError
from erosion_common.study.study import load_study
from erosion_common.tasks.features import NumberFeature
from tests.support.drafts import column, drafted, features_of, profiles_of, site_of
from tests.support.said import raises, says

DRAW = np.random.default_rng(0)
MEASURED: Mapping[str, NDArray[np.float64]] = {
    "pressure": DRAW.normal(131, 15, 150).round(),
    "haemoglobin": DRAW.normal(14, 1.5, 150).round(1),
    "hours": DRAW.integers(4, 12, 150).astype(float),
    "cups": DRAW.integers(0, 13, 150).astype(float),
    "crp": DRAW.lognormal(1, 1, 150).round(1),
    "income": DRAW.lognormal(8.9, 0.5, 150).round(-2),
}


def counted(values: Sequence[float] | NDArray[Any]) -> tuple[dict[str, float], dict[str, int]]:
    numbers, rows = np.unique(values, return_counts=True)
    texts = [f"{number:.10g}" for number in numbers]
    return (
        dict(zip(texts, numbers.tolist(), strict=True)),
        dict(zip(texts, rows.tolist(), strict=True)),
    )


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("pressure", [7777, 9999]),
        ("pressure", [8888] * 40 + [9999] * 30),
        ("pressure", [-9] * 30),
        ("pressure", [555, 1000000]),
        ("haemoglobin", [888.8]),
        ("haemoglobin", [138, 140]),  # in g/l
        ("hours", [-3, -1, -1]),
        ("cups", [-10, -3, -1]),
        ("cups", [77] * 10 + [99] * 20),
        ("crp", [-1]),
        ("crp", [999.9]),
        ("crp", [12345.6, 12345.6]),
        ("income", [77777, 99999]),
        ("pressure", [12, 12]),  # a digit lost
        ("pressure", [777] * 3 + [888] * 3 + [999] * 3),
    ],
)
def test_every_isolated_value_is_found(name: str, odd: Sequence[float]) -> None:
    values, rows = counted([*MEASURED[name], *odd])
    assert {values[text] for text in standing_apart(values, rows)} == {*odd}


def test_many_rows_of_one_value_are_no_chance() -> None:
    """Of -9 in nine z-scores of 300, a third of all draws had none."""
    found = 0
    for seed in range(40):
        scores = np.random.default_rng(seed).normal(size=300).round(2)
        assert standing_apart(*counted(scores)) == ()
        scores[:9] = -9
        found += standing_apart(*counted(scores)) == ("-9",)
    assert found >= 36


@pytest.mark.parametrize("rows", [60, 150, 1000])
def test_few_ordinary_columns_are_asked_about(rows: int) -> None:
    draw = np.random.default_rng(rows)
    asked: dict[str, int] = {
        "normal": 0,
        "lognormal": 0,
        "counts": 0,
        "mostly 0": 0,
        "signed": 0,
        "saturation": 0,
    }
    for _ in range(50):
        columns: dict[str, NDArray[Any]] = {
            "normal": draw.normal(120, 15, rows).round(),
            "lognormal": draw.lognormal(1, 1.5, rows).round(2),
            "counts": draw.negative_binomial(1, 0.2, rows),
            "mostly 0": np.where(draw.random(rows) < 0.6, 0, draw.lognormal(3, 1, rows).round()),
            "signed": draw.normal(0, 4, rows).round(),
            "saturation": 100 - draw.exponential(3, rows).round(),
        }
        for name, values in columns.items():
            asked[name] += bool(to_be_asked_about(*counted(values)))
    assert max(asked.values()) <= 5, asked
    assert sum(asked.values()) <= 10, asked


def test_drafts_leave_out_isolated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [*MEASURED["pressure"][:90], 7777, 9999, 9999, -3, 888.8]
    study = drafted(tmp_path, column("pressure", cells), "ill")
    feature = features_of(study)[0]
    assert isinstance(feature, NumberFeature)
    assert feature.range is not None
    assert 0 <= feature.range[0] < feature.range[1] < 300
    told = capsys.readouterr().out
    site = site_of(tmp_path)
    for odd in ("7777", "9999", "-3", "888.8"):
        assert repr(odd) in told or repr(f"{odd}.0") in told
    with raises(DataError, "outside"):
        load_patients(load_site(site), study)
    site.write_text(site.read_text().replace("# ? ", ""))
    rows = load_patients(load_site(site), study).rows
    assert np.isnan(rows[:, 0]).sum() == 5
    assert float(np.nanmax(rows[:, 0])) < 200


def test_targets_are_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [*MEASURED["haemoglobin"], 999.9]
    rows = "".join(f"{30 + i % 50},{cell}\n" for i, cell in enumerate(cells))
    study = drafted(tmp_path, "age,hb\n" + rows, "hb")
    assert says(capsys.readouterr().out, "known", "'999.9'")
    assert getattr(study.task, "centre") == pytest.approx(14, abs=1)  # noqa: B009


MIXED = {
    "chol": (DRAW.normal(200, 35, 100).round(), DRAW.normal(5.2, 0.9, 50).round(1)),
    "Kreatinin": (DRAW.lognormal(0, 0.3, 80).round(2), (88 * DRAW.lognormal(0, 0.3, 60)).round()),
    "temperature": (DRAW.normal(36.9, 0.6, 100).round(1), DRAW.normal(98.4, 1, 30).round(1)),
    "hb (g/dl)": (DRAW.normal(14, 1.5, 100).round(1), DRAW.normal(140, 15, 9).round()),
    "height": (DRAW.normal(170, 9, 100).round(), DRAW.normal(1.7, 0.09, 12).round(2)),
}


@pytest.mark.parametrize("name", MIXED)
def test_two_units_are_asked(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, others = MIXED[name]
    study = drafted(tmp_path, column(name, [*main, *others]), "ill")
    told = capsys.readouterr().out
    assert says(told, name, f"{round(100 * len(others) / (len(main) + len(others)))}")
    assert "another unit" in told
    feature = features_of(study)[0]
    assert isinstance(feature, NumberFeature)
    assert feature.range is not None
    low, high = feature.range
    assert all(low <= value <= high for value in main)
    assert not any(low <= value <= high for value in others)
    assert "unit" in site_of(tmp_path).read_text()
    # A study with a wider range, such as another hospital's, keeps nobody from training.
    text = (tmp_path / "study.toml").read_text()
    drawn = text[text.index("range = [") :].partition("]")[0] + "]"
    (tmp_path / "study.toml").write_text(text.replace(drawn, "range = [0, 2000]"))
    wide = load_study(tmp_path / "study.toml")
    notes = load_patients(load_site(tmp_path / "sites/hospital-1.toml"), wide).notes
    assert any(says(note, "others", "another") for note in notes)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("chol", MIXED["chol"][0]),
        ("glucose", DRAW.lognormal(4.7, 0.4, 200).round()),
        ("age", np.concatenate([DRAW.uniform(0.1, 1, 12), DRAW.integers(18, 90, 200)])),
        ("marker", np.concatenate([DRAW.normal(5, 1, 60), DRAW.normal(300, 10, 60)])),
        ("pressure", np.concatenate([DRAW.normal(110, 2, 60), DRAW.normal(147, 2, 60)])),
        ("dose", np.repeat([5.0, 10, 500, 1000], 40)),
        ("weight", np.concatenate([DRAW.normal(20, 5, 60), DRAW.normal(75, 12, 60)])),
        ("troponin", DRAW.lognormal(2, 1.5, 300)),
    ],
)
def test_two_kinds_share_a_unit(tmp_path: Path, name: str, values: NDArray[np.float64]) -> None:
    assert profiles_of(tmp_path, column(name, values.round(2)))[0].mixed is None


@pytest.mark.parametrize(("name", "factor"), [("BZ", 18.016), ("血糖値", 18.016), ("lab7", 88.42)])
def test_units_need_no_known_name(tmp_path: Path, name: str, factor: float) -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(6, 0.8, 200)
    values[:60] *= factor
    (found, _) = profiles_of(tmp_path, column(name, values.round(2)))
    assert found.mixed is not None
    assert found.mixed.change.factor == pytest.approx(factor, rel=0.01)
    assert found.numbers.max() > 60  # asked about, and yet measured: the name does not say


@pytest.mark.parametrize("odd", [[-1.5], [-0.4, -2.5]])
def test_numbers_below_zero_are_asked_about(odd: Sequence[float]) -> None:
    values, rows = counted([*MEASURED["pressure"], *odd])
    assert {values[text] for text in to_be_asked_about(values, rows)} == {*odd}


def test_a_code_among_measured_values_is_asked_about_where_it_is_too_common() -> None:
    age = np.random.default_rng(3).normal(62, 10, 240).round()
    for times, asked in ((1, ()), (9, ("99",))):
        assert to_be_asked_about(*counted([*age, *[99] * times])) == asked


@pytest.mark.parametrize("load", [load_breast_cancer, load_diabetes])
def test_real_columns_are_in_one_unit(load: Any) -> None:
    table = load(as_frame=True, **({"scaled": False} if load is load_diabetes else {})).frame
    draw = np.random.default_rng(5)
    for _ in range(5):
        rows = table.iloc[draw.permutation(len(table))[:110]]  # as many as a hospital has
        for name, values in rows.items():
            ones = np.ones(len(values), np.int64)
            assert mixed_units(str(name), values.to_numpy(np.float64), ones) is None, name
