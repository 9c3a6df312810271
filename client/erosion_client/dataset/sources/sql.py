"""Patients in a SQL database, through SQLAlchemy."""

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import unquote

from pydantic import Field, model_validator

from erosion_client.dataset.sources.data_source import TableSource, check_query, within
from erosion_client.dataset.text_table import ColumnEncoder, TextTable, whole_table
from erosion_client.finding import Finding, failed, ok, warning
from erosion_common.errors import DataError
from erosion_common.support.files import read_named
from erosion_common.support.software import install_command

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Engine
    from sqlalchemy.engine import URL

BATCH_ROWS = 5_000  # fetched at a time
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
    password_variable: str | None = Field(
        default=None, description="Environment variable that holds the password."
    )
    connect_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Seconds that connecting may take."
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
            raise ValueError(
                "url holds a password; leave it out there, and name password_file or"
                " password_variable"
            )
        if "://" not in self.url:
            raise ValueError("url must be written like postgresql://reader@host:5432/database")
        if self.password_file is not None and self.password_variable is not None:
            raise ValueError("password_file and password_variable are both given; keep one")
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
            yield failed("data", problem.problem.what, problem.problem.remedy)
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
                    f"{self.describe()} was not answered within {self.query_seconds:g} s. Make it"
                    " faster (indexes, fewer rows), or raise query_seconds under [data]."
                ) from None
            raise DataError(
                f"{self.describe()} failed: {self._reason(problem)}. Correct data.query;"
                " try it in the database's own client first."
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
                raise DataError(f"{self.describe()} gives no table. Write one SELECT.")
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
        return whole_table(self.describe(), header, columns, wanted, num_rows, footer_lines=None)

    def _engine(self) -> "Engine":
        try:
            from sqlalchemy import create_engine
            from sqlalchemy.exc import ArgumentError, NoSuchModuleError
            from sqlalchemy.pool import NullPool
        except ModuleNotFoundError:
            raise DataError(
                "A database is read with SQLAlchemy, which is not installed",
                remedy=f"Run: {install_command('sql')}",
            ) from None
        try:
            url = self._full_url()
            connect: dict[str, Any] = {}
            if url.drivername == "postgresql+psycopg":
                limit = int(self.query_seconds * 1000)
                connect = {
                    "connect_timeout": max(int(self.connect_seconds), 1),
                    "options": f"-c statement_timeout={limit} -c default_transaction_read_only=on",
                }
            return create_engine(url, poolclass=NullPool, connect_args=connect)
        except (ModuleNotFoundError, NoSuchModuleError) as problem:
            raise DataError(
                f"{self.describe()}: there is no driver for it ({problem})",
                remedy=f"For PostgreSQL run: {install_command('sql')}; for another database install"
                " the driver that its url names.",
            ) from None
        except (ArgumentError, *DRIVER_ERRORS):
            raise DataError(
                f"{self.describe()}: url is not one that SQLAlchemy can read",
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
        if self.password_variable is not None:
            if self.password_variable not in os.environ:
                raise DataError(
                    f"The environment has no variable {self.password_variable}",
                    remedy="Set it to the database's password where the client starts.",
                )
            return os.environ[self.password_variable]
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
            return within(self.connect_seconds, engine.connect, lambda: None)
        except TimeoutError:
            reason = f"no answer within {self.connect_seconds:g} s"
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
