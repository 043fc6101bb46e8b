"""This module has an engine that executes nothing: it compiles each statement for a dialect whose database is not here,
and keeps the text. So a test sees that the dialect has a form for everything that we ask of it, and what that form
is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import Dialect
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite
from sqlalchemy.sql.elements import ClauseElement


def dialect(name: str) -> Dialect:
    """A dialect, as of a server of today."""
    made: Any = {
        "oracle": oracle.oracledb.dialect,
        "mssql": mssql.pyodbc.dialect,
        "mysql": mysql.pymysql.dialect,
        "postgresql": postgresql.psycopg.dialect,
        "sqlite": sqlite.pysqlite.dialect,
    }[name]()
    made.server_version_info = {"oracle": (19, 0), "mssql": (15, 0), "mysql": (8, 0, 36)}.get(name, (15, 0))
    made._supports_offset_fetch = made.deprecate_large_types = True  # as the first connection to SQL Server finds out
    return made  # type: ignore[no-any-return]


class Recording:
    """The engine, and its connection. `answers` are the rows of the next statements, each a list; [] where they end."""

    def __init__(self, name: str) -> None:
        self.dialect = dialect(name)
        self.statements: list[str] = []
        self.answers: list[list[Any]] = []

    def connect(self) -> Recording:
        return self

    def execution_options(self, **_: object) -> Recording:
        return self

    @contextmanager
    def begin(self) -> Iterator[Recording]:
        yield self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def dispose(self) -> None:
        """It has no connections."""

    def execute(self, statement: ClauseElement, parameters: Any = None) -> Answer:
        """Compiles it."""
        first = parameters[0] if isinstance(parameters, list) and parameters else parameters
        names = list(first) if first and not hasattr(statement, "whereclause") else None
        if not parameters or names is None:
            compiled = statement.compile(dialect=self.dialect)
        else:
            compiled = statement.compile(dialect=self.dialect, column_keys=names)
        self.statements.append(" ".join(str(compiled).split()))
        return Answer(self.answers.pop(0) if self.answers else [])

    def exec_driver_sql(self, statement: str) -> None:
        self.statements.append(statement)


class Answer:
    """The result of a statement."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.rowcount = len(rows)

    def scalars(self) -> list[Any]:
        return self._rows

    def scalar(self) -> Any:
        return self._rows[0] if self._rows else None

    scalar_one = scalar

    def one_or_none(self) -> Any:
        return self.scalar()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)
