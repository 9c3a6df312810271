"""Tables, and the problems found in them."""

import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from erosion_client.dataset.load import load_patients
from erosion_client.site_file import Site
from erosion_common.errors import DataError
from tests.support.said import says
from tests.support.small_study import TASK, make_site, make_study


def policy(missing: str) -> dict[str, Any]:
    return {**TASK, "missing": missing}


def problem_of(site: Any, study: Any) -> str:
    with pytest.raises(DataError) as problem:
        load_patients(site, study)
    return str(problem.value)


def test_numbers_categories_and_classes_are_read(tmp_path: Path) -> None:
    site = make_site(tmp_path, "ill,sex,note,age\n0,f,x,30\n2,m,y,61.5\n1.0, m ,z,40\n")
    found = load_patients(site, make_study())
    np.testing.assert_array_equal(found.rows, [[30, 0], [61.5, 1], [40, 1]])
    assert found.targets.tolist() == [0, 1, 1]
    assert found.notes == ()


def test_local_names_values_and_marks_are_translated(tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        "\ufeffAlter;Geschlecht;krank\n30,5;W;nein\n0;M;ja\n",
        data={
            "separator": ";",
            "decimal": ",",
            "columns": {"age": "Alter", "sex": "Geschlecht", "ill": "krank"},
            "values": {"sex": {"W": "f", "M": "m"}, "ill": {"ja": 1, "nein": 0}, "age": {"0": ""}},
        },
    )
    found = load_patients(site, make_study(task=policy("impute"), user="b"))
    np.testing.assert_array_equal(found.rows, [[30.5, 0], [np.nan, 1]])
    assert found.targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("middle", "num_patients", "is_disclosed"),
    [(6.5, 40, True), (118, 40, False), (100, 40, False), (250, 40, True), (6.5, 19, False)],
)
def test_values_of_a_unit(
    tmp_path: Path, middle: float, num_patients: int, is_disclosed: bool
) -> None:
    """In range, and so read without a word, though 6.5 is in mmol/l and not in mg/dl."""
    feature = {"name": "glucose", "range": [0, 600], "typical": [99, 130]}
    rows = "".join(f"{middle * (1 + i / 1000)},{i % 2}\n" for i in range(num_patients))
    task = {**TASK, "features": [feature]}
    found = load_patients(make_site(tmp_path, f"glucose,ill\n{rows}"), make_study(task=task))
    told = [note for note in found.notes if "in the study 99 to 130" in note]
    assert len(told) == is_disclosed
    if told:
        assert says(told[0], "[data.units]", "FACTOR")


