"""DriverConnection: the driver's connection of a branch, for an application that goes past SQLAlchemy
(`tx["shop"].connection.dbapi_connection`).

Only the transaction manager may end the transaction, so it refuses what DB-API 2.0 and the drivers have for that. Its
statements are looked at as those that come through SQLAlchemy are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from rm_db.sessions.connection import BorrowedConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from rm_db.decider.session import SqlBranchConnection, SqlSession

_RESERVED: Final = frozenset(
    {"commit", "rollback", "close", "begin", "autocommit", "set_autocommit", "connect", "change_user"}
    | {"tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback", "tpc_recover", "executescript", "backup"}
    | {"deserialize", "select_db", "kill", "ping", "reset", "cmd_query", "cmd_reset_connection", "set_session"}
    | {"_execute_command", "_force_close", "begin_sessionless_transaction", "resume_sessionless_transaction"}
)
"""What may end the transaction, or leave it: DB-API 2.0, and methods of drivers."""
_STATEMENTS: Final = frozenset({"execute", "executemany", "query"})
"""What carries out the statement that is its first argument."""
_OWN: Final = frozenset({"_driver", "_facade"})


class DriverConnection:
    """A driver's connection in the middle of a branch."""

    def __init__(self, driver: Any, facade: SqlBranchConnection) -> None:
        self._driver = driver
        self._facade = facade

    def __getattr__(self, name: str) -> Any:
        self.check_process()
        value = getattr(self._driver, name)
        if name in _RESERVED and callable(value):
            return lambda *_, **__: self._refuse(f"{name}()")
        if name in _STATEMENTS:
            return self._admitted(value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        elif name in {"autocommit", "isolation_level"}:
            self._refuse(name)
        else:
            setattr(self._driver, name, value)

    def __enter__(self) -> NoReturn:
        self._refuse("leaving `with` on the connection, which completes it,")

    def __exit__(self, *_: object) -> None:
        """`with` is refused before."""

    def cursor(self, *args: Any, **options: Any) -> DriverCursor:
        """A cursor of the driver's."""
        self.check_process()
        return DriverCursor(self._driver.cursor(*args, **options), self)

    def _admitted(self, carry_out: Callable[..., Any]) -> Callable[..., Any]:
        """The driver's method, for statements that leave the transaction as it is."""

        def checked(statement: Any, *args: Any, **options: Any) -> Any:
            text = statement if isinstance(statement, str) else bytes(statement).decode("latin-1")
            with self._facade.admitted(text):
                result = carry_out(statement, *args, **options)
            return DriverCursor(result, self) if hasattr(result, "fetchone") else result

        return checked

    def _refuse(self, what: str) -> NoReturn:
        self._facade.refuse(what)

    def check_process(self) -> None:
        """XAER_PROTO in a fork of the process that has the transaction."""
        self._facade.check_process()


class DriverCursor:
    """A cursor of a driver's connection in the middle of a branch."""

    def __init__(self, cursor: Any, connection: DriverConnection) -> None:
        object.__setattr__(self, "_cursor", cursor)
        object.__setattr__(self, "connection", connection)

    def __getattr__(self, name: str) -> Any:
        connection = self.connection
        if name == "executescript":
            return getattr(connection, name)
        connection.check_process()
        value = getattr(self._cursor, name)
        return connection._admitted(value) if name in _STATEMENTS else value  # noqa: SLF001 — its own cursor

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._cursor, name, value)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.connection.check_process()
        return next(self._cursor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cursor.close()


class LentConnection(BorrowedConnection):
    """A driver's connection that SQLAlchemy may use as it is, and the application as a `DriverConnection`."""

    __slots__ = ("_driver", "_facade")

    def __init__(self, driver: Any, facade: SqlBranchConnection, session: SqlSession) -> None:
        super().__init__(DriverConnection(driver, facade), session)
        self._driver = driver
        self._facade = facade

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        lender = self._driver if self._facade.is_executing else self.dbapi_connection
        return lender.cursor(*args, **kwargs)
