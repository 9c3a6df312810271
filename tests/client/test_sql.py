"""Patients in a real PostgreSQL database, laid out as the OMOP common data model says."""

import math
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from erosion_client.dataset.load import KeptPatients, load_patients
from erosion_client.dataset.sources import databases
from erosion_client.dataset.sources.databases import DuckdbFiles, SqlQuery
from erosion_client.finding import Severity
from erosion_client.site_file import Site
from erosion_common.errors import DataError, SiteError
from erosion_common.settings.base import validate
from tests.support import omop
from tests.support.omop import SECRET
from tests.support.patience import PATIENCE
from tests.support.said import raises, says
from tests.support.small_study import make_study

NUM_PEOPLE = 60


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with omop.database(tmp_path_factory.mktemp("postgres"), NUM_PEOPLE) as found:
        yield found


@pytest.fixture
def keys(port: int, tmp_path: Path) -> dict[str, Any]:
    """[data] of a site file that reads the database."""
    return omop.source(tmp_path, port)


def site_with(data: dict[str, Any]) -> Site:
    raw = {"name": "a", "data": data, "coordinator": {"address": "127.0.0.1:1"}}
    return validate(Site, raw, "Site file x", SiteError)


def problem_of(data: dict[str, Any]) -> str:
    with pytest.raises(DataError) as problem:
        load_patients(site_with(data), make_study(task=omop.TASK))
    assert SECRET not in str(problem.value)
    assert "\n" not in str(problem.value).strip()
    return str(problem.value)


def test_a_row_is_known_again_by_the_bytes_that_it_holds() -> None:
    source, found = SqlQuery(url="sqlite:///x.sqlite", query="SELECT 1"), []
    for content in (b"one", b"one", b"two"):
        result = Mock(fetchmany=Mock(side_effect=[[(30, memoryview(content))], []]))
        result.keys.return_value = ["age", "scan"]
        hashes = source._table(result, {"age"}, math.inf).row_hashes
        assert hashes is not None
        found.append(int(hashes[0]))
    assert found[0] == found[1] != found[2]


def test_a_querys_rows_are_patients(keys: dict[str, Any]) -> None:
    found = load_patients(site_with(keys), make_study(task=omop.TASK))
    assert found.rows.shape == (NUM_PEOPLE, 4)
    assert found.num_patients == NUM_PEOPLE
    assert set(found.rows[:, 1]) == {0.0, 1.0}
    assert says(found.notes, "missing", f"cholesterol {NUM_PEOPLE // 7}")
    assert 10 < found.targets.sum() < 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "SELECT * FROM patient"}, 'failed: relation "patient" does not exist'),
        ({"query": "SELECT * FROM person WHERE person_id < 0"}, "gives no rows"),
        ({"query": "SELECT 1 AS a, 2 AS a"}, "gives the column 'a' more than once. Name each"),
        ({"query": "SELECT ARRAY[1] AS age"}, "column 'age' holds list"),
        (
            {"query": "SELECT generate_series(1, 1000000000000) AS age", "max_rows": 20_000},
            "gives more than 20,000 rows",
        ),
        ({"query": "SELECT lo_create(0) AS x"}, "cannot execute lo_create() in a read-only"),
        ({"query": "DELETE FROM person"}, 'failed: syntax error at or near "DELETE"'),
        ({"max_rows": 59}, "gives more than 59 rows"),
        ({"password_file": None}, "no password supplied"),
        ({"password_file": Path("/nowhere")}, "The password file /nowhere cannot be read: No such"),
        (
            {"url": "postgresql://owner@127.0.0.1:1/postgres"},
            "failed: Connection refused. Check data.u",
        ),
        ({"url": "oracle+oracledb://x@y/z"}, "there is no driver for it (No module named"),
        ({"url": "nosuch://x@y/z"}, "there is no driver for it (Can't load plugin"),
    ],
)
def test_database_problems(keys: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    assert message in problem_of({**keys, **changes})


def test_a_slow_query_ends_at_its_deadline(keys: dict[str, Any]) -> None:
    slow = {**keys, "query": "SELECT pg_sleep(300)", "query_seconds": 0.5}
    # Whoever gives up first: the database or this program.
    assert says(problem_of(slow), "answered", "0.5")


def test_a_silent_database_ends_at_the_deadline(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
        url = f"postgresql://owner@127.0.0.1:{silent.getsockname()[1]}/postgres"
        assert "be reached" in problem_of({**keys, "url": url})
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://owner:{SECRET}@host/db",
        "postgresql://host/db?user=owner&password=s3cret",
        "postgresql://owner:s3cret/with/slashes@host/db",
        "mysql://owner@host/db?passwd=s3cret",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Downer%3BPWD%3Ds3cret",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SiteError) as problem:
        site_with({"url": url, "query": "SELECT 1"})
    assert says(str(problem.value), "password", "password_file")
    assert "s3cret" not in str(problem.value)


def test_check_says_whether_the_database_lets_us_in(keys: dict[str, Any]) -> None:
    found = list(SqlQuery.model_validate(keys).check())
    assert [finding.outcome for finding in found] == [Severity.OK, Severity.OK]
    keys["password_file"].chmod(0o644)
    found = list(SqlQuery.model_validate({**keys, "url": "postgresql://o@127.0.0.1:1/x"}).check())
    assert [finding.outcome for finding in found] == [Severity.WARNING, Severity.FAILED]
    assert found[1].remedy.startswith("Check data.url")


def test_other_databases_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "hospital.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE patients (age REAL, sex TEXT, ill INTEGER)")
        rows = [(50.5 + i, "fm"[i % 2], i % 2) for i in range(8)]
        connection.executemany("INSERT INTO patients VALUES (?, ?, ?)", rows)
    connection.close()
    query = "SELECT *, ':x' AS colon FROM patients"
    found = load_patients(site_with({"url": f"sqlite:///{path}", "query": query}), make_study())
    assert found.rows[0].tolist() == [50.5, 0]
    absent = {"url": f"sqlite:///{tmp_path}/absent.sqlite", "query": query}
    assert says(problem_of(absent), "database", "file")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    slow = {"url": f"sqlite:///{path}", "query": endless, "query_seconds": 0.5}
    assert says(problem_of(slow), "answered", "0.5")


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    path = tmp_path / "hospital.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE patients (age REAL)")
        connection.executemany("INSERT INTO patients VALUES (?)", [(age,) for age in range(40, 60)])
    connection.close()
    return path