def test_a_file_without_a_header_can_be_given_one(tmp_path: Path) -> None:
    site = make_site(tmp_path, "30,f,0\n60,m,1\n61,m,1\n", data={"header": ["age", "sex", "ill"]})
    assert load_patients(site, make_study()).targets.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("kind", "values"), [("duration[ms]", [86_400_000]), ("list<element: int64>", [[40]])]
)
def test_parquet_types_are_not_guessed(tmp_path: Path, kind: str, values: list[Any]) -> None:
    of_kind = {"duration[ms]": pa.duration("ms"), "list<element: int64>": pa.list_(pa.int64())}
    table = pa.table({"age": pa.array(values, of_kind[kind]), "sex": ["f"], "ill": [0]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    message = problem_of(make_site(tmp_path, file="a.parquet"), make_study())
    assert says(message, "column 'age'", kind)


def test_parquet_reads_like_csv(tmp_path: Path) -> None:
    columns = {
        "age": pa.array([30.0, 61.5, None, float("nan")]),
        "sex": pa.array(["f", "m", "m", None]).dictionary_encode(),
        "ill": pa.array([False, True, True, False]),
        "unused": pa.array([[1], [2], [3], [4]]),
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = load_patients(make_site(tmp_path, file="a.parquet"), make_study(task=policy("impute")))
    np.testing.assert_array_equal(found.rows, [[30, 0], [61.5, 1], [np.nan, 1], [np.nan, np.nan]])
    assert found.targets.tolist() == [0, 1, 1, 0]
    assert found.notes == ("missing values to be imputed: age 2, sex 1 (as missing)",)


@pytest.mark.parametrize("marker", ["", "NA", " na "])
def test_missing_values_follow_the_policy(tmp_path: Path, marker: str) -> None:
    site = make_site(
        tmp_path, f"age,sex,ill\n30,f,0\n{marker},m,1\n50,m,1\n60,{marker},0\n70,m,1\n"
    )
    dropped = load_patients(site, make_study(task=policy("drop")))
    np.testing.assert_array_equal(dropped.rows, [[30, 0], [50, 1], [70, 1]])
    assert dropped.notes == ("2 of 5 rows dropped, because a value is missing",)
    imputed = load_patients(site, make_study(task=policy("impute")))
    np.testing.assert_array_equal(
        imputed.rows, [[30, 0], [np.nan, 1], [50, 1], [60, np.nan], [70, 1]]
    )
    refused = problem_of(site, make_study())
    assert says(refused, "column age", f"{marker.strip()!r}", "line 3")
    assert says(refused, "column sex", "missing")


def test_a_feature_can_have_its_own_policy(tmp_path: Path) -> None:
    task = {**policy("drop"), "features": [{"name": "age", "missing": "impute"}]}
    found = load_patients(
        make_site(tmp_path, "age,ill\n?,0\n20,\n30,1\n31,1\n"), make_study(task=task)
    )
    np.testing.assert_array_equal(found.rows, [[np.nan], [30], [31]])


def test_a_category_may_be_called_like_a_missing_marker(tmp_path: Path) -> None:
    task = {**TASK, "features": [{"name": "stage", "categories": ["NA", "1", "2"]}]}
    found = load_patients(
        make_site(tmp_path, "stage,ill\nNA,0\n2,1\n1.0,1\n"), make_study(task=task)
    )
    np.testing.assert_array_equal(found.rows, [[0], [2], [1]])


def test_all_problems_are_reported_with_places_and_remedies(tmp_path: Path) -> None:
    site = make_site(tmp_path, "age,sex,ill\nold,f,0\n200,m,1\n1_0,x,3\n1e99,f,0\n")
    told = problem_of(site, make_study())
    assert says(told, f"{tmp_path}/a.csv", "age", "'old'", "line 2", "'1_0'", "line 4")
    assert says(told, "age", "0 to 120 years", "'200'", "line 3", "[data.units]")
    assert says(told, "age", "1e+30", "'1e99'", "line 5", "[data.values.age]")
    assert says(told, "sex", "f, m", "'x'", "line 4", "[data.values.sex]")
    assert says(told, "ill", "(0, 1, 2)", "'3'", "line 4", "[data.values.ill]")


def test_no_value_leaves_the_site(tmp_path: Path) -> None:
    with pytest.raises(DataError) as problem:
        load_patients(make_site(tmp_path, "age,sex,ill\n123456,f,0\n"), make_study())
    assert "123456" in str(problem.value)
    assert "123456" not in problem.value.public


def test_a_missing_column_is_asked_about_by_its_name(tmp_path: Path) -> None:
    site = make_site(tmp_path, "Age,gender,ill\n1,f,0\n", data={"columns": {"sex": "Sex"}})
    message = problem_of(site, make_study())
    assert says(message, "column age", "'Age'", '["age"]')
    assert says(message, "column sex", "'Sex'")
    assert "gender" not in message


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_another_separator_is_found_out_and_said(tmp_path: Path, mark: str) -> None:
    text = "age,sex,ill\n30,f,0\n31,m,1\n32,m,1\n".replace(",", mark)
    found = load_patients(make_site(tmp_path, text), make_study())
    assert found.rows[:, 0].tolist() == [30, 31, 32]
    shown = mark.replace("\t", "\\t")
    assert found.notes == (f'columns are separated by "{shown}" (detected; separator sets it)',)


def test_a_usual_separator_stands_whatever_the_cells_hold(tmp_path: Path) -> None:
    text = "age,sex,ill,a;b\n30,f,0,x;y\n31,m,1,z;\n32,m,1,;\n"
    assert load_patients(make_site(tmp_path, text), make_study()).notes == ()


def test_a_decimal_comma_is_found_out_and_said(tmp_path: Path) -> None:
    site = make_site(tmp_path, "age;sex;ill\n30,5;f;0\n31;m;1\n32,25;m;1\n")
    found = load_patients(site, make_study())
    assert found.rows[:, 0].tolist() == [30.5, 31, 32.25]
    assert found.notes[1:] == ("numbers are written 1,5 (detected; decimal sets it)",)


def write_typed(folder: Path, kind: str) -> dict[str, Any]:
    """A table with a column of numbers beside numbers as text; [data] of its site file."""
    creatinine = ["0.980", "1.250", "1.125", "0.715"]
    crp = ["3,7", "1.250,5", "12", "4,4"]
    ill = [0, 1, 0, 1]
    if kind == "decimal":
        exact = pa.array([Decimal(text) for text in creatinine], pa.decimal128(8, 3))
        table = pa.table({"creatinine": exact, "crp": crp, "ill": ill})
        pyarrow.parquet.write_table(table, folder / "typed.parquet")
        return {"path": folder / "typed.parquet"}
    measured = [float(text) for text in creatinine]
    entered = list(zip(measured, crp, ill, strict=True))
    with sqlite3.connect(folder / "typed.sqlite") as base:
        base.execute("CREATE TABLE p (creatinine REAL, crp TEXT, ill INTEGER)")
        base.executemany("INSERT INTO p VALUES (?, ?, ?)", entered)
    base.close()
    url = f"sqlite:///{folder / 'typed.sqlite'}"
    return {"source": "sql", "url": url, "query": "SELECT * FROM p"}


@pytest.mark.parametrize("kind", ["decimal", "sqlite"])
def test_marks_say_how_text_is_written_and_not_what_a_number_is(tmp_path: Path, kind: str) -> None:
    """The 1.250 of a column of numbers was read as 1250 where a point groups thousands."""
    task = {**TASK, "features": [{"name": "creatinine"}, {"name": "crp"}]}
    study = make_study(task={**task, "classes": ["0", "1"]})
    source = write_typed(tmp_path, kind)
    coordinator = {"address": "127.0.0.1:1"}

    def site(**marks: str) -> Site:
        given = {"name": "b", "data": {**source, **marks}, "coordinator": coordinator}
        return Site.model_validate(given)

    for marks in ({"decimal": ",", "thousands": "."}, {"thousands": "."}):
        found = load_patients(site(**marks), study)
        assert found.rows[:, 0].tolist() == [0.98, 1.25, 1.125, 0.715]
        assert found.rows[:, 1].tolist() == [3.7, 1250.5, 12, 4.4]
    message = problem_of(site(decimal=","), study)
    assert says(message, "column crp", "'1.250,5'")
    assert "creatinine" not in message


def test_a_decimal_comma_is_assumed_only_where_nothing_else_is_possible(tmp_path: Path) -> None:
    mixed = make_site(tmp_path, "age;sex;ill\n30,5;f;0\n31.5;m;1\n")
    assert says(problem_of(mixed, make_study()), '","', "[data]")
    grouped = make_site(tmp_path, "age;sex;ill\n1,234;f;0\n31;m;1\n")
    assert says(problem_of(grouped, make_study()), "column age", "'1,234'", "line 2")
    site = make_site(tmp_path, "age;sex;ill\n1.234;f;0\n", data={"separator": ";", "decimal": ","})
    assert says(problem_of(site, make_study()), "decimal", "'1.234'")


def test_a_number_of_thousands_of_digits_is_a_value_like_another(tmp_path: Path) -> None:
    digits = "1" * 5000
    for row in (f"40,{digits},1", f"40,m,{digits}"):
        site = make_site(tmp_path, f"age,sex,ill\n30,f,0\n{row}\n")
        assert says(problem_of(site, make_study()), f"{digits[:40]!r}", "line 3")
    site = make_site(tmp_path, f"age,sex,ill\n30,f,0\n{digits},m,1\n")
    assert "column age" in problem_of(site, make_study())


def test_one_column_cannot_be_the_target_and_a_feature(tmp_path: Path) -> None:
    site = make_site(tmp_path, "age,sex,ill\n1,f,0\n", data={"columns": {"age": "ill"}})
    assert says(problem_of(site, make_study()), "age and ill", "'ill'")


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        (None, "absent.csv", "There is no data file"),
        ("", "a.csv", "is empty"),
        ("\n\n", "a.csv", "blank lines only"),
        ("age,sex,ill\n1,f,0,9\n", "a.csv", "the header has 3 columns, but line 2 has 4."),
        ("age,age,ill\n1,f,0\n", "a.csv", "has the column 'age' more than once"),
        ("age,sex,ill\n1,f,0\n", "a.docx", "a table in .docx cannot be read; export it as one of"),
        ("age,sex,ill\n1,f,0\n", "a.parquet", "cannot be read"),
    ],
)
def test_no_table_is_explained(tmp_path: Path, text: str | None, file: str, message: str) -> None:
    assert message in problem_of(make_site(tmp_path, text, file=file), make_study())


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    message = problem_of(make_site(tmp_path, file="folder"), make_study())
    assert says(message, "folder", "images")
    as_table = make_site(tmp_path, file="folder", data={"source": "table"})
    assert says(problem_of(as_table, make_study()), "folder", "study")


def test_every_patient_dropped_is_an_error(tmp_path: Path) -> None:
    site = make_site(tmp_path, "age,sex,ill\n?,f,0\n1,?,1\n")
    assert says(problem_of(site, make_study(task=policy("drop"))), "every", "patient")
    site = make_site(tmp_path, "age,sex,ill\n1,f,\n1,m,\n")
    message = problem_of(site, make_study(task=policy("drop")))
    assert says(message, "missing", "patient")


def test_one_class_is_an_error_for_the_user_and_a_note_for_a_peer(tmp_path: Path) -> None:
    text = "age,sex,ill\n1,f,1\n2,m,2\n"
    message = problem_of(make_site(tmp_path, text), make_study())
    assert says(message, "patients", "'ill'")
    peer = load_patients(make_site(tmp_path, text, name="b"), make_study())
    assert peer.notes == ("all patients are of the class 'ill'",)


def test_rows_are_not_called_patients(tmp_path: Path) -> None:
    text = "age,sex,ill,pid\n" + "1,f,1,a\n2,f,1,a\n3,m,1,b\n?,m,1,b\n5,m,1,c\n?,f,1,c\n"
    site = make_site(tmp_path, text, name="b", data={"patient": "pid"})
    found = load_patients(site, make_study(task=policy("drop")))
    assert found.num_patients == 3
    assert found.notes[0] == "2 of 6 rows dropped, because a value is missing"
    assert found.notes[-1] == "all patients are of the class 'ill'"


def test_the_user_needs_two_patients_of_some_class(tmp_path: Path) -> None:
    text = "age,sex,ill\n1,f,0\n2,m,1\n"
    assert says(problem_of(make_site(tmp_path, text), make_study()), "class", "patients")
    assert len(load_patients(make_site(tmp_path, text, name="b"), make_study()).targets) == 2


def notes_of_header(folder: Path, header: str, feature: dict[str, Any], **data: Any) -> list[str]:
    task = {**make_study().task.model_dump(mode="json"), "features": [feature]}
    rows = "".join(f"{7 + i % 5 / 10},{i % 3}\n" for i in range(30))
    columns = {} if header == feature["name"] else {feature["name"]: header}
    site = make_site(folder, f"{header},ill\n{rows}", data={"columns": columns, **data})
    return [note for note in load_patients(site, make_study(task=task)).notes if "calls it" in note]


def test_a_header_in_another_unit_than_the_studys_is_asked_about(tmp_path: Path) -> None:
    feature = {"name": "haemoglobin", "unit": "g/dl", "range": [3, 25]}
    assert notes_of_header(tmp_path, "Hb (mmol/l)", feature) == [
        "column haemoglobin: the study has it in g/dl, and the file calls it 'Hb (mmol/l)'; if that"
        " is its unit, write haemoglobin = 1.611 under [data.units]"
    ]
    named = {"name": "creatinine (mg/dl)", "range": [0, 25]}
    told = notes_of_header(tmp_path, "Kreatinin [µmol/l]", named)
    assert says(told[0], '"creatinine', 'mg/dl)"', "[data.units]")
