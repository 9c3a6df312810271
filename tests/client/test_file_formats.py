"""Tables in the formats that hospitals have, all through one reader."""

import gzip
import json
import math
import sys
import zipfile
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pyreadstat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from erosion_client.dataset.load import load_patients
from erosion_client.dataset.sources import file_content, table_file
from erosion_client.dataset.sources.delimited import read_delimited
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.dataset.text_table import TextColumn, hashes_of_table, text_column
from erosion_client.site_file import load_site
from erosion_common.errors import DataError
from erosion_common.program.command_line import main
from erosion_common.study.study import load_study
from tests.support.said import raises
from tests.support.small_study import make_site, make_study
from tests.support.spreadsheets import kept, write_ods, write_workbook

ROWS = [(f"p{i}", 30.5 + i % 40, date(1950 + i % 50, 1 + i % 12, 2), i % 2) for i in range(60)]
HEADER = ["pid", "age", "born", "ill"]
TEXT = "\n".join(",".join(map(str, row)) for row in [HEADER, *ROWS]) + "\n"
FRAME = pd.DataFrame(ROWS, columns=HEADER)


def as_gz(path: Path) -> None:
    path.write_bytes(gzip.compress(TEXT.encode()))


def as_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/._a.csv", "x")
        archive.writestr("export/a.CSV", TEXT)


def as_workbook(path: Path) -> None:
    write_workbook(path, {"Patients": [HEADER, *ROWS], "Empty": []})


def as_json_lines(path: Path) -> None:
    rows = [dict(zip(HEADER, map(str, row), strict=True)) for row in ROWS]
    path.write_text("".join(json.dumps({**row, "age": float(row["age"])}) + "\n" for row in rows))


FORMATS: dict[str, Callable[[Path], Any]] = {
    "a.csv": lambda path: path.write_text(TEXT),
    "a.csv.gz": as_gz,
    "a.zip": as_zip,
    "a.XLSX": as_workbook,
    "a.xls": lambda path: path.write_bytes(kept("table.xls")),
    "a.ods": lambda path: write_ods(path, [HEADER, *ROWS]),
    "a.sav": lambda path: pyreadstat.write_sav(FRAME, path),
    "a.zsav": lambda path: pyreadstat.write_sav(FRAME, path, compress=True),
    "a.dta": lambda path: pyreadstat.write_dta(FRAME, path),
    "a.xpt": lambda path: pyreadstat.write_xport(FRAME, path),
    "a.ndjson": as_json_lines,
}


