"""Patients in a DuckDB database, or in a folder of Parquet and CSV files, through DuckDB."""

import glob
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.parquet
from pydantic import Field

from erosion_client.dataset.sources.data_source import (
    OnDisk,
    TableSource,
    check_query,
    entries_of,
    files_below,
    is_there,
    revision_of,
    within,
)
from erosion_client.dataset.sources.delimited import distinct
from erosion_client.dataset.text_table import TextTable, text_columns, whole_table
from erosion_common.errors import DataError
from erosion_common.support.software import install_command

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PARQUET, CSV = "read_parquet", "read_csv"  # DuckDB's own functions
READERS = {".parquet": PARQUET, ".pq": PARQUET, ".csv": CSV, ".tsv": CSV}
SHOWN = 5  # files in a note
# DuckDB would read 01/09/1950 as a date in either order, the year 50 as 2050, and a column of F
# alone as false. These stay text, for the site file's date_format and maps to explain.
PLAIN_TYPES = (
    "auto_type_candidates = ['BIGINT', 'HUGEINT', 'DOUBLE', 'DATE', 'TIMESTAMP', 'VARCHAR'],"
    " dateformat = '%Y-%m-%d', timestampformat = '%Y-%m-%d %H:%M:%S'"
)
NO_COMMENTS = "comment = ''"  # else a row that begins with # may be read as one


class DuckdbFiles(OnDisk, TableSource):
    """A DuckDB database file, one Parquet or CSV file, or a folder of such files.

    In a query, each file of a folder is a table with the file's name without the suffix. Without a
    query, the rows of all files of the folder are read; they must have the same columns.
    """

    source: Literal["duckdb"] = "duckdb"
    path: Path = Field(
        description="A DuckDB database, one Parquet or CSV file, or a folder of them. In a query "
        "each file of a folder is a table, by its name without the suffix."
    )
    query: str | None = Field(  # one SELECT
        default=None,
        min_length=1,
        description="One SELECT statement. Left out: all rows of all files, which must have the "
        "same columns.",
    )
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
        """Return the revision of the files; None where a query or a view may read other ones."""
        is_database = self.path.suffix.lower() not in READERS and not self.path.is_dir()
        return None if self.query or is_database else revision_of(self.path)

    def read_rows(self, wanted: Collection[str]) -> TextTable:
        """Read the wanted columns of the query's rows, or of all files."""
        try:
            import duckdb
        except ModuleNotFoundError:
            raise DataError(
                f"{self.describe()} is read with DuckDB, which is not installed. Run:"
                f" {install_command('duckdb')}"
            ) from None
        if not is_there(self.path):
            raise DataError(f"There is nothing at {self.path}. Check data.path in the site file.")
        for file in self._files():
            if not file.is_file():  # a pipe or a device, which may never end
                raise DataError(f"{file} is no ordinary file. Give files of the patients.")
        try:
            connection = self._connection()

            def read() -> TextTable:
                with connection:  # closed in the thread that uses it
                    return self._rows(connection, set(wanted))

            return within(self.query_seconds, read, connection.interrupt)
        except TimeoutError:
            raise DataError(
                f"{self.describe()}: the query took longer than {self.query_seconds:g} s. Make it"
                " faster, or raise query_seconds under [data]."
            ) from None
        except (duckdb.Error, pa.ArrowException, OSError) as problem:
            raise DataError(
                f"{self.describe()} cannot be read: {str(problem).splitlines()[0]}. Check data.path"
                " and data.query."
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
                f"The folder {self.path} holds no {', '.join(READERS)} file. Check data.path."
            )
        return files

    def _not_read(self) -> Iterator[str]:
        """Yield a note of other files in the folder that may be intended as data."""
        if not self.path.is_dir():
            return
        read = set(self._files())
        others = [str(f.relative_to(self.path)) for f in files_below(self.path) if f not in read]
        shown = [name for name in others if not Path(name).name.startswith(".")]
        if shown:
            some = ", ".join(shown[:SHOWN]) + (", ..." if len(shown) > SHOWN else "")
            yield f"{len(shown)} files in {self.path} are not read: {some}"

    def _rows(self, connection: "DuckDBPyConnection", wanted: set[str]) -> TextTable:
        for file in self._files():
            # DuckDB would rename a second column age to age_1, and confuses age and Age.
            distinct(file, [name.lower() for name in _header(connection, file)])
        query = self.query or self._union(connection)
        if self.query:
            for file in self._files():
                view = file.stem.replace('"', '""')
                connection.execute(f'CREATE VIEW "{view}" AS SELECT * FROM {_reader(file)}')
        query = query.strip().rstrip(";")
        # On separate lines, because a query may end in a comment.
        limited = connection.sql(f"SELECT * FROM (\n{query}\n) LIMIT {self.max_rows + 1}")
        names = connection.sql(query).columns  # of the SELECT that it is known to be now
        check_query(self.describe(), names)
        table: pa.Table = limited.to_arrow_table()
        check_query(self.describe(), names, table.num_rows, self.max_rows)
        header, columns = text_columns(table, wanted)
        return whole_table(
            self.describe(),
            header,
            columns,
            wanted,
            table.num_rows,
            notes=() if self.query else tuple(self._not_read()),
            footer_lines=None,
        )

    def _union(self, connection: "DuckDBPyConnection") -> str:
        """Return all rows of all files, or of a database's only table. Raises DataError."""
        files = self._files()
        if not files:
            tables = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
            if len(tables) != 1:
                raise DataError(
                    f"{self.describe()} has the tables {', '.join(tables) or '(none)'}. Write"
                    " data.query, a SELECT."
                )
            return f'SELECT * FROM "{tables[0]}"'
        selects = [f"SELECT * FROM {_reader(file, as_text=True)}" for file in files]
        headers = [
            [row[0] for row in connection.execute(f"DESCRIBE {select}").fetchall()]
            for select in selects
        ]
        for file, header in zip(files, headers, strict=True):
            if set(header) != set(headers[0]):
                differing = sorted(set(header) ^ set(headers[0]))
                raise DataError(
                    f"{self.describe()}: {file.name} and {files[0].name} differ in the columns"
                    f" {', '.join(differing[:10])}. Write data.query to say how the files belong"
                    " together."
                )
        return "\nUNION ALL BY NAME\n".join(selects)


def _reader(file: Path, *, as_text: bool = False) -> str:
    """Return DuckDB's function for the file; `as_text`: a CSV's values as they are written."""
    reader = READERS[file.suffix.lower()]
    options = ""
    if reader == CSV:
        options = f", {NO_COMMENTS}, {'all_varchar = true' if as_text else PLAIN_TYPES}"
    return f"{reader}({_quoted(file)}{options})"


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
    return "'" + glob.escape(str(file)).replace("'", "''") + "'"
