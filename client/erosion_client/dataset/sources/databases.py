"""Patients in a database through SQLAlchemy, or in DuckDB's, Parquet and CSV files."""

import glob
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet
from pydantic import Field, model_validator

from erosion_client.dataset.column_values import (
    BY_POINT,
    GROUPED,
    DecimalMark,
    groups_by_point,
)
from erosion_client.dataset.sources.data_source import (
    OnDisk,
    TableSource,
    check_query,
    entries_of,
    is_there,
    lacks_package,
    revision_of,
    unchanged,
    within,
)
from erosion_client.dataset.sources.delimited import distinct
from erosion_client.dataset.sources.file_content import reason_of
from erosion_client.dataset.text_table import ColumnEncoder, TextTable, text_columns, whole_table
from erosion_client.finding import Finding, failed_by, ok, warning
from erosion_common.errors import DataError
from erosion_common.support.files import read_named
from erosion_common.support.software import install_command

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from sqlalchemy import Connection, CursorResult, Engine
    from sqlalchemy.engine import URL


BATCH_ROWS = 5_000  # fetched at a time
CONNECT_SECONDS = 10.0
SECRET = re.compile(
    r"://[^:/]*:[^@]*@"  # SQLAlchemy's name of the password
    r"|(password|passwd|passphrase|pwd|token|secret)=",  # for the driver, after the ?
    re.I,
)
SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!file:|:memory:)([^?]+)(.*)", re.S)
# Errors of a driver itself for an unknown key or a missing package.
DRIVER_ERRORS = (ValueError, TypeError, ImportError, OSError)