def values(source: TableFile, name: str) -> list[str]:
    column = source.read([name]).columns[name]
    return [column.texts[code] for code in column.codes]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_patients(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    source = TableFile(path=tmp_path / name)
    assert values(source, "pid") == [row[0] for row in ROWS]
    assert [float(text) for text in values(source, "age")] == [row[1] for row in ROWS]
    assert values(source, "born") == [row[2].isoformat() for row in ROWS]
    command = ["study", "new", str(tmp_path / name), "--target", "ill", "--hospitals", "a,b"]
    assert main(command) == 0
    study = tmp_path / "study.toml"
    assert main(["site", "new", "--study", str(study), "--data", str(tmp_path / name)]) == 0
    found = load_patients(load_site(tmp_path / "sites/a.toml"), load_study(study))
    assert sorted(found.rows[:, 0]) == sorted(row[1] for row in ROWS)
    assert found.row_hashes is not None
    assert len(set(found.row_hashes.tolist())) == len(ROWS)


def test_a_file_of_sas_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.sas7bdat"
    path.write_bytes(kept("sample.sas7bdat"))
    source = TableFile(path=path)
    assert values(source, "mychar") == ["a", "b", "c", "d", "e"]
    assert values(source, "mynum") == ["1.1", "1.2", "-1000.3", "-1.4", "1000.3"]
    assert values(source, "mydate") == ["2018-05-06", "1880-05-06", "1960-01-01", "1583-01-01", ""]


@pytest.mark.parametrize(
    ("name", "key"), [("a.csv", "sheet"), ("a.csv.gz", "value_labels"), ("a.XLSX", "value_labels")]
)
def test_a_key_of_another_format_is_refused(tmp_path: Path, name: str, key: str) -> None:
    FORMATS[name](tmp_path / name)
    source = TableFile.model_validate({"path": tmp_path / name, key: "labels"})
    with raises(DataError, f"Remove {key}"):
        source.read(["age"])


def test_rows_of_totals_can_be_left_out_in_every_format(tmp_path: Path) -> None:
    rows = [HEADER, *ROWS, ("Total", 2000, "", 30)]
    as_lines = [json.dumps(dict(zip(HEADER, map(str, row), strict=True))) for row in rows[1:]]
    (tmp_path / "a.ndjson").write_text("\n".join(as_lines))
    paths = [write_workbook(tmp_path / "a.xlsx", {"A": rows}), tmp_path / "a.ndjson"]
    for path in paths:
        assert TableFile(path=path).read(["age"]).footer == 1
        assert TableFile(path=path, footer_lines=1).read(["age"]).num_rows == len(ROWS)


def test_cells_of_a_workbook_are_what_they_are_there(tmp_path: Path) -> None:
    ages: list[Any] = [1.255, "#N/A", None, 980, True]
    rows = [["pid", "age"], *([f"p{i}", age] if age else [] for i, age in enumerate(ages))]
    source = TableFile(path=write_workbook(tmp_path / "a.xlsx", {"A": rows}), decimal=",")
    table = source.read(["age"])
    assert values(source, "age") == ["1.255", "", "980", "1"]
    assert set(table.columns["age"].written) == {""}
    assert [table.place(row) for row in range(4)] == ["row 2", "row 3", "row 5", "row 6"]


def test_of_several_sheets_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_workbook(tmp_path / "a.xlsx", {"Notes": [["x"], [1]], "Data": [HEADER, *ROWS]})
    with raises(DataError, "'Notes'", "'Data'", "sheet", "[data]"):
        TableFile(path=path).read(["age"])
    with raises(DataError, "sheet", "'Date'"):
        TableFile(path=path, sheet="Date").read(["age"])
    command = ["study", "new", str(path), "--target", "ill", "--hospitals", "a,b"]
    assert main([*command, "--sheet", "Data"]) == 0
    assert "--sheet Data" in capsys.readouterr().out
    site = ["site", "new", "--study", str(tmp_path / "study.toml"), "--data", str(path)]
    assert main([*site, "--sheet", "Data"]) == 0
    assert load_site(tmp_path / "sites/a.toml").data.model_dump()["sheet"] == "Data"


def test_long_numbers_that_stata_stored_in_32_bits_are_named(tmp_path: Path) -> None:
    ids = np.array([16777216, 16777218], dtype=np.float32)  # 16777217 would be the first of them
    ages = np.array([40, 0.1], dtype=np.float32)
    pd.DataFrame({"id": ids, "age": ages}).to_stata(tmp_path / "a.dta")
    source = TableFile(path=tmp_path / "a.dta")
    assert [note.partition(":")[0] for note in source.read(["id", "age"]).notes] == ["id"]
    assert not source.read(["age"]).notes
    assert values(source, "age") == ["40", "0.1"]


OPENED = '</sheets><calcPr fullCalcOnLoad="1"/>'
TALL = '</sheetData><mergeCells count="1"><mergeCell ref="A2:A3"/></mergeCells>'


@pytest.mark.parametrize(
    ("edits", "refused_for"),
    [
        ({"</sheets>": OPENED}, None),
        ({"<v>40<": "<f>2*20</f><v>40<"}, None),
        ({"<v>40<": "<f>2*20</f><v>40<", "</sheets>": OPENED}, "formulas"),
        ({"<v>40<": "<x:f>2*20</x:f><v>40<", "</sheets>": OPENED}, "formulas"),
        ({"<v>40</v>": "<f>2*20</f>"}, "formulas"),
        ({"</sheetData>": TALL.replace("A3", "B2")}, None),
        ({"</sheetData>": TALL}, "merged"),
        ({'<c r="A2"': '<c r="XFD1048576"'}, "1,048,576"),
        ({'<c r="A2"': "<x:c\nr='XFD1048576'"}, "1,048,576"),
    ],
)
def test_a_sheet_that_is_not_as_it_seems_is_refused(
    tmp_path: Path, edits: dict[str, str], refused_for: str | None
) -> None:
    """Libraries write 0, or nothing, for formulas, and a program may abort at a far cell."""
    path = write_workbook(tmp_path / "a.xlsx", {"A": [["age"], [40]]})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            for old, new in {"<worksheet ": '<worksheet xmlns:x="x" ', **edits}.items():
                text = text.replace(old, new)
            archive.writestr(name, text)
    if refused_for is None:
        assert values(TableFile(path=path), "age") == ["40"]
        return
    with raises(DataError, "a.xlsx", refused_for):
        TableFile(path=path).read(["age"])


def test_json_lines_of_another_encoding_are_read_as_a_csv_is(tmp_path: Path) -> None:
    """PowerShell writes UTF-16, with a mark, where a program's output goes into a file."""
    (tmp_path / "a.jsonl").write_text('{"age": 40}\n{"age": 50}\n', encoding="utf-16")
    source = TableFile(path=tmp_path / "a.jsonl")
    assert values(source, "age") == ["40", "50"]
    assert len(source.read(["age"]).notes) == 1


def test_labels_or_codes_are_read_as_declared(tmp_path: Path) -> None:
    frame = pd.DataFrame({"sex": [1.0, 2.0, 9.0, 3.0]})
    labels: Any = {"sex": {1: "male", 2: "female", 9: "refused"}}
    pyreadstat.write_sav(
        frame, tmp_path / "a.sav", variable_value_labels=labels, missing_ranges={"sex": [9]}
    )
    source = TableFile(path=tmp_path / "a.sav")
    assert values(source, "sex") == ["1", "2", "", "3"]
    assert any("value_labels" in note for note in source.read(["sex"]).notes)
    source = TableFile(path=tmp_path / "a.sav", value_labels="labels")
    assert values(source, "sex") == ["male", "female", "", "3"]


def test_json_lines_and_fhir_are_read_where_flat(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    patient = {"resourceType": "Patient", "id": "7", "name": [{"family": "X"}], "gender": "male"}
    path.write_text(json.dumps(patient) + "\n\n" + json.dumps({**patient, "id": "8"}))
    source = TableFile(path=path)
    assert source.read(()).header == ("resourceType", "id", "name.0.family", "gender")
    assert [source.read(["id"]).place(row) for row in range(2)] == ["line 1", "line 3"]
    path.write_text(json.dumps(patient) + "\n" + json.dumps({"resourceType": "Observation"}))
    with raises(DataError, "Observation", "each", "patient"):
        source.read(["id"])
    path.write_text('{"a": 1}\n[2]\n')
    with raises(DataError, "line 2", "JSON"):
        source.read(["a"])
    for twice in ('{"a.b": 1, "a.b": 2}', '{"a.b": 1, "a": {"b": 2}}'):
        path.write_text('{"a": 1}\n' + twice)
        with raises(DataError, "line 2 has 'a.b' more than once"):
            source.read(["a"])
    path.write_text("{}\n{}\n")
    with raises(DataError, "column age is missing"):
        load_patients(make_site(tmp_path, file=path.name), make_study())


def test_a_parquet_file_that_was_damaged_is_refused(tmp_path: Path) -> None:
    path, table = tmp_path / "a.parquet", pa.table({"age": [40.25, 50.25], "zzzzz": [0, 1]})
    pyarrow.parquet.write_table(table, path, store_schema=False, compression=None)
    path.write_bytes(path.read_bytes().replace(b"zzzzz", b"zz\xffzz"))
    with raises(DataError, str(path), "cannot be read"):
        TableFile(path=path).read(["age"])
    options = {"use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    pyarrow.parquet.write_table(table, path, compression=None, **options)
    value = np.array([50.25]).tobytes()
    path.write_bytes(path.read_bytes().replace(value, np.array([51.25]).tobytes(), 1))
    with raises(DataError, str(path), "cannot be read"):
        TableFile(path=path).read(["age"])


def test_a_damaged_name_of_a_column_in_spss_is_refused(tmp_path: Path) -> None:
    pyreadstat.write_sav(FRAME, path := tmp_path / "a.sav")
    path.write_bytes(path.read_bytes().replace(b"ILL     ", b"\0\x80L     "))
    with raises(DataError, str(path)):
        TableFile(path=path).read(["age"])


def test_a_file_that_crashes_its_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyreadstat.write_sav(FRAME, path := tmp_path / "a.sav")
    content = bytearray(path.read_bytes())
    content[180:184] = (255).to_bytes(4, "little")  # the first column's width
    path.write_bytes(content)
    with raises(DataError, str(path)):
        TableFile(path=path).read(["age"])
    monkeypatch.setattr(table_file, "MOST_MEMORY", 2**20)  # none but what it has at its start
    write_ods(path := tmp_path / "a.ods", [HEADER, *ROWS * 2000])
    with raises(DataError, str(path)):
        TableFile(path=path).read(["age"])


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "a.csv"])
def test_a_file_that_is_cut_off_or_damaged_is_explained(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for share in (0.1, 0.5, 0.9):
        (tmp_path / name).write_bytes(whole[: int(share * len(whole)) - 7])
        with raises(DataError, str(tmp_path / name)):
            TableFile(path=tmp_path / name).read(["age"])
    (tmp_path / name).write_bytes(b"age,ill\n1,2\n")
    with raises(DataError, str(tmp_path / name)):
        TableFile(path=tmp_path / name).read(["age"])


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(TEXT)
    assert TableFile(path=path).read(["age"]).num_rows == len(ROWS)

    def exported_again(*arguments: Any) -> Any:
        found = read_delimited(*arguments)
        path.write_text(TEXT + "p60,1,1950-01-02,0\n")
        return found

    monkeypatch.setattr(table_file, "read_delimited", exported_again)
    with raises(DataError, str(path), "was changed while it was read"):
        TableFile(path=path).read(["age"])


def test_too_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.csv.gz", "a.zip", "a.XLSX", "a.sav", "a.ndjson"):
        FORMATS[name](tmp_path / name)
    monkeypatch.setattr(file_content, "MAX_FILE_BYTES", 2**10)
    monkeypatch.setattr(table_file, "MOST_CELLS", 100)
    for name in ("a.csv.gz", "a.zip"):
        with raises(DataError, "more than"):
            TableFile(path=tmp_path / name).read(["age"])
    monkeypatch.undo()
    monkeypatch.setattr(table_file, "MOST_CELLS", 100)
    for name in ("a.XLSX", "a.sav", "a.ndjson"):
        with raises(DataError, "more", "read"):
            TableFile(path=tmp_path / name).read(["age"])


def test_archives_and_missing_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", TEXT)
        archive.writestr("b.csv", TEXT)
    with raises(DataError, "2 files", "a.csv", "b.csv"):
        TableFile(path=tmp_path / "two.zip").read(["age"])
    as_workbook(tmp_path / "a.xlsx")
    pyreadstat.write_sav(FRAME, tmp_path / "a.sav")
    for package, name in (("python_calamine", "a.xlsx"), ("pyreadstat", "a.sav")):
        monkeypatch.setitem(sys.modules, package, None)
        with raises(DataError, "installed", "install"):
            TableFile(path=tmp_path / name).read(["age"])


def test_values_that_mean_not_known_are_named_for_the_whole_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,sex\n40,f\n-9.0,-9\n50,n.d.\n")
    source = TableFile.model_validate({"path": tmp_path / "a.csv", "missing": [-9, "n.d."]})
    assert values(source, "age") == ["40", "", "50"]
    assert values(source, "sex") == ["f", "", ""]


NUMBERS = {
    "float64": pa.array(
        [0.1, -0.0, 0.0, 1e-7, 1e300, 1 / 3, math.nan, math.inf, None], pa.float64()
    ),
    "float32": pa.array([0.1, 1 / 3, 16777216.0, None], pa.float32()),
    "int64": pa.array([0, -5, 2**53 + 1, 2**63 - 1, None], pa.int64()),
    "uint64": pa.array([2**64 - 1, 0], pa.uint64()),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.001"), None], pa.decimal128(20, 3)),
    "bool": pa.array([True, False, None]),
    "of a dictionary": pa.array([7, 8, 7]).dictionary_encode(),
    "none": pa.array([], pa.float64()),
}


@pytest.mark.parametrize("values", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_a_typed_column_are_what_their_texts_say(values: pa.Array) -> None:
    column = text_column("x", pa.chunked_array([values]))
    texts = tuple(column.texts)
    said = [float(text or "nan") for text in texts]
    np.testing.assert_array_equal(column.numbers, TextColumn(texts, column.codes).numbers)
    plain = np.full(len(texts), np.nan)
    plain[column.codes] = column.numbers
    assert len(texts) == len({*texts})
    known = ~np.isnan(plain)
    np.testing.assert_array_equal(plain[known], np.array(said)[known])
    assert all("e" in t or t in ("", "nan", "inf") for t in np.array(texts, object)[~known])
    assert [column.texts[i] for i in range(len(texts))] == list(texts)
    assert [column.texts.index(text) for text in texts] == [*range(len(texts))]
    assert column.is_missing.tolist() == [text == "" for text in np.array(texts)[column.codes]]
    assert len(column.written) == 0
    assert set(text_column("x", pa.chunked_array([values])).typed) == set(texts)  # asked for first
    as_text = TextColumn(texts, column.codes)
    np.testing.assert_array_equal(
        hashes_of_table({"x": column}, len(values)), hashes_of_table({"x": as_text}, len(values))
    )
    others = [f"{text}0" if "." in text and "e" not in text else text for text in texts]
    as_written = TextColumn(others, column.codes)  # with another number of decimals
    np.testing.assert_array_equal(
        hashes_of_table({"x": column}, len(values)),
        hashes_of_table({"x": as_written}, len(values)),
    )
    half = np.arange(len(values) // 2)
    shorter = column.take(half)
    assert [shorter.texts[c] for c in shorter.codes] == [texts[c] for c in column.codes[half]]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_numbers_of_64_bits_are_read_without_their_texts(values: list[float]) -> None:
    column = text_column("x", pa.chunked_array([pa.array(values, pa.float64())]))
    np.testing.assert_array_equal(column.numbers, values)
