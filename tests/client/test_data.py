"""Tables, and the problems found in them."""

import gzip
import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from erosion_client.dataset.load import Patients, load_patients
from erosion_client.dataset.sources import delimited
from erosion_client.dataset.sources.file_content import CHUNK
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.records.account import dataset_of
from erosion_client.scaffold.column_profile import read_whole
from erosion_client.site_file import Site, load_site
from erosion_common.errors import DataError
from erosion_common.program.command_line import main
from erosion_common.study.study import Study, load_study
from tests.support.said import raises, says
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


@pytest.mark.parametrize("mark", [".", ","])
def test_a_count_is_a_whole_number(tmp_path: Path, mark: str) -> None:
    count = {"kind": "tabular", "outcome": "count", "target": "falls", "centre": 1, "spread": 1}
    study = make_study(task={**count, "features": ["age"]})
    rows = "age;falls\n40;0\n50;3.0\n60;{}\n".replace(".", mark)
    data = {"separator": ";", "decimal": mark}
    assert load_patients(make_site(tmp_path, rows.format(2), data=data), study).targets[-1] == 2
    message = problem_of(make_site(tmp_path, rows.format(f"2{mark}5"), data=data), study)
    assert says(message, "column falls", "not a whole number", f"'2{mark}5' on line 4")


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


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ten_times_the_rows_take_hardly_more_python(tmp_path: Path, suffix: str) -> None:
    def calls(num_rows: int) -> int:
        ages, sexes = np.arange(num_rows) % 80 + 10.5, np.array(["f", "m"])[np.arange(num_rows) % 2]
        table = pa.table({"age": ages, "sex": sexes, "ill": np.arange(num_rows) // 2 % 2})
        path = tmp_path / f"{num_rows}{suffix}"
        if suffix == ".csv":
            pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(quoting_style="none"))
        else:
            pyarrow.parquet.write_table(table, path)
        site = make_site(tmp_path, data={"path": path})
        seen: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, argument: seen.update([event]))
        try:
            assert len(load_patients(site, make_study()).rows) == num_rows
        finally:
            sys.setprofile(None)
        return seen["call"] + seen["c_call"]

    calls(20)  # what is imported once
    assert calls(20_000) < 2 * calls(2000)


@pytest.mark.parametrize("marker", ["", "NA", " na "])
def test_missing_values_follow_the_policy(tmp_path: Path, marker: str) -> None:
    site = make_site(
        tmp_path, f"age,sex,ill\n30,f,0\n{marker},m,1\n50,m,1\n60,{marker},0\n70,m,1\n"
    )
    dropped = load_patients(site, make_study(task=policy("drop")))
    np.testing.assert_array_equal(dropped.rows, [[30, 0], [50, 1], [70, 1]])
    assert dropped.notes == ("2 of 5 rows dropped, because a value is missing: age 1, sex 1",)
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


def test_a_missing_column_is_asked_about_where_a_name_fits(tmp_path: Path) -> None:
    site = make_site(tmp_path, "Age,gender,ill\n1,f,0\n", data={"columns": {"sex": "Sex"}})
    message = problem_of(site, make_study())
    assert says(message, "column age", "'Age'", '["age"]')
    assert says(message, "column sex", "'Sex'")
    assert "gender" not in message


def test_values_alone_propose_nothing(tmp_path: Path) -> None:
    site = make_site(tmp_path, "pdstage,sex,ill\n40,f,0\n50,m,1\n")
    message = problem_of(site, make_study())
    assert says(message, "column age", "missing")
    assert "Is it" not in message


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
    with closing(sqlite3.connect(folder / "typed.sqlite")) as base, base:
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


def test_a_patients_key_written_in_two_ways_is_one_key(tmp_path: Path) -> None:
    keys = ["1.0", "1", "01", "e\u0301", "\xe9\u200b", "3.1", "3.10", "\ufeff3.10", "\xad3.1"]
    rows = "".join(f"{key},{age},f,0\n" for age, key in enumerate(keys, 40))
    found = load(tmp_path, f"id,age,sex,ill\n{rows}", patient="id")
    assert found.groups.tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 3]
    assert found.labels.tolist()[:4] == ["1.0", "1.0", "01", "e\u0301"]


