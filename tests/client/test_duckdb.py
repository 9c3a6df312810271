"""Patients in DuckDB databases, and in folders of Parquet and CSV files."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from erosion_client.dataset.load import KeptPatients, load_patients
from erosion_client.dataset.sources.databases import DuckdbFiles
from erosion_client.finding import Severity
from erosion_client.site_file import Site
from erosion_common.errors import DataError
from tests.support.said import says
from tests.support.small_study import make_study


def site_with(**data: Any) -> Site:
    raw = {"name": "a", "data": data, "coordinator": {"address": "127.0.0.1:1"}}
    return Site.model_validate(raw)


def problem_of(**data: Any) -> str:
    with pytest.raises(DataError) as problem:
        load_patients(site_with(**data), make_study())
    return str(problem.value)


def csv_of(ages: range) -> str:
    return "age,sex,ill\n" + "".join(f"{a},{'fm'[a % 2]},{a // 2 % 2}\n" for a in ages)


@pytest.fixture
def years(tmp_path: Path) -> Path:
    """A folder with a file for each year."""
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "2019.csv").write_text(csv_of(range(40, 60)))
    (folder / "2020.csv").write_text(csv_of(range(60, 80)))
    (folder / "readme.md").write_text("not a table")
    return folder


def test_a_folder_of_parquet_files_is_read_like_one_of_csv_files(tmp_path: Path) -> None:
    for name, start in (("a", 40), ("b", 60)):
        ages = list(range(start, start + 20))
        table = pa.table(
            {
                "age": pa.array(ages, pa.int32()),
                "sex": ["fm"[a % 2] for a in ages],
                "ill": pa.array([a // 2 % 2 == 1 for a in ages]),
            }
        )
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = load_patients(site_with(source="duckdb", path=tmp_path), make_study())
    assert found.rows[:, 0].tolist() == list(range(40, 80))
    assert found.targets.sum() == 20


def test_a_query_can_join_the_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,age,sex\n1,40,f\n2,50,m\n3,60,m\n4,70,f\n")
    (tmp_path / "diagnoses.csv").write_text("id,code\n1,I21\n3,I21\n3,J45\n")
    query = """
        SELECT age, sex, EXISTS (FROM diagnoses d WHERE d.id = p.id AND code = 'I21') AS ill
        FROM people p ORDER BY p.id;  -- infarction
    """
    query = query.replace(";  -- infarction", "  -- infarction")
    found = load_patients(site_with(source="duckdb", path=tmp_path, query=query), make_study())
    assert found.rows[:, 0].tolist() == [40, 50, 60, 70]
    assert found.targets.tolist() == [1, 0, 1, 0]


def test_the_only_table_of_a_database_needs_no_query(tmp_path: Path) -> None:
    path = tmp_path / "hospital.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE patients (age INTEGER, sex VARCHAR, ill BOOLEAN)")
        connection.execute("INSERT INTO patients SELECT i, 'f', i % 2 = 0 FROM range(40, 60) t(i)")
    found = load_patients(site_with(path=path), make_study())  # told by its suffix
    assert found.rows[:, 0].tolist() == list(range(40, 60))
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE visits (day DATE)")
    assert says(problem_of(path=path), "patients", "data.query")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"query": "SELECT * FROM nowhere"}, "Table with name nowhere does not exist"),
        ({"query": "SELECT * FROM '2019' WHERE age < 0"}, "gives no rows"),
        ({"query": "DROP VIEW a"}, "cannot be read: Parser Error"),
        ({"query": 'SELECT [1] AS age FROM "2019"'}, "column 'age' is of type list"),
        ({"max_rows": 39}, "gives more than 39 rows"),
        (
            {"query": "SELECT sum(a.i * b.i) FROM range(10000000) a(i), range(10000000) b(i)"}
            | {"query_seconds": 0.5},
            "the query took longer than 0.5 s. Make it faster, or raise query_seconds",
        ),
        ({"query": "SELECT * FROM read_parquet('https://127.0.0.1:1/x')"}, "cannot be read: "),
    ],
)
def test_missing_things_are_explained(years: Path, data: dict[str, Any], message: str) -> None:
    assert message in problem_of(source="duckdb", path=years, **data)


def test_files_of_different_columns_are_not_thrown_together(years: Path) -> None:
    (years / "2021.csv").write_text("age,gender,ill\n1,f,1\n")
    message = problem_of(source="duckdb", path=years)
    assert says(message, "2021.csv", "2019.csv", "data.query")


def test_a_folder_without_tables_and_a_path_to_nothing_are_explained(tmp_path: Path) -> None:
    assert says(problem_of(source="duckdb", path=tmp_path), "holds", ".parquet")
    absent = tmp_path / "absent"
    assert says(problem_of(source="duckdb", path=absent), "nothing", absent)
    (tmp_path / "x.duckdb").write_text("not a database")
    assert "cannot be" in problem_of(path=tmp_path / "x.duckdb")
    [finding] = site_with(source="duckdb", path=absent).data.check()
    assert finding.outcome == Severity.FAILED


def test_what_a_folder_holds_beside_its_tables_is_told_of(years: Path) -> None:
    (years / ".~lock.csv").write_text("left by an office program")
    (years / "older").mkdir()
    (years / "older/2018.csv").write_text(csv_of(range(20, 40)))
    found = load_patients(site_with(source="duckdb", path=years), make_study())
    assert len(found.rows) == 40
    assert says(found.notes, "2 files", years, "readme.md")


def test_a_column_that_a_query_gives_twice_is_refused(years: Path) -> None:
    query = 'SELECT * FROM "2019" a JOIN "2020" b ON a.age + 20 = b.age'
    message = problem_of(source="duckdb", path=years, query=query)
    assert says(message, "column 'age'", "'ill'", "'sex'")


def test_a_query_reads_texts_of_a_csv_as_they_are_written(tmp_path: Path) -> None:
    rows = [("007", "02/03/1950", "F", "2000-12-31", "5.5"), ("008", "04/05/1950", "F", "", "6")]
    text = "".join(f"{','.join(row)}\n" for row in rows)
    (tmp_path / "p.csv").write_text(f"id,born,sex,seen,kg\n{text}")
    query = "SELECT *, kg * 2 AS twice, year(seen) AS year FROM p ORDER BY kg"
    source = DuckdbFiles(path=tmp_path, query=query)
    table = source.read(["id", "born", "sex", "year", "twice"])
    assert table.columns["id"].texts == ("007", "008")
    # Not the third of February or the second of March, whichever DuckDB holds for likelier.
    assert table.columns["born"].texts == ("02/03/1950", "04/05/1950")
    assert table.columns["sex"].texts == ("F",)  # not false
    assert table.columns["year"].texts == ("2000", "")
    assert table.columns["twice"].texts == ("11", "12")


def test_lines_of_several_lengths_need_no_key(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("age,sex,ill\n40,f,1\n50,m,0,x\n60,f\n")
    message = problem_of(source="duckdb", path=tmp_path / "p.csv")
    assert "separator" not in message
    assert says(message, "single column", "length")


@pytest.mark.parametrize("query", [None, 'SELECT * FROM "export[1]"'])
def test_a_files_name_is_no_pattern(tmp_path: Path, query: str | None) -> None:
    (tmp_path / "export1.csv").write_text("age\n40\n")  # which the pattern would fit
    (tmp_path / "export[1].csv").write_text("age\n50\n")
    source = DuckdbFiles(path=tmp_path / "export[1].csv", query=query)
    assert source.read(["age"]).columns["age"].texts == ("50",)


@pytest.mark.parametrize("query", [None, 'SELECT age, sex, ill FROM "a"'])
@pytest.mark.parametrize("second", ["age", "Age"])
def test_a_column_given_twice_is_refused(tmp_path: Path, query: str | None, second: str) -> None:
    rows = "".join(f"{a};{a + 1};{'fm'[a % 2]};{a // 2 % 2}\n" for a in range(40, 60))
    (tmp_path / "a.csv").write_text(f"age;{second};sex;ill\n{rows}")
    message = "a.csv has the column 'age' more than once. Rename or remove the others."
    assert message in problem_of(source="duckdb", path=tmp_path, query=query)
    # By its own name as DuckDB would give it.
    (tmp_path / "a.csv").write_text(f"age;age_1;sex;ill\n{rows}")
    found = load_patients(site_with(source="duckdb", path=tmp_path, query=query), make_study())
    assert found.rows[:, 0].tolist() == list(range(40, 60))


def test_a_row_that_begins_with_a_hash_is_no_comment(tmp_path: Path) -> None:
    rows = [f"#{a},{a},{'fm'[a % 2]},{a // 2 % 2}" for a in range(40, 60)]
    (tmp_path / "a.csv").write_text("\n".join(["#a note", "#b", "id,age,sex,ill", *rows, ""]))
    found = load_patients(site_with(source="duckdb", path=tmp_path), make_study())
    assert found.rows[:, 0].tolist() == list(range(40, 60))
    (tmp_path / "a.csv").write_text("age,sex,ill\n30,f,0\n#40,m,1\n50,f,2\n#60,f,1\n#61,f,1\n")
    assert says(problem_of(source="duckdb", path=tmp_path), "'#40'", "row 2")


@pytest.mark.parametrize("kind", ["view", "view of a query", "query", "file", "folder"])
def test_another_run_reads_views_and_queries_again(tmp_path: Path, kind: str) -> None:
    export = tmp_path / "export" / "2019.csv"
    export.parent.mkdir()
    export.write_text(csv_of(range(40, 60)))
    database = tmp_path / "hospital.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(f"CREATE VIEW patients AS SELECT * FROM read_csv('{export}')")
    other = tmp_path / "other.csv"
    other.write_text("age\n40\n")
    sources: dict[str, dict[str, Any]] = {
        "view": {"path": database},
        "view of a query": {"path": database, "query": "SELECT * FROM patients"},
        "query": {"path": other, "query": f"SELECT * FROM read_csv('{export}')"},
        "file": {"path": export},
        "folder": {"path": export.parent},
    }
    kept = KeptPatients(site_with(source="duckdb", **sources[kind]))
    assert len(kept.of(make_study(), "first").rows) == 20
    export.write_text(csv_of(range(40, 80)))
    assert len(kept.of(make_study(), "second").rows) == 40
