"""Tables with several rows of a patient: a row of features and one of the outcome, or visits."""

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from pydantic import TypeAdapter

from erosion_client.dataset.load import load_patients, table_source
from erosion_client.dataset.sources import AnySource
from erosion_client.dataset.sources.data_source import DataSource, TableSource
from erosion_client.site_file import load_site
from erosion_common.errors import DataError
from erosion_common.program.command_line import main
from erosion_common.study.study import load_study
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study

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
        with sqlite3.connect(folder / "a.db") as database:
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


@pytest.mark.parametrize("kind", ["csv", "parquet", "duckdb", "sql"])
@pytest.mark.parametrize(
    ("rows", "lactate"),
    [
        ({"take": "first"}, [2, 1]),
        ({"take": "last"}, [5, 1]),
        ({"take": "mean"}, [5, 1]),
        ({"columns": {"lactate": "max"}}, [8, 1]),
        ({"columns": {"lactate": "min"}}, [2, 1]),
        ({"event_column": "visit", "events": {"lactate": "day 1"}}, [8, 1]),
        ({"event_column": "visit", "event": "base", "events": {"dead": "day 2"}}, [2, None]),
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


def test_what_means_not_known_is_passed_over(tmp_path: Path) -> None:
    first = {"rows": {"take": "first"}}
    assert values(source_of("csv", tmp_path, missing=["2.00"], **first), "lactate")[0] == "8.0"
    mapped = {"values": {"acid": {"2": ""}}, "columns": {"acid": "lactate"}}
    assert values(source_of("csv", tmp_path, **mapped, **first), "lactate")[0] == "8.0"


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