class SqlQuery(TableSource):
    """The rows of one query, one patient each.

    The account should have read access only; on PostgreSQL and SQLite nothing can be changed
    anyway.
    """

    source: Literal["sql"] = "sql"
    url: str = Field(
        description="The database as SQLAlchemy writes it, without a password: "
        "`postgresql://reader@host:5432/omop`."
    )
    query: str = Field(min_length=1, description="One SELECT.")
    password_file: Path | None = Field(
        default=None, description="File that holds the password and nothing else."
    )
    query_seconds: float = Field(
        default=300.0, gt=0, le=86_400, description="Until the last row has come."
    )
    max_rows: int = Field(
        default=1_000_000, ge=1, le=10**9, description="More are a mistake in the query."
    )

    @model_validator(mode="after")
    def _password_apart(self) -> Self:
        # Not in the field's validator: messages about a field quote its value.
        if SECRET.search(unquote(self.url)):
            raise ValueError("url holds a password; leave it out there, and name password_file")
        if "://" not in self.url:
            raise ValueError("url must be written like postgresql://reader@host:5432/database")
        return self

    def beside(self, folder: Path) -> Self:
        """Return the same with relative paths, including an SQLite file's, resolved in `folder`."""
        source = super().beside(folder)
        if found := SQLITE_FILE.fullmatch(source.url):
            start, file, rest = found.groups()
            url = f"{start}{folder / Path(file).expanduser()}{rest}"
            source = source.model_copy(update={"url": url})
        return source

    def describe(self) -> str:
        """Return the database, without the account and the driver's options."""
        place = self.url.split("://", 1)[1].partition("?")[0]
        return f"The query on {place.rpartition('@')[2]}"

    def check(self) -> Iterator[Finding]:
        """Check that the password can be read, and that the database answers."""
        if self.password_file is not None and self.password_file.exists():
            if stat.S_IMODE(self.password_file.stat().st_mode) & 0o077:
                yield warning(
                    "password",
                    f"other accounts of this machine may read {self.password_file}",
                    f"chmod 600 {quote(str(self.password_file))}",
                )
            else:
                yield ok("password", f"{self.password_file} can be read by its owner alone")
        try:
            engine = self._engine()
            self._connection(engine).close()
            engine.dispose()
        except DataError as problem:
            yield failed_by("data", problem)
            return
        yield ok("data", f"{self.describe()[13:]} lets us in")

    def read_rows(self, wanted: Collection[str]) -> TextTable:
        """Read the wanted columns of the query's rows."""
        from sqlalchemy.exc import SQLAlchemyError

        engine = self._engine()
        connection = self._connection(engine)
        deadline = monotonic() + self.query_seconds
        try:
            return within(
                self.query_seconds,
                lambda: self._rows(connection, set(wanted), deadline),
                lambda: _cancel(connection),
            )
        except (TimeoutError, SQLAlchemyError, *DRIVER_ERRORS) as problem:
            if isinstance(problem, TimeoutError) or "statement timeout" in str(problem):
                raise DataError(
                    f"{self.describe()} was not answered within {self.query_seconds:g} s",
                    remedy="Make it faster (indexes, fewer rows), or raise query_seconds under"
                    " [data].",
                ) from None
            raise DataError(
                f"{self.describe()} failed: {self._reason(problem)}",
                remedy="Correct data.query; try it in the database's own client first.",
            ) from None
        finally:
            engine.dispose()

    def _rows(self, connection: "Connection", wanted: set[str], deadline: float) -> TextTable:
        from sqlalchemy import text

        # A query's text may have colons, which are not parameters.
        statement = text(self.query.replace(":", "\\:"))
        with connection:  # closed in the thread that uses it
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only = ON")
            result = connection.execution_options(stream_results=True).execute(statement)
            if not result.returns_rows:
                raise DataError(f"{self.describe()} gives no table", remedy="Write one SELECT.")
            with closing(result):
                return self._table(result, wanted, deadline)

    def _table(self, result: "CursorResult[Any]", wanted: set[str], deadline: float) -> TextTable:
        header = tuple(result.keys())
        check_query(self.describe(), header)
        encoders = [ColumnEncoder(n, self.describe(), is_wanted=n in wanted) for n in header]
        num_rows = 0
        while batch := result.fetchmany(BATCH_ROWS):
            num_rows += len(batch)
            if monotonic() > deadline:  # nobody waits any more
                raise TimeoutError
            check_query(self.describe(), header, num_rows, self.max_rows)
            for encoder, values in zip(encoders, zip(*batch, strict=True), strict=True):
                encoder.add(values)
        check_query(self.describe(), header, num_rows, self.max_rows)
        columns = dict(zip(header, (encoder.column() for encoder in encoders), strict=True))
        return whole_table(self.describe(), header, columns, wanted, num_rows)

    def _engine(self) -> "Engine":
        try:
            from sqlalchemy import create_engine
            from sqlalchemy.exc import ArgumentError, NoSuchModuleError
            from sqlalchemy.pool import NullPool
        except ModuleNotFoundError:
            raise lacks_package("A database", "SQLAlchemy", "sql") from None
        try:
            url = self._full_url()
            connect: dict[str, Any] = {}
            if url.drivername == "postgresql+psycopg":
                limit = int(self.query_seconds * 1000)
                connect = {
                    "connect_timeout": max(int(CONNECT_SECONDS), 1),
                    "options": f"-c statement_timeout={limit} -c default_transaction_read_only=on",
                }
            return create_engine(url, poolclass=NullPool, connect_args=connect)
        except (ModuleNotFoundError, NoSuchModuleError) as problem:
            raise DataError(
                f"there is no driver for it ({problem})",
                where=self.describe(),
                remedy=f"For PostgreSQL run: {install_command('sql')}; for another database install"
                " the driver that its url names.",
            ) from None
        except (ArgumentError, *DRIVER_ERRORS):
            raise DataError(
                "url is not one that SQLAlchemy can read",
                where=self.describe(),
                remedy="Write it like postgresql://reader@host:5432/database.",
            ) from None

    def _full_url(self) -> "URL":
        from sqlalchemy import make_url

        url = make_url(self.url)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        file = url.database or "(no path)"
        if url.get_backend_name() == "sqlite" and not Path(file).is_file():
            # SQLite would create an empty one.
            raise DataError(f"There is no database file {file}", remedy="Check data.url.")
        password = self._password()
        return url.set(password=password) if password else url

    def _password(self) -> str | None:
        if self.password_file is None:
            return None
        try:
            return read_named(self.password_file).decode().strip()
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "it is not text"
            raise DataError(
                f"The password file {self.password_file} cannot be read: {reason}",
                remedy="Check data.password_file.",
            ) from None

    def _connection(self, engine: "Engine") -> "Connection":
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return within(CONNECT_SECONDS, engine.connect, lambda: None)
        except TimeoutError:
            reason = f"no answer within {CONNECT_SECONDS:g} s"
        except (SQLAlchemyError, *DRIVER_ERRORS) as problem:
            reason = self._reason(problem)
        raise DataError(
            f"{self.describe()[13:]} cannot be reached: {reason}",
            remedy="Check data.url, the password, and that the database runs and lets this machine"
            " in.",
        )

    def _reason(self, problem: Exception) -> str:
        """Return the driver's first line, which has neither the statement nor the password."""
        origin = getattr(problem, "orig", None) or problem
        lines = [line.strip() for line in str(origin).splitlines() if line.strip()]
        reason = lines[0] if lines else "no reason given"
        password = self._password()
        return (reason.replace(password, "***") if password else reason).rstrip(".")