def test_sqlite_is_relative_to_the_site(sqlite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    source = SqlQuery(url="sqlite:///hospital.sqlite", query="SELECT * FROM patients")
    assert source.beside(sqlite.parent).read(["age"]).num_rows == 20
    absolute = SqlQuery(url=f"sqlite:///{sqlite}", query="SELECT * FROM patients")
    assert absolute.beside(Path("/nowhere")).read(["age"]).num_rows == 20


@pytest.mark.parametrize("query", ["DROP TABLE patients", "DELETE FROM patients RETURNING age"])
def test_a_query_changes_nothing_in_an_sqlite_file(sqlite: Path, query: str) -> None:
    with raises(DataError, "readonly", "database"):
        SqlQuery(url=f"sqlite:///{sqlite}", query=query).read(["age"])
    source = SqlQuery(url=f"sqlite:///{sqlite}", query="SELECT * FROM patients")
    assert source.read(["age"]).num_rows == 20


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)
def test_nothing_keeps_running(sqlite: Path, query: str, caplog: pytest.LogCaptureFixture) -> None:
    source = SqlQuery(
        url=f"sqlite:///{sqlite}", query=query, query_seconds=0.3, max_rows=1_000_000_000
    )
    with raises(DataError, "answered", "within"):
        source.read(["i"])
    for thread in threading.enumerate():
        if thread.name == "database":
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert caplog.records == []


@pytest.mark.parametrize(
    "url", ["postgresql://reader@127.0.0.1:port/db", "sqlite:///{path}?timeout=long"]
)
def test_a_url_that_no_driver_understands_is_explained(sqlite: Path, url: str) -> None:
    message = problem_of({"url": url.format(path=sqlite), "query": "SELECT 1 AS age"})
    assert says(message, "SQLAlchemy", "postgresql://")
    assert "timeout" not in message