@pytest.mark.parametrize(
    "keys",
    [
        *(["1.10101E+17", "2.5E+11"], ["9007199254740994.0", "4.0"], [1.1e17, 4.0]),
        np.array([16777216, 4], dtype=np.float32),  # the next whole number is the same there
    ],
)
def test_a_patients_key_that_was_rounded_is_refused(tmp_path: Path, keys: list[Any]) -> None:
    columns = {"id": keys, "age": [40, 50], "sex": ["f", "m"], "ill": [0, 1]}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    site = make_site(tmp_path, file="a.parquet", data={"patient": "id"})
    assert says(problem_of(site, make_study()), "patient key 'id' is rounded", "as text")


def test_a_key_of_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    keys = [number.to_bytes(4, "big") for number in (9, 10)]  # a tab and a line's end, as text
    columns = {"id": keys, "age": [40, 50], "sex": ["f", "m"], "ill": [b"0", b"1"]}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    site = make_site(tmp_path, file="a.parquet", data={"patient": "id"})
    assert says(problem_of(site, make_study()), "column 'id' is of type binary")


def test_one_column_cannot_be_the_target_and_a_feature(tmp_path: Path) -> None:
    site = make_site(tmp_path, "age,sex,ill\n1,f,0\n", data={"columns": {"age": "ill"}})
    assert says(problem_of(site, make_study()), "age and", "column 'ill'", "[data.columns]")


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


ROWS = "age,sex,ill\n40,f,0\n50,m,1\n60,f,2\n"


def site_of(folder: Path, content: str | bytes, **data: Any) -> Site:
    raw = content.encode() if isinstance(content, str) else content
    (folder / "a.csv").write_bytes(raw)
    return make_site(folder, name="b", data=data)


def load(folder: Path, content: str | bytes, **data: Any) -> Patients:
    return load_patients(site_of(folder, content, **data), make_study())


def problem(folder: Path, content: str | bytes, **data: Any) -> str:
    with pytest.raises(DataError) as raised:
        load(folder, content, **data)
    return str(raised.value)


def ages(found: Patients) -> list[float]:
    return [float(age) for age in found.rows[:, 0]]


OTHERS = "any of"

ENCODED = [
    ("cp1252", "Größe", OTHERS),
    ("iso8859-15", "cœur", OTHERS),
    ("cp1250", "płeć,wiek,mężczyzna", OTHERS),
    ("cp1251", "возраст", OTHERS),
    ("cp932", "患者番号,死亡", OTHERS),
    ("gb18030", "年龄,性别", OTHERS),
    ("utf-16", "Größe", "the text is in UTF-16 (detected; encoding sets it)"),
    ("utf-32", "Größe", "the text is in UTF-32 (detected; encoding sets it)"),
    ("utf-16-le", "Größe", "UTF-16 without its mark"),
    ("utf-16-be", "年龄", "UTF-16 without its mark"),
]


