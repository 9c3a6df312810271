"""A site file's declarations about a table, right and wrong."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_common.errors import DataError
from tests.support.said import raises, says
from tests.support.small_study import TASK, make_site, make_study

LAB: dict[str, Any] = {
    "target": "ill",
    "classes": [{"name": "healthy", "values": [0]}, {"name": "ill", "values": [1]}],
    "features": [
        {"name": "age", "unit": "years", "range": [18, 110]},
        {"name": "cholesterol", "unit": "mg/dl", "range": [50, 1000]},
        {"name": "smoker", "categories": ["no", "yes"]},
        {"name": "diabetes", "categories": ["no", "yes"]},
    ],
    "kind": "tabular",
}
HEADER = "age,cholesterol,smoker,diabetes,ill\n"


def load(folder: Path, text: str, task: dict[str, Any] | None = None, **data: Any) -> Any:
    site = make_site(folder, text, name="b", data=data)
    return load_patients(site, make_study(task=task or LAB))


def problem_of(folder: Path, text: str, task: dict[str, Any] | None = None, **data: Any) -> str:
    with pytest.raises(DataError) as problem:
        load(folder, text, task, **data)
    return str(problem.value)


def test_numbers_are_brought_to_the_studys_unit(tmp_path: Path) -> None:
    text = "age,cholesterol,smoker,diabetes,ill\n140.0,5.2,no,no,0\n50,4.1,yes,no,1\n"
    found = load(tmp_path, text, units={"cholesterol": 38.67, "age": {"factor": 0.5, "offset": 10}})
    np.testing.assert_allclose(found.rows[:, :2], [[80, 201.084], [35, 158.547]])
    message = problem_of(tmp_path, text.replace("5.2", "52"), units={"cholesterol": 38.67})
    assert says(message, "50", "1000", "line 2")
    with raises(ValueError, "factor", "0 would"):
        load(tmp_path, text, units={"cholesterol": 0})


@pytest.mark.parametrize("mark", [".", ","])
def test_values_beyond_a_limit_are_read_as_the_site_file_says(tmp_path: Path, mark: str) -> None:
    text = "age;sex;ill\n<0.5;f;0\n≥ 89.5;m;1\n<=4;m;1\n60.5;f;0\n".replace(".", mark)
    task = {**TASK, "features": [{"name": "age"}, *TASK["features"][1:]]}
    half = load(tmp_path, text, task, limits={"age": "half"})
    assert half.rows[:, 0].tolist() == [0.25, 89.5, 2, 60.5]
    whole = load(tmp_path, text, task, limits={"age": "limit"}, units={"age": 2.0})
    assert whole.rows[:, 0].tolist() == [1, 179, 8, 121]
    assert "[data.limits]" in problem_of(tmp_path, text, task)


def test_one_map_serves_several_columns_and_a_columns_own_goes_first(tmp_path: Path) -> None:
    text = HEADER + "50,200,ja,ja,0\n51,200,nein,weiss nicht,1\n"
    found = load(
        tmp_path,
        text,
        {**LAB, "missing": "impute"},
        recode=[{"columns": ["smoker", "diabetes"], "values": {"ja": "yes", "nein": "no"}}],
        values={"diabetes": {"weiss nicht": "", "ja": "no"}},
    )
    np.testing.assert_array_equal(found.rows[:, 2:], [[1, 0], [0, np.nan]])


def test_ages_are_made_of_dates(tmp_path: Path) -> None:
    text = "born,seen,cholesterol,smoker,diabetes,ill\n01.02.1950,2020-02-01,200,no,no,0\n"
    text += "15.08.1960,,200,no,no,1\n"
    derive = {"kind": "years_between", "start": "born", "date_format": "%d.%m.%Y"}
    task = {**LAB, "missing": "impute"}
    found = load(tmp_path, text, task, derive={"age": {**derive, "end": "seen"}})
    np.testing.assert_allclose(found.rows[:, 0], [70.0, np.nan], atol=0.01)
    found = load(tmp_path, text, task, derive={"age": {**derive, "end": date(2020, 8, 15)}})
    np.testing.assert_allclose(found.rows[:, 0], [70.5, 60.0], atol=0.05)
    late = text.replace("15.08.1960,", "August,2020-01-01")
    message = problem_of(tmp_path, late, task, derive={"age": {**derive, "end": "seen"}})
    assert says(message, "column age", "%d.%m.%Y", "[data.derive.age]")
    message = problem_of(tmp_path, text, task, derive={"age": {**derive, "end": "left"}})
    assert says(message, "column age", "'left'", "[data.derive")


def test_dates_that_stand_for_not_known_are_mapped(tmp_path: Path) -> None:
    derive = {"kind": "years_between", "start": "born", "end": "2020-06-01"}  # a date, quoted
    text = "born,sex,ill\n1950-06-01,f,0\nunknown,f,1\n1900-01-01,m,1\n"
    task = {**TASK, "missing": "impute"}
    values = {"age": {"unknown": "", "1900-01-01": ""}}
    found = load(tmp_path, text, task, derive={"age": derive}, values=values)
    np.testing.assert_allclose(found.rows[:, 0], [70, np.nan, np.nan], atol=0.01)
    assert found.notes == ("missing values to be imputed: age 2",)
    message = problem_of(tmp_path, text, task, derive={"age": derive})
    assert says(message, "'unknown'", "line 3", "date_format")
    assert says(message, '""', "[data.values.age]")


@pytest.mark.parametrize("never", ["9999-12-31", "9999-12-31T00:00:00", "0001-01-01", "2999-12-31"])
def test_a_date_that_no_patient_can_have_is_no_date(tmp_path: Path, never: str) -> None:
    derive = {"kind": "days_between", "start": "entry", "end": "left"}
    text = f"entry,left,sex,ill\n2020-01-01,2020-01-11,f,0\n2020-01-01,{never},f,1\n"
    task = {**TASK, "features": ["age", TASK["features"][1]], "missing": "impute"}  # no range
    message = problem_of(tmp_path, text, task, derive={"age": derive})
    assert says(message, "1850", "2899", "line 3")
    found = load(tmp_path, text, task, derive={"age": derive}, values={"age": {never: ""}})
    np.testing.assert_array_equal(found.rows[:, 0], [10, np.nan])


def test_nobody_is_born_after_an_admission_where_years_have_two_digits(tmp_path: Path) -> None:
    derive = {"kind": "years_between", "start": "born", "end": "in", "date_format": "%d.%m.%y"}
    text = "born,in,sex,ill\n01.06.45,01.06.20,f,0\n01.06.80,01.06.20,f,1\n29.02.00,28.02.00,m,1\n"
    found = load(tmp_path, text, TASK, derive={"age": derive})
    assert found.rows[:, 0].round(1).tolist() == [75.0, 40.0, 100.0]


def test_a_column_that_is_not_recorded_is_missing_for_everybody(tmp_path: Path) -> None:
    text = "age,cholesterol,diabetes,ill\n50,200,no,0\n60,210,yes,1\n"
    found = load(tmp_path, text, {**LAB, "missing": "impute"}, absent=["smoker"])
    assert np.isnan(found.rows[:, 2]).all()
    assert found.notes[0] == "missing values to be imputed: smoker 2 (as missing)"
    message = problem_of(tmp_path, text, absent=["smoker"])
    assert says(message, "column smoker", "refuses")
    message = problem_of(tmp_path, HEADER + "50,200,no,no,0\n", absent=["smoker"])
    assert says(message, "absent", "'smoker'", "remove")


@pytest.mark.parametrize("missing", ["refuse", "drop", "impute"])
@pytest.mark.parametrize("header", ["age,cholesterol,smoker,diabetes", "Age,cholesterol,diabetes"])
def test_an_outcome_cannot_be_absent(tmp_path: Path, header: str, missing: str) -> None:
    text = f"{header}\n" + ",".join(["50"] * len(header.split(","))) + "\n"
    message = problem_of(tmp_path, text, {**LAB, "missing": missing}, absent=["ill"])
    assert says(message, "'ill'", "otherwise")
    assert "column ill" not in message
    assert "every patient" not in message


def test_neither_can_the_column_that_says_who_is_a_test_patient(tmp_path: Path) -> None:
    study = make_study(evaluation={"split_column": "part", "bootstrap": 100})
    site = make_site(tmp_path, "age,sex,ill\n50,f,0\n", data={"absent": ["part"]})
    with raises(DataError, "'part'", "feature"):
        load_patients(site, study)


def test_an_absent_category_is_never_the_first_one(tmp_path: Path) -> None:
    features = [TASK["features"][0], {**TASK["features"][1], "missing": "indicator"}]
    study = make_study(task={**TASK, "features": features})
    rows = "".join(f"{40 + i},{i % 2}\n" for i in range(22))
    site = make_site(tmp_path, "age,ill\n" + rows, name="b", data={"absent": ["sex"]})
    inputs = LocalDataset(site, study).parts(None)[0].inputs
    assert inputs[:, 1:].tolist() == [[0.0, 1.0]] * 22  # neither f nor m: missing


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            {"values": {"il": {"1": "0", "0": "1"}}},
            "[data.values.il] names 'il', which is no column of the study; did you mean 'ill'?",
        ),
        ({"units": {"cholestrol": 38.67}}, "[data.units] names 'cholestrol', which is no column"),
        ({"absent": ["smokers"]}, "absent names 'smokers', which is no column of the study; did"),
        (
            {"recode": [{"columns": ["diabetis"], "values": {"ja": "yes"}}]},
            "[[data.recode]], number 1, names 'diabetis', which is no column of the study; did you",
        ),
    ],
)
def test_slips_in_declared_names(tmp_path: Path, data: dict[str, Any], problem: str) -> None:
    assert problem in problem_of(tmp_path, HEADER + "50,200,ja,no,0\n51,200,nein,no,1\n", **data)


def test_what_is_declared_in_vain_is_told_of(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        HEADER + "50,200,no,no,0\n51,200,yes,no,1\n52,200,yes,no,1\n",
        columns={"haemoglobin": "hb"},
        values={"smoker": {"ja": "yes"}},
    )
    assert found.notes == (
        "[data.columns] names 'haemoglobin', which this study does not use",
        found.notes[1],
    )
    assert says(found.notes[1], "smoker", "ja")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"columns": {"age": "a"}, "absent": ["age"]}, "age is absent and also under columns"),
        (
            {
                "columns": {"age": "a"},
                "derive": {"age": {"kind": "days_between", "start": "a", "end": "b"}},
            },
            "age is under columns and under derive",
        ),
        ({"derive": {"age": {"kind": "month_between", "start": "a", "end": "b"}}}, "years_between"),
        ({"recode": [{"columns": [], "values": {"a": "b"}}]}, "at least 1"),
        ({"columns": {"age": "x", "smoker": "x"}}, "'x'"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    with raises(ValueError, message):
        make_site(tmp_path, HEADER, data=data)