def _cancel(connection: "Connection") -> None:
    """Ask the driver to cancel its work, where it can."""
    driver = connection.connection.driver_connection
    for name in ("cancel_safe", "cancel", "interrupt"):
        if (stop := getattr(driver, name, None)) is not None:
            stop()
            return


PARQUET, CSV = "read_parquet", "read_csv"  # DuckDB's own functions
READERS = {".parquet": PARQUET, ".pq": PARQUET, ".csv": CSV, ".tsv": CSV}
# DuckDB would read 01/09/1950 as a date in either order, the year 50 as 2050, and a column of F
# alone as false. These stay text, for the site file's date_format and maps to explain.
PLAIN_TYPES = (
    "auto_type_candidates = ['BIGINT', 'HUGEINT', 'DOUBLE', 'DATE', 'TIMESTAMP', 'VARCHAR'],"
    " dateformat = '%Y-%m-%d', timestampformat = '%Y-%m-%d %H:%M:%S'"
)
NO_COMMENTS = "comment = ''"  # else a row that begins with # may be read as one


class DuckdbFiles(OnDisk, TableSource):
    """A DuckDB database file, one Parquet or CSV file, or a folder of such files.

    In the query, each file is a table with the file's name without the suffix.
    """

    source: Literal["duckdb"] = "duckdb"
    path: Path = Field(
        description="A DuckDB database, one Parquet or CSV file, or a folder of them. In the query "
        "each file is a table, by its name without the suffix."
    )
    query: str = Field(min_length=1, description="One SELECT.")
    query_seconds: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Seconds that the query may take, until the last row has come.",
    )
    max_rows: int = Field(
        default=1_000_000, ge=1, le=10**9, description="More are a mistake in the query."
    )

    def revision(self) -> str | None:
        """Return None: a query or a view may read other files."""
        return None

    def read_rows(self, wanted: Collection[str]) -> TextTable:
        """Read the wanted columns of the query's rows."""
        try:
            import duckdb
        except ModuleNotFoundError:
            raise lacks_package(self.describe(), "DuckDB", "duckdb") from None
        if not is_there(self.path):
            raise DataError(
                f"There is nothing at {self.path}", remedy="Check data.path in the site file."
            )
        for file in self._files():
            if not file.is_file():  # a pipe or a device, which may never end
                raise DataError(f"{file} is no ordinary file", remedy="Give files of the patients.")
        try:
            connection = self._connection()

            def read() -> TextTable:
                with connection:  # closed in the thread that uses it
                    return self._rows(connection, set(wanted))

            with unchanged(self, lambda: revision_of(self.path)):
                return within(self.query_seconds, read, connection.interrupt)
        except TimeoutError:
            raise DataError(
                f"the query took longer than {self.query_seconds:g} s",
                where=self.describe(),
                remedy="Make it faster, or raise query_seconds under [data].",
            ) from None
        except (duckdb.Error, pa.ArrowException, OSError, UnicodeDecodeError) as problem:
            raise DataError(
                f"{self.describe()} cannot be read: {reason_of(problem)}",
                remedy="Check data.path and data.query.",
            ) from None

    def _connection(self) -> "DuckDBPyConnection":
        import duckdb

        # Without these, a query may download extensions from the internet.
        offline: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        if not self._files():
            return duckdb.connect(str(self.path), read_only=True, config=offline)
        return duckdb.connect(config=offline)

    def _files(self) -> list[Path]:
        """Return the Parquet and CSV files; none for a database. Raises DataError without any."""
        if not self.path.is_dir():
            return [self.path] if self.path.suffix.lower() in READERS else []
        # Hidden ones are left by office programs and other systems.
        shown = (f for f in entries_of(self.path) if not f.name.startswith("."))
        files = [f for f in shown if f.suffix.lower() in READERS]
        if not files:
            raise DataError(
                f"The folder {self.path} holds no {', '.join(READERS)} file",
                remedy="Check data.path.",
            )
        return files

    def _rows(self, connection: "DuckDBPyConnection", wanted: set[str]) -> TextTable:
        for file in self._files():
            # DuckDB would rename a second column age to age_1, and confuses age and Age.
            distinct(file, [name.lower() for name in _header(connection, file)])
            reader = self._typed_reader(connection, file)
            connection.execute(f"CREATE VIEW {_named(file.stem)} AS SELECT * FROM {reader}")
        query = self.query.strip().rstrip(";")
        # On separate lines, because a query may end in a comment.
        limited = connection.sql(f"SELECT * FROM (\n{query}\n) LIMIT {self.max_rows + 1}")
        names = connection.sql(query).columns  # of the SELECT that it is known to be now
        check_query(self.describe(), names)
        table: pa.Table = limited.to_arrow_table()
        check_query(self.describe(), names, table.num_rows, self.max_rows)
        header, columns = text_columns(table, wanted)
        return whole_table(self.describe(), header, columns, wanted, table.num_rows)

    def _typed_reader(self, connection: "DuckDBPyConnection", file: Path) -> str:
        """Return DuckDB's function for the file; a CSV's columns have the type of all their lines.

        Raises DataError for a column with 980 and 1.250, unless the site file says how to read it.
        """
        reader = _reader(file, decimal=self.stated_decimal)
        if READERS[file.suffix.lower()] == PARQUET:
            return reader
        # By its first lines alone, 7.6 further down would be 8, and 007 would be 7.
        described = f"DESCRIBE SELECT * FROM {reader[:-1]}, sample_size = -1)"
        kinds = {name: kind for name, kind, *_ in connection.execute(described).fetchall()}
        for name, kind in kinds.items():
            is_asked = kind == "DOUBLE" and self.stated_decimal is None
            if is_asked and groups_by_point(_if_grouped(connection, file, name)):
                raise DataError(f"column {name}: {GROUPED}", where=f"Data file {file}")
        types = ", ".join(f"{_literal(name)}: '{kind}'" for name, kind in kinds.items())
        return f"{reader[:-1]}, types = {{{types}}})"