def test_a_missing_package_is_named(sqlite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(_: Any) -> None:
        raise ImportError("greenlet is not installed")

    monkeypatch.setattr("sqlalchemy.Engine.connect", lacking)
    message = problem_of({"url": f"sqlite:///{sqlite}", "query": "SELECT 1 AS age"})
    assert says(message, "installed", "data.url")


def duckdb_site(**data: Any) -> Site:
    raw = {"name": "a", "data": data, "coordinator": {"address": "127.0.0.1:1"}}
    return Site.model_validate(raw)


def duckdb_problem(**data: Any) -> str:
    with pytest.raises(DataError) as problem:
        load_patients(duckdb_site(**data), make_study())
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


def test_a_query_can_append_the_files_of_a_folder(tmp_path: Path) -> None:
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
    query = "SELECT * FROM a UNION ALL BY NAME SELECT * FROM b ORDER BY age"
    found = load_patients(duckdb_site(source="duckdb", path=tmp_path, query=query), make_study())
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
    found = load_patients(duckdb_site(source="duckdb", path=tmp_path, query=query), make_study())
    assert found.rows[:, 0].tolist() == [40, 50, 60, 70]
    assert found.targets.tolist() == [1, 0, 1, 0]


def test_a_query_is_needed(tmp_path: Path) -> None:
    with raises(ValidationError, "query"):
        duckdb_site(path=tmp_path / "hospital.duckdb")


def test_a_database_is_known_by_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "hospital.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE patients (age INTEGER, sex VARCHAR, ill BOOLEAN)")
        connection.execute("INSERT INTO patients SELECT i, 'f', i % 2 = 0 FROM range(40, 60) t(i)")
    found = load_patients(duckdb_site(path=path, query="FROM patients"), make_study())
    assert found.rows[:, 0].tolist() == list(range(40, 60))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"query": "SELECT * FROM nowhere"}, "Table with name nowhere does not exist"),
        ({"query": "SELECT * FROM '2019' WHERE age < 0"}, "gives no rows"),
        ({"query": "DROP VIEW a"}, "cannot be read: Parser Error"),
        ({"query": 'SELECT [1] AS age FROM "2019"'}, "column 'age' is of type list"),
        ({"query": "SELECT * FROM '2019'", "max_rows": 19}, "gives more than 19 rows"),
        (
            {"query": "SELECT sum(a.i * b.i) FROM range(10000000) a(i), range(10000000) b(i)"}
            | {"query_seconds": 0.5},
            "the query took longer than 0.5 s. Make it faster, or raise query_seconds",
        ),
        ({"query": "SELECT * FROM read_parquet('https://127.0.0.1:1/x')"}, "cannot be read: "),
    ],
)
def test_missing_things_are_explained(years: Path, data: dict[str, Any], message: str) -> None:
    assert message in duckdb_problem(source="duckdb", path=years, **data)


def test_a_folder_without_tables_and_a_path_to_nothing_are_explained(tmp_path: Path) -> None:
    assert says(duckdb_problem(source="duckdb", path=tmp_path, query="FROM a"), "holds", ".parquet")
    absent = tmp_path / "absent"
    assert says(duckdb_problem(source="duckdb", path=absent, query="FROM a"), "nothing", absent)
    (tmp_path / "x.duckdb").write_text("not a database")
    assert "cannot be" in duckdb_problem(path=tmp_path / "x.duckdb", query="FROM a")
    [finding] = duckdb_site(source="duckdb", path=absent, query="FROM a").data.check()
    assert finding.outcome == Severity.FAILED


def test_a_column_that_a_query_gives_twice_is_refused(years: Path) -> None:
    query = 'SELECT * FROM "2019" a JOIN "2020" b ON a.age + 20 = b.age'
    message = duckdb_problem(source="duckdb", path=years, query=query)
    assert says(message, "column 'age'", "'ill'", "'sex'")


def test_a_query_reads_texts_of_a_csv_as_they_are_written(tmp_path: Path) -> None:
    rows = [("007", "02/03/1950", "F", "2000-12-31", "5.5"), ("008", "04/05/1950", "F", "", "6")]
    text = "".join(f"{','.join(row)}\n" for row in rows)
    (tmp_path / "p.csv").write_text(f"id,born,sex,seen,kg\n{text}")
    query = "SELECT *, kg * 2 AS twice, year(seen) AS year FROM p ORDER BY kg"
    source = DuckdbFiles(path=tmp_path, query=query)
    table = source.read(["id", "born", "sex", "year", "twice"])
    assert [*table.columns["id"].texts] == ["007", "008"]
    # Not the third of February or the second of March, whichever DuckDB holds for likelier.
    assert [*table.columns["born"].texts] == ["02/03/1950", "04/05/1950"]
    assert [*table.columns["sex"].texts] == ["F"]  # not false
    assert (*table.columns["year"].texts,) == ("2000", "")
    assert (*table.columns["twice"].texts,) == ("11", "12")


