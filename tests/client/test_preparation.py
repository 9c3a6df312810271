"""A site file's declarations about a table, right and wrong."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from pydantic import TypeAdapter

from erosion_client.dataset.column_values import ArrowTexts
from erosion_client.dataset.load import load_patients, table_source
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.sources import AnySource
from erosion_client.dataset.sources.data_source import DataSource, TableSource
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.site_file import load_site
from erosion_common.errors import DataError
from erosion_common.program.command_line import main
from erosion_common.study.study import load_study
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
        values={
            "smoker": {"ja": "yes", "nein": "no"},
            "diabetes": {"nein": "no", "weiss nicht": "", "ja": "no"},
        },
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
    derive = {"kind": "years_between", "start": "born", "end": date(2020, 6, 1)}
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


@pytest.mark.parametrize(
    ("form", "day"), [("%d%m%Y", "1121950"), ("%Y%m%d", "195011"), ("%y%m%d", "50111")]
)
def test_a_date_that_lacks_a_digit_is_not_guessed(tmp_path: Path, form: str, day: str) -> None:
    """The 1st of December 1950, as a number, was read as the 11th of February."""
    derive = {
        "kind": "years_between",
        "start": "born",
        "end": date(2020, 1, 1),
        "date_format": form,
    }
    whole = date(1950, 12, 1).strftime(form)
    text = f"born,sex,ill\n{whole},f,0\n{whole},m,0\n{whole},f,1\n"
    assert load(tmp_path, text, TASK, derive={"age": derive}).rows[:, 0].round(1).max() == 69.1
    message = problem_of(tmp_path, text.replace(whole, day, 1), TASK, derive={"age": derive})
    assert says(message, f"'{day}'", "line 2")


def test_nobody_is_born_after_an_admission_where_years_have_two_digits(tmp_path: Path) -> None:
    derive = {"kind": "years_between", "start": "born", "end": "in", "date_format": "%d.%m.%y"}
    text = "born,in,sex,ill\n01.06.45,01.06.20,f,0\n01.06.80,01.06.20,f,1\n29.02.00,28.02.00,m,1\n"
    found = load(tmp_path, text, TASK, derive={"age": derive})
    assert found.rows[:, 0].round(1).tolist() == [75.0, 40.0, 100.0]
    four_digits = text.replace("01.06.45", "2025-03-01")
    assert says(problem_of(tmp_path, four_digits, TASK, derive={"age": derive}), "age", "line 2")


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
        ({"columns": {"smoker": "diabetes"}}, "are both read from the column 'diabetes'"),
    ],
)
def test_slips_in_names(tmp_path: Path, data: dict[str, Any], problem: str) -> None:
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
        "no value that is mapped for smoker (ja) is in the data",
    )


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
    ],
)
def test_contradictions_are_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    with raises(ValueError, message):
        make_site(tmp_path, HEADER, data=data)


VISITS = """\
pid,visit,lactate,sex,dead
7,base,2.0,f,
7,day 1,8.0,,
7,day 2,5.0,,1
3,base,,m,
3,day 1,1.0,,
3,day 2,,,0
"""


def source_of(kind: str, folder: Path, **data: Any) -> TableSource:
    """The visits in a file or a database of that kind."""
    (folder / "a.csv").write_text(VISITS)
    where: dict[str, Any] = {"path": folder / "a.csv"}
    if kind == "parquet":
        table = pyarrow.csv.read_csv(folder / "a.csv")
        pyarrow.parquet.write_table(table, folder / "a.parquet")
        where = {"path": folder / "a.parquet"}
    elif kind == "duckdb":
        query = f"SELECT * FROM '{folder / 'a.csv'}'"
        where = {"source": "duckdb", "path": folder / "a.csv", "query": query}
    elif kind == "sql":
        with closing(sqlite3.connect(folder / "a.db")) as database, database:
            database.execute("CREATE TABLE v (pid, visit, lactate REAL, sex, dead INT)")
            rows = [[c or None for c in line.split(",")] for line in VISITS.splitlines()[1:]]
            database.executemany("INSERT INTO v VALUES (?, ?, ?, ?, ?)", rows)
        database.close()
        where = {"url": f"sqlite:///{folder}/a.db", "query": "SELECT * FROM v"}
    every: TypeAdapter[DataSource] = TypeAdapter(AnySource)
    return table_source(every.validate_python({**where, "patient": "pid", **data}))


def values(source: TableSource, name: str) -> list[str]:
    column = source.read([name]).columns[name]
    return [column.texts[code] for code in column.codes]


@pytest.mark.parametrize(
    ("kind", "rows", "lactate"),
    [
        ("csv", {"take": "first"}, [2, 1]),
        *((kind, {"take": "mean"}, [5, 1]) for kind in ("csv", "parquet", "duckdb", "sql")),
        ("sql", {"take": "last"}, [5, 1]),
        ("parquet", {"columns": {"lactate": "max"}}, [8, 1]),
        ("duckdb", {"columns": {"lactate": "min"}}, [2, 1]),
        ("csv", {"event_column": "visit", "events": {"lactate": "day 1"}}, [8, 1]),
        ("sql", {"event_column": "visit", "event": "base", "events": {"dead": "day 2"}}, [2, None]),
    ],
)
def test_a_patients_rows_become_one_whatever_the_source(
    tmp_path: Path, kind: str, rows: dict[str, Any], lactate: list[float | None]
) -> None:
    rows = {**rows, "columns": {"sex": "first", "dead": "last", **rows.get("columns", {})}}
    source = source_of(kind, tmp_path, rows=rows)
    assert [float(text) if text else None for text in values(source, "lactate")] == lactate
    assert values(source, "pid") == ["7", "3"]
    assert [float(text) for text in values(source, "dead")] == [1, 0]


def test_joining_goes_through_the_texts_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, each = Counter[str](), ArrowTexts.__iter__

    def counted(texts: ArrowTexts) -> Iterator[str]:
        times["through"] += 1
        return each(texts)

    monkeypatch.setattr(ArrowTexts, "__iter__", counted)
    columns = {"pid": [number // 2 for number in range(400)], "x": [0.5 + n for n in range(400)]}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    keys = {"path": tmp_path / "a.parquet", "patient": "pid", "rows": {"take": "max"}}
    table = TableFile.model_validate(keys)
    assert table.read(["x"]).columns["x"].written == ()
    assert times["through"] < 20


def test_what_means_not_known_is_passed_over(tmp_path: Path) -> None:
    first = {"rows": {"take": "first"}}
    assert values(source_of("csv", tmp_path, missing=["2.00"], **first), "lactate")[0] == "8.0"
    mapped = {"values": {"acid": {"2": ""}}, "columns": {"acid": "lactate"}}
    assert values(source_of("csv", tmp_path, **mapped, **first), "lactate")[0] == "8.0"
    (tmp_path / "b.csv").write_text("pid,sex\n7,?\n7,f\n")
    for meant, taken in (({}, "f"), ({"?": "other"}, "?")):
        keys = {"path": tmp_path / "b.csv", "patient": "pid", "values": {"sex": meant}, **first}
        assert values(TableFile.model_validate(keys), "sex") == [taken]


@pytest.mark.parametrize(
    ("less", "more", "thousands"), [("1,5", "2,5", None), ("1.250", "1.300,5", ".")]
)
def test_dates_say_nothing_of_how_numbers_are_written(
    tmp_path: Path, less: str, more: str, thousands: str | None
) -> None:
    rows = f"1.1;01.02.1950;{less}\n1.1;01.02.1950;{more}\n"
    (tmp_path / "a.csv").write_text(f"pid;born;acid\n{rows}")
    keys = {"path": tmp_path / "a.csv", "patient": "pid", "rows": {"columns": {"acid": "max"}}}
    table = TableFile.model_validate({**keys, "thousands": thousands})
    columns = table.read(["pid", "born", "acid"]).columns
    assert [*columns["acid"].texts] == [more]


def test_what_rows_cannot_be_joined_by_is_named(tmp_path: Path) -> None:
    of_words = source_of("csv", tmp_path, rows={"columns": {"sex": "mean"}})
    with raises(DataError, "column sex", "'f'", "line 2"):
        of_words.read(["sex"])
    unknown = source_of("csv", tmp_path, rows={"event_column": "visit", "event": "day 9"})
    with raises(DataError, "'day", "9'", "'base'", "2'"):
        unknown.read(["sex"])
    with raises(ValueError, "column as", "patient"):
        source_of("csv", tmp_path, patient=None, rows={"take": "first"})


def long_table(num_patients: int, *, repeated: bool = False) -> str:
    """As REDCap exports events: the features of a patient on one row, the outcome on another.

    `repeated`: on both.
    """
    lines = ["record_id,redcap_event_name,age,sex,crea,dead"]
    for i in range(num_patients):
        dead = i // 2 % 2
        first = dead if repeated else ""
        lines += [f"{i + 1},base,{40 + i % 37},{'fm'[i % 2]},{0.7 + i % 13 / 10:.1f},{first}"]
        lines += [f"{i + 1},month_1,,,,{dead}"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("rows", [None, {"take": "first"}])
def test_a_category_that_is_called_as_if_missing_is_joined_as_a_value(
    tmp_path: Path, rows: dict[str, str] | None
) -> None:
    task = {
        **TASK,
        "features": ["age", {"name": "node", "categories": ["NA", "positive"]}],
        "missing": "impute",
    }
    text = "id,age,node,ill\n1,40,NA,0\n2,50,,1\n2,50,x,1\n"
    data = {"patient": "id", "values": {"node": {"x": "NA"}}}
    found = load(tmp_path, text, task, **data, rows=rows)
    assert found.rows[[0, -1], 1].tolist() == [0, 0]


def test_training_without_features_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(long_table(30))
    data = {"patient": "record_id", "columns": {"ill": "dead"}}
    study = make_study(task={**make_study().task.model_dump(mode="json"), "missing": "impute"})
    with raises(DataError, "30", "30 rows", "nearly", "feature") as told:
        load_patients(make_site(tmp_path, name="b", data=data), study)
    assert "[data.rows]" in str(told.value)
    joined = {**data, "rows": {"take": "first"}}
    found = load_patients(make_site(tmp_path, name="b", data=joined), study)
    assert found.rows.shape == (30, 2)
    assert found.rows[:, 0].tolist() == [40 + i for i in range(30)]
    assert found.num_patients == 30


@pytest.mark.parametrize("repeated", [False, True])
def test_drafts_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], repeated: bool) -> None:
    table = tmp_path / "a.csv"
    table.write_text(long_table(80, repeated=repeated))
    assert main(["study", "new", str(table), "--target", "dead", "--hospitals", "a,b"]) == 0
    assert "[data.rows]" in capsys.readouterr().out
    study, site = tmp_path / "study.toml", tmp_path / "sites/a.toml"
    assert main(["site", "new", "--study", str(study), "--data", str(table)]) == 0
    try:
        said = "\n".join(load_patients(load_site(site), load_study(study)).notes)
    except DataError as refused:
        said = str(refused)
    assert "80 of the" in said
    assert says(said, "nearly", "feature")
    site.write_text(site.read_text().replace("# ? ", ""))
    found = load_patients(load_site(site), load_study(study))
    assert found.num_patients == len(found.rows) == 80