@pytest.mark.parametrize(("encoding", "words", "said"), ENCODED)
def test_an_encoding_is_never_guessed(tmp_path: Path, encoding: str, words: str, said: str) -> None:
    row = "1," * (words.count(",") + 1) + "40\n"
    text = f"{words},age\n{3 * row}"
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    first, *_ = words.split(",")
    source = TableFile(path=tmp_path / "a.csv")
    if said.startswith("the text is"):
        assert said in source.read(()).notes[0]
        assert source.read(()).header[0] == first
    else:
        with raises(DataError, said) as asked:
            source.read(())
        assert f'"{encoding}"' in str(asked.value)
    named = TableFile(path=tmp_path / "a.csv", encoding=encoding).read(())
    assert named.header[0] == first


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp932", "gb18030"])
@pytest.mark.parametrize("start", ["age,ill,", "age,ill,x\n1,0,", 'age,ill,x\n1,0,"'])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_cut_off_file(tmp_path: Path, encoding: str, start: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    cut = (start + "死亡").encode(encoding)[:-1]
    path.write_bytes(gzip.compress(cut) if suffix == ".csv.gz" else cut)
    given = None if encoding.startswith("utf") else encoding
    with raises(DataError, "middle", "character"):
        TableFile(path=path, encoding=given).read(["age", "ill", "x"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age;crea\nyears;mg/dl\n40;1\n50;2\n", "'years', 'mg/dl'"),
        ("Person;Lab\nage;crea\n40;1\n50;2\n", "'age', 'crea'"),
        ("sex;age\n;[years]\nf;40\nm;50\n", "'[years]'"),
    ],
)
def test_second_header_lines_are_no_patients(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with raises(DataError, "Keep", "names") as told:
        TableFile(path=tmp_path / "a.csv").read(["age"])
    assert words in str(told.value)
    assert "line 2" in str(told.value)


@pytest.mark.parametrize(
    "text", ["age;ill\n40;0;\n50;1;\n", "age;ill;;\n40;0\n50;1\n", "age;ill;;\n40;0;;\n50;1;;\n"]
)
def test_separators_at_the_end_of_lines_are_no_columns(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    table = TableFile(path=tmp_path / "a.csv").read(["age", "ill"])
    assert table.num_rows == 2
    assert [*table.columns["ill"].texts] == ["0", "1"]


def test_drafts_take_the_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{30 + i % 40};{'fm'[i % 2]};{i // 2 % 2}\n" for i in range(60))
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").write_bytes(f"年龄;sex;死亡\n{rows}".encode("gb18030"))
    study = ["study", "new", str(tmp_path), "--target", "死亡"]
    assert main(study) == 4
    assert "--encoding" in capsys.readouterr().err
    written = ["--encoding", "gb18030", "--separator", ";"]
    assert main([*study, *written]) == 0
    assert "--encoding gb18030" in capsys.readouterr().out
    (tmp_path / "b.csv").write_bytes(b"")
    site = ["site", "new", "--study", str(tmp_path / "study.toml"), "--data", str(tmp_path)]
    assert main([*site, *written]) == 4
    told = capsys.readouterr().err
    assert says(told, "b.csv", "empty")
    assert "a.csv" not in told
    for name in ("a", "c"):
        drafted = load_site(tmp_path / f"sites/{name}.toml")
        assert drafted.data.model_dump()["encoding"] == "gb18030"
        assert len(load_patients(drafted, load_study(tmp_path / "study.toml")).rows) == 60
    assert not (tmp_path / "sites/b.toml").exists()
    with pytest.raises(SystemExit):
        main([*study, "--encoding", "klingon"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_is_read_whatever_the_bytes_of_its_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"M\udcfcller{suffix}"  # as Python reads the bytes of an old Windows share
    if suffix == ".csv":
        path.write_text(ROWS)
    else:
        with path.open("wb") as file:
            pyarrow.parquet.write_table(pyarrow.csv.read_csv(BytesIO(ROWS.encode())), file)
    site = make_site(tmp_path, name="b", data={"path": path})
    assert ages(load_patients(site, make_study())) == [40, 50, 60]
    assert len(dataset_of(site)) == 16


def test_an_encoding_can_be_named(tmp_path: Path) -> None:
    text = "wiek,płeć,ill\n40,kobieta,0\n50,mężczyzna,1\n"
    data: dict[str, Any] = {
        "columns": {"age": "wiek", "sex": "płeć"},
        "values": {"sex": {"kobieta": "f", "mężczyzna": "m"}},
    }
    found = load(tmp_path, text.encode("cp1250"), encoding="cp1250", **data)
    assert found.rows.tolist() == [[40, 0], [50, 1]]
    message = problem(tmp_path, text.encode("cp1250"), encoding="utf-8", **data)
    assert says(message, "utf-8", "[data]")
    with raises(ValueError, "must", "encoding"):
        site_of(tmp_path, text, encoding="klingon")
    assert says(problem(tmp_path, ROWS.encode().replace(b"4", b"\0")), "NUL", "characters")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_spreadsheets_line_about_its_separator_is_understood(tmp_path: Path, end: str) -> None:
    text = ("sep=;\n" + ROWS.replace(",", ";")).replace("\n", end)
    assert ages(load(tmp_path, text)) == [40, 50, 60]
    faulty = problem(tmp_path, text.replace("50", "500"))
    assert says(faulty, "'500'", "line 4")


def test_a_line_is_counted_as_an_editor_counts_it(tmp_path: Path) -> None:
    text = 'age,sex,ill,note\n40,f,0,"one\ntwo"\n\n\n50,m,1,\n600,f,2,\n'
    assert says(problem(tmp_path, text), "'600'", "line 7")
    (note,) = load(tmp_path, text.replace("600", "60")).notes
    assert says(note, "several lines", "line 2", "quotation mark")
    text = ROWS.replace("50,m,1\n", ",,\n50,m,1\n") + " , ,\n"
    found = load(tmp_path, text)
    assert ages(found) == [40, 50, 60]
    (note,) = found.notes
    assert says(note, "2 lines", "left out")
    assert says(problem(tmp_path, text.replace("50,m", "500,m")), "'500'", "line 4")
    text = "age,sex,ill,name\n40,f,0,A\n,,,B\n50,m,1,C\n"  # who lacks all columns of the study
    assert says(problem(tmp_path, text), "''", "line 3")
    rows = "".join(f"{20 + i % 80},{'fm'[i % 2]},{i % 3}\n" for i in range(5_000))
    assert says(problem(tmp_path, "age,sex,ill\n" + rows + "120.5,f,0\n"), "'120.5'", "line 5002")


def test_a_last_line_of_totals_is_asked_about(tmp_path: Path) -> None:
    text = "id,age,sex,ill\n1,40,f,0\n2,50,m,1\n3,60,f,2\nSumme:,150,,3\n"
    harmless = load(tmp_path, text.replace("150,,3", "50,f,1"))
    assert says(harmless.notes, "line 5", "'Summe:'", "footer_lines", "1 under")
    assert says(problem(tmp_path, text), "noted", "footer_lines")
    assert load(tmp_path, text, footer_lines=1).notes == ()


MEASURED = [
    (i, 30 + 7 * i % 50, "fm"[i % 2], round(13 + i % 7 * 0.3, 1), i % 2) for i in range(1, 41)
]

SUM, MEAN = (
    f"{sum(row[1] for row in MEASURED)},,{sum(row[3] for row in MEASURED):.1f},20",
    f"{sum(row[1] for row in MEASURED) / 40:.2f},,{sum(row[3] for row in MEASURED) / 40:.2f},0.5",
)


@pytest.mark.parametrize(
    ("tail", "num"),
    [
        (f"Grand Total,{SUM}\n", 1),
        (f"Gesamtergebnis,{SUM}\n,,,,\n , ,,,\n", 1),
        ("Total général,2400,,,20\nSource: export of Monday,,,,\n", 2),
        (",Mittelwert: 61,,,\n,SD 12,,,\n,n = 40,,,\n", 3),
        ("Mean,61.2,,14.1,0.5\nSD,12.1,,1.5,0.51\nn,40,40,40,40\n", 3),
        ("Итого,2400,,,20\n", 1),
        ("المجموع,2400,,,20\n", 1),
        ("합계,2400,,,20\n", 1),
        ("Suma końcowa,2400,,,20\n", 1),
        ("Total (all wards),,,,\n", 1),
        ("Hovedtotal,2400,,,20\n", 1),
        ("Число пациентов,2400,,,20\n", 1),
        ("最大値,2400,,,20\n", 1),
        ("Zusammen,2400,f,9,20\nØ,60,f,9,0.5\n", 2),  # in any language: above it stand keys
        ("n,2400,f,9,20\nvalid,60,f,9,0.5\nMean,61.2,f,9,0.5\n", 3),
        (f",{SUM}\n", 1),  # without a word
        (f"41,{SUM}\n", 1),
        (f",{MEAN}\n", 1),
    ],
)
def test_totals_at_the_end_are_no_patients(tmp_path: Path, tail: str, num: int) -> None:
    body = "".join(",".join(map(str, row)) + "\n" for row in MEASURED)
    path = tmp_path / "a.csv"
    path.write_text("id,age,sex,hb,ill\n" + body + tail, encoding="utf-8")
    whole, profiles = read_whole(path)
    assert (whole.num_rows, whole.footer) == (40, num)
    (said,) = [note for note in whole.notes if "totals" in note]
    assert says(said, "footer_lines", f"{num} under", "[data]")
    assert max(profiles[1].numbers) < 80
    left = TableFile(path=path, footer_lines=num).read(["age"])
    assert (left.num_rows, [note for note in left.notes if "totals" in note]) == (40, [])


def test_a_word_for_totals_in_a_patients_row_makes_no_totals_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{i},{i % 50},{'total knee' if i % 3 else 'hip'},M. Sum\n" for i in range(40))
    for last in ("", "40,50,Total shoulder,A. Total\n", "40,,mean,M. Sum\n41,,mean,M. Sum\n"):
        earlier = "x,9,mean,M. Sum\n" if "mean" in last else ""
        path.write_text(f"id,age,operation,doctor\n{earlier}{rows}{last}", encoding="utf-8")
        assert TableFile(path=path).read(["age"]).footer == 0


def test_lines_at_the_end_may_have_other_columns(tmp_path: Path) -> None:
    text = ROWS + ",,\n\nTotal,150\nPrinted on Monday\n"
    found = load(tmp_path, text, footer_lines=2)
    assert ages(found) == [40, 50, 60]
    assert ages(load(tmp_path, text.replace("Total,150", "70,f,1"), footer_lines=2)) == ages(found)
    assert says(problem(tmp_path, text, footer_lines=1), "line 7", "2")
    assert says(problem(tmp_path, text.replace("50,m,1", "50,m"), footer_lines=2), "line 3", "2")


def test_a_title_above_the_columns_names_is_told_of(tmp_path: Path) -> None:
    remedy = "if it is a title, remove what stands above the columns' names"
    assert says(problem(tmp_path, "Cohort 2024\n\n" + ROWS), "1", remedy)
    padded = problem(tmp_path, "Cohort 2024,,\n" + ROWS)
    assert says(padded, "line 1", "3 columns", remedy)
    assert "odd one" not in problem(tmp_path, ROWS + "70,m\n")


def test_rows_of_another_length_are_told_by_line_and_never_shown(tmp_path: Path) -> None:
    text = ROWS + "\nMiller,secret\n70,m,1,extra,secret\n"
    message = problem(tmp_path, text)
    assert says(message, "3 columns", "line 6", "5")
    assert says(message, '","', "quotes")
    assert "secret" not in message
    assert "Miller" not in message
    many = ROWS + "1,2,3,4\n" * 20
    assert says(problem(tmp_path, many), "line 9", "4", "15")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ROWS.replace("50,m", '50,"m') + "70,m,secret\n", 3),
        # All columns are there, and the patients below would be gone.
        (ROWS.replace("50,m,1", '50,m,"1') + "70,m,secret\n", 3),
        ('"', 1),
        (ROWS + '70,m,"', 5),
    ],
)
def test_an_open_quotation_hides_no_patients(tmp_path: Path, text: str, line: int) -> None:
    message = problem(tmp_path, text)
    assert "secret" not in message
    assert says(message, "begins", f"line {line}")


def of_column(name: str, **keys: Any) -> Study:
    """The usual study, with another first feature."""
    task = make_study().task.model_dump(mode="json")
    task["features"][0] = {"name": name, **keys}
    return make_study(task=task)


def test_thousands_are_declared_never_guessed(tmp_path: Path) -> None:
    study = of_column("platelets", range=[10_000, 1_000_000])
    text = 'platelets,sex,ill\n"150,000",f,0\n"90,500",m,1\n80000,m,1\n'

    def numbers(text: str, **data: Any) -> list[float]:
        return ages(load_patients(site_of(tmp_path, text, **data), study))

    spaces = text.replace('"150,000"', "150\u202f000").replace('"90,500"', "90 500")
    german = text.replace('"150,000"', '"150.000,0"').replace('"90,500"', "90.500")
    for written, thousands in ((text, ","), (spaces, " "), (german, ".")):
        assert numbers(written, thousands=thousands) == [150_000, 90_500, 80_000]
    with raises(DataError, "thousands", '","'):
        numbers(text)
    with raises(DataError, "'1500,00'", "line 2"):
        numbers(text.replace("150,000", "1500,00"), thousands=",")
    with raises(DataError, "'0,150'", "line 2"):  # a decimal comma
        numbers(text.replace("150,000", "0,150"), thousands=",")
    with raises(ValueError, "must differ"):
        site_of(tmp_path, text, thousands=",", decimal=",")


def test_points_that_group_thousands_are_no_decimal_points(tmp_path: Path) -> None:
    text = "cells,sex,ill\n980,f,0\n1.250,m,1\n12.300,m,1\n"

    def numbers(text: str, **data: Any) -> list[float]:
        return ages(load_patients(site_of(tmp_path, text, **data), of_column("cells")))

    with raises(DataError, '"."', "[data]"):
        numbers(text)
    assert numbers(text, thousands=".") == [980, 1250, 12300]
    assert numbers(text, decimal=".") == [980, 1.25, 12.3]
    for decimals in (("980.000", "1.250"), ("980", "1.25"), ("5", "1.250"), ("980", "1.253")):
        plain = text.replace("980", decimals[0]).replace("1.250", decimals[1])
        plain = plain.replace("12.300", "12.345")
        assert numbers(plain)[:2] == [float(cell) for cell in decimals]


@pytest.mark.parametrize(
    ("measured", "is_odd"),
    [
        (range(100, 340, 8), True),  # a cholesterol: none is near 0
        (range(80, 200, 4), True),  # a blood pressure
        (range(1, 61, 2), False),  # days in hospital
        ([0.002 * number for number in range(1, 31)], False),
        (range(100, 140, 8), False),  # five doses
    ],
)
def test_a_low_zero_is_asked(tmp_path: Path, measured: Sequence[float], is_odd: bool) -> None:
    rows = "".join(f"{value},{'fm'[i % 2]},{i % 2}\n" for i, value in enumerate(measured))
    text = f"cells,sex,ill\n0,f,0\n{rows}0,m,1\n"
    notes = load_patients(site_of(tmp_path, text), of_column("cells")).notes
    assert [": '0';" in note for note in notes] == ([True] if is_odd else [])


def test_a_number_that_may_mean_not_known_is_told_of(tmp_path: Path) -> None:
    text = "cells,sex,ill\n5,f,0\n7,m,1\n999,m,1\n-9,m,1\n"
    (note,) = load_patients(site_of(tmp_path, text), of_column("cells")).notes
    assert says(note, "'999', '-9'", "[data.values.cells]")
    text = text.replace("999", "9").replace("-9", "99")
    mapped = site_of(tmp_path, text, values={"cells": {"99": "8"}})
    assert not load_patients(mapped, of_column("cells")).notes


def test_times_that_seem_to_be_months_are_asked_about(tmp_path: Path) -> None:
    task: dict[str, object] = {"kind": "tabular", "outcome": "survival", "features": ["age"]}
    task |= {"target": {"time": "days", "event": "ill"}, "cut_points": [90, 365]}
    text = "age,days,ill\n" + "".join(f"{30 + i},{i % 36 + 1},{i % 2}\n" for i in range(40))
    note, early = load_patients(site_of(tmp_path, text), make_study(task=task)).notes
    assert says(note, "column days", "100%", "90 to 365", "[data.units]")
    assert says(early, "followed beyond the first cut point, 90")
    in_days = site_of(tmp_path, text, units={"days": 30.4})
    assert not load_patients(in_days, make_study(task=task)).notes


@pytest.mark.parametrize(
    ("cell", "remedy"),
    [
        ("<40", "for a value beyond a limit the hospitals should agree on a number"),
        ("40 years", "write the number without its unit, all in one unit"),
        ("forty", 'correct it, or map it under [data.values.age] ("" means missing)'),
    ],
)
def test_a_text_has_its_remedy(tmp_path: Path, cell: str, remedy: str) -> None:
    message = problem(tmp_path, ROWS.replace("50", cell))
    assert says(message, repr(cell), "line 3", remedy)


@pytest.mark.parametrize(
    "marker",
    [
        *("N/A", "#N/A", "<NA>", "NaT", "NULL", "NaN", "na", "?", " ", "\\N", "(null)", ".", ".a"),
        *("._", "#DIV/0!", "#VALUE!", "#WERT!", "#NV", "1.#QNAN", "NA_integer_"),
    ],
)
def test_what_programs_write_for_nothing_is_missing(tmp_path: Path, marker: str) -> None:
    site = site_of(tmp_path, ROWS.replace("50", marker))
    task = make_study().task.model_dump(mode="json")
    task["features"][0]["missing"] = "impute"
    found = load_patients(site, make_study(task=task))
    np.testing.assert_array_equal(found.rows[:, 0], [40, np.nan, 60])


@pytest.mark.parametrize(
    ("classes", "cells"),
    [
        (["False", "True"], ["0", "1"]),  # a boolean of Parquet
        ([False, True], ["false", "TRUE"]),
        ([0, 1], ["False", "True"]),
    ],
)
def test_booleans_are_1_and_0(tmp_path: Path, classes: list[object], cells: list[str]) -> None:
    task = {**make_study().task.model_dump(mode="json"), "classes": classes}
    text = f"age,sex,ill\n40,f,{cells[0]}\n50,m,{cells[1]}\n60,m,{cells[1]}\n"
    found = load_patients(site_of(tmp_path, text), make_study(task=task))
    assert found.targets.tolist() == [0, 1, 1]
    with raises(DataError, "study's", "classes"):
        load_patients(site_of(tmp_path, text.replace(cells[1], "yes")), make_study(task=task))


@pytest.mark.parametrize(("mark", "given"), [(",", {}), (";", {}), (",", {"separator": ","})])
def test_long_lines_are_read(tmp_path: Path, mark: str, given: dict[str, str]) -> None:
    """Beyond what csv and pyarrow take at first."""
    names = [f"{i}".rjust(3000, "g") for i in range(500)]
    rows = [names, *([f"{i}.25".rjust(3000, "0") for i in range(500)] for _ in range(3))]
    lines = [line.split(",") for line in ROWS.splitlines()]
    text = "\n".join(mark.join([*line, *row]) for line, row in zip(lines, rows, strict=True))
    (tmp_path / "a.csv").write_text(text)
    found = TableFile.model_validate({"path": tmp_path / "a.csv", **given})
    table = found.read(["age", names[-1]])
    assert [*table.columns["age"].texts] == ["40", "50", "60"]
    assert [float(value) for value in table.columns[names[-1]].texts] == [499.25]


NOTED = "age,sex,ill,note\n" + "40,f,0,\n50,m,1,\n" * 20


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (NOTED + '60,f,2,"' + NOTED * 1000, 42),  # never closed
        (NOTED + f"\n60,f,2,{'x' * 3 * CHUNK}\n", 43),
        ('"' + NOTED * 1000, 1),
        (NOTED + f"60,f,2,{'x' * 140_000}", 42),
    ],
)
def test_a_value_too_long_is_told_by_line(tmp_path: Path, text: str, line: int) -> None:
    message = problem(tmp_path, text)
    assert says(message, f"line {line}", "131072")
    assert says(message, "quotation", "missing")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
@pytest.mark.parametrize("header", [None, ["age", "sex", "ill"]])
def test_a_bom_alone_is_no_table(tmp_path: Path, mark: bytes, header: list[str] | None) -> None:
    assert "Data file" in problem(tmp_path, mark, header=header)


@pytest.mark.parametrize("text", ["age,sex,ill", "age,sex,ill\n", "\n\nage,sex,ill", " "])
def test_a_header_without_patients_is_said_however_it_ends(tmp_path: Path, text: str) -> None:
    assert says(problem(tmp_path, text), "header", "patients")


@pytest.mark.parametrize("mark", ["é", '"', "", "\r"])
def test_a_bad_separator_line_is_no_traceback(tmp_path: Path, mark: str) -> None:
    assert "Data file" in problem(tmp_path, f"sep={mark}\n{ROWS}")


def test_japanese_text_in_escapes_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("年齢,ill\n1,0\n2,1\n", encoding="iso2022_jp")
    with raises(DataError, "iso2022_jp"):
        TableFile(path=tmp_path / "a.csv").read(())
    assert TableFile(path=tmp_path / "a.csv", encoding="iso2022_jp").read(()).header[0] == "年齢"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_is_the_same_table_by_columns_and_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    draws, by_columns, found = np.random.default_rng(0), list[bool](), delimited._at_once

    def noted(*given: Any) -> Any:
        columns = found(*given)
        by_columns.append(columns is not None)
        return columns

    odd = ["", " ", "a", " a", "a ", "ü", "\u2028", "\x1f", "1", "1.0", "01", "-0", "1e5", "x" * 70]
    header = ["n", "é", ""]
    for case in range(40):
        rows = draws.choice([*odd, "k"], (int(draws.integers(9, 60)), 3)).tolist()
        for row in rows[: 0 if case % 4 else 1]:
            row[:] = [" ", "", ""]  # a row without a value
        above = ["", ""] if case % 3 == 0 else []
        blank = [""] if case % 5 == 0 else []
        if case % 2:  # in quotes, with quotes and separators inside, and one over two lines
            rows += [['say ""1"",2', "x", "y"] for _ in range(20)]
            rows[-1][2] += end if case % 4 == 1 else ""
        mark = '"' if case % 2 else ""
        lines = [",".join(f"{mark}{cell}{mark}" for cell in row) for row in [header, *rows]]
        path = tmp_path / f"{case}.csv"
        text = end.join([*above, *lines[:2], *blank, *lines[2:], *([""] if case % 4 < 2 else [])])
        path.write_bytes(text.encode())
        monkeypatch.setattr(delimited, "_at_once", noted)
        one = TableFile(path=path).read_rows({"n", "é"})
        monkeypatch.setattr(delimited, "_at_once", lambda *given: None)
        other = TableFile(path=path).read_rows({"n", "é"})
        assert (one.header, one.num_rows, one.notes) == (other.header, other.num_rows, other.notes)
        assert [*map(one.place, range(one.num_rows))] == [*map(other.place, range(one.num_rows))]
        for name in ("positions", "row_hashes"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
        for name, column in one.columns.items():
            assert [*column.texts] == [*other.columns[name].texts]
            assert np.array_equal(column.codes, other.columns[name].codes)
    assert any(by_columns)
    assert not all(by_columns)


def test_a_value_of_two_lines_is_one_wherever_the_file_is_cut_into_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "CHUNK", 96)
    path = tmp_path / "a.csv"
    for above in range(40):
        path.write_text("n,m\n" + "1,2\n" * above + '3,"x\n4,5"\n' + "1,2\n" * 20)
        assert TableFile(path=path).read_rows({"n", "m"}).num_rows == above + 21