def _reader(file: Path, *, as_text: bool = False, decimal: DecimalMark | None = None) -> str:
    """Return DuckDB's function for the file; `as_text`: a CSV's values as they are written.

    `decimal`: its mark, where the site file says it; with a comma, 1.250 stays text.
    """
    reader = READERS[file.suffix.lower()]
    options = ""
    if reader == CSV:
        types = f"{PLAIN_TYPES}, decimal_separator = '{decimal or '.'}'"
        options = f", {NO_COMMENTS}, {'all_varchar = true' if as_text else types}"
    return f"{reader}({_quoted(file)}{options})"


def _if_grouped(connection: "DuckDBPyConnection", file: Path, name: str) -> list[str]:
    """Return a CSV's distinct texts in a column, if every point in it may group thousands."""
    column, texts = _named(name), f"FROM {_reader(file, as_text=True)}"
    other = f"{column} LIKE '%.%' AND NOT regexp_full_match({column}, '{BY_POINT.pattern}')"
    if connection.execute(f"SELECT 1 {texts} WHERE {other} LIMIT 1").fetchone():
        return []
    found = connection.execute(f"SELECT DISTINCT {column} {texts} WHERE {column} IS NOT NULL")
    return [text.strip() for (text,) in found.fetchall()]


def _header(connection: "DuckDBPyConnection", file: Path) -> list[str]:
    """Return the file's column names; none for a CSV that seems to begin with a row."""
    if READERS[file.suffix.lower()] == PARQUET:
        return list(pyarrow.parquet.read_schema(file).names)
    marks = "delimiter, quote, escape, skiprows, hasheader"
    sniffed = f"SELECT {marks} FROM sniff_csv({_quoted(file)}, {NO_COMMENTS}, {PLAIN_TYPES})"
    (found,) = connection.execute(sniffed).fetchall()
    *texts, skipped, has_header = found
    if not has_header:
        return []
    delimiter, quote, escape = ("" if text == "(empty)" else text for text in texts)
    first = connection.execute(
        f"SELECT * FROM read_csv({_quoted(file)}, {NO_COMMENTS}, all_varchar = true,"
        " header = false, delim = $1, quote = $2, escape = $3, skip = $4) LIMIT 1",
        [delimiter, quote, escape, skipped],
    ).fetchone()
    return [name or "" for name in first or ()]


def _quoted(file: Path) -> str:
    # DuckDB would read export[1].csv as a pattern, and open export1.csv.
    return _literal(glob.escape(str(file)))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