def test_a_query_reads_a_csv_by_the_site_files_decimal_mark(tmp_path: Path) -> None:
    """A number of DuckDB's own: 1.25, a thousandth of what the site file says that it is."""
    (tmp_path / "p.csv").write_text("dose;kg\n1.250;5,5\n2.500;6\n")
    query = "SELECT dose, kg * 2 AS twice FROM p ORDER BY kg"
    columns = DuckdbFiles(path=tmp_path, query=query, thousands=".").read(["dose", "twice"]).columns
    assert [*columns["dose"].written] == ["1.250", "2.500"]
    assert [*columns["twice"].texts] == ["11", "12"]


def test_a_querys_columns_have_the_type_of_all_lines(tmp_path: Path) -> None:
    """DuckDB looks at 20,480 lines, and would make 8 of the 7.6 below them, and 7 of the 007."""
    rows = "".join(f"{i},{i}\n" for i in range(1, 21_000))
    (tmp_path / "p.csv").write_text(f"id,it's\n{rows}007,7.6\n")
    query = """SELECT id, "it's" AS kg FROM p WHERE "it's" = 7 OR "it's" > 7.5 AND "it's" < 8"""
    columns = DuckdbFiles(path=tmp_path, query=query).read(["id", "kg"]).columns
    assert [*columns["id"].texts] == ["7", "007"]
    assert [*columns["kg"].texts] == ["7", "7.6"]


def test_points_that_group_thousands_are_asked_about_in_a_query_too(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("dose\n980\n1.250\n")
    keys: dict[str, Any] = {"path": tmp_path, "query": "SELECT * FROM p"}
    with raises(DataError, "column dose", "thousands"):
        DuckdbFiles(**keys).read(["dose"])
    assert [*DuckdbFiles(**keys, decimal=".").read(["dose"]).columns["dose"].texts][1] == "1.25"


def test_lines_of_several_lengths_need_no_key(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("age,sex,ill\n40,f,1\n50,m,0,x\n60,f\n")
    message = duckdb_problem(source="duckdb", path=tmp_path / "p.csv", query="FROM p")
    assert "separator" not in message
    assert says(message, "single column", "length")


def test_a_files_name_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "export1.csv").write_text("age\n40\n")  # which the pattern would fit
    (tmp_path / "export[1].csv").write_text("age\n50\n")
    source = DuckdbFiles(path=tmp_path / "export[1].csv", query='FROM "export[1]"')
    assert (*source.read(["age"]).columns["age"].texts,) == ("50",)


@pytest.mark.parametrize("second", ["age", "Age"])
def test_a_column_given_twice_is_refused(tmp_path: Path, second: str) -> None:
    query = 'SELECT age, sex, ill FROM "a"'
    rows = "".join(f"{a};{a + 1};{'fm'[a % 2]};{a // 2 % 2}\n" for a in range(40, 60))
    (tmp_path / "a.csv").write_text(f"age;{second};sex;ill\n{rows}")
    message = "a.csv has the column 'age' more than once. Rename or remove the others."
    assert message in duckdb_problem(source="duckdb", path=tmp_path, query=query)
    # By its own name as DuckDB would give it.
    (tmp_path / "a.csv").write_text(f"age;age_1;sex;ill\n{rows}")
    found = load_patients(duckdb_site(source="duckdb", path=tmp_path, query=query), make_study())
    assert found.rows[:, 0].tolist() == list(range(40, 60))


def test_a_row_that_begins_with_a_hash_is_no_comment(tmp_path: Path) -> None:
    rows = [f"#{a},{a},{'fm'[a % 2]},{a // 2 % 2}" for a in range(40, 60)]
    (tmp_path / "a.csv").write_text("\n".join(["#a note", "#b", "id,age,sex,ill", *rows, ""]))
    keys = {"source": "duckdb", "path": tmp_path, "query": "FROM a"}
    found = load_patients(duckdb_site(**keys), make_study())
    assert found.rows[:, 0].tolist() == list(range(40, 60))
    (tmp_path / "a.csv").write_text("age,sex,ill\n30,f,0\n#40,m,1\n50,f,2\n#60,f,1\n#61,f,1\n")
    assert says(duckdb_problem(**keys), "'#40'", "row 2")


@pytest.mark.parametrize("kind", ["view", "query", "folder"])
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
        "view": {"path": database, "query": "FROM patients"},
        "query": {"path": other, "query": f"SELECT * FROM read_csv('{export}')"},
        "folder": {"path": export.parent, "query": 'FROM "2019"'},
    }
    kept = KeptPatients(duckdb_site(source="duckdb", **sources[kind]))
    assert len(kept.of(make_study(), "first").rows) == 20
    export.write_text(csv_of(range(40, 80)))
    assert len(kept.of(make_study(), "second").rows) == 40
