"""PymysqlConnection: a branch's connection to MariaDB or MySQL, as a PyMySQL connection.

It is made for one association and is of no use after it. PyMySQL's cursors work on it, whichever class the application
takes: all of them send their statements through the connection's method `query`. That is where the use of the
connection is refused, where the reply to XA START is collected, and where errors are noted for the vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from rm_db.statements import WRITES

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rm_db.mariadb.connection import MariaConnection
    from rm_db.sessions.mariadb_access import MariaAccess

_PASSED: Final = frozenset(
    {"charset", "encoding", "use_unicode", "decoders", "encoders", "conv", "cursorclass", "host", "port", "user", "db"}
    | {"server_version", "server_status", "server_capabilities", "protocol_version", "escape", "escape_string"}
    | {"literal", "_escape_string", "character_set_name", "get_host_info", "get_proto_info", "get_server_info"}
    | {"thread_id", "max_allowed_packet", "collation"}
    | {"Warning", "Error", "InterfaceError", "DatabaseError", "DataError", "OperationalError", "IntegrityError"}
    | {"InternalError", "ProgrammingError", "NotSupportedError"}
)
"""What the driver's own connection answers: it asks the server nothing, and changes nothing."""


class PymysqlConnection:
    """A PyMySQL connection in the middle of a branch. Commit, rollback, close and whatever else ends or leaves the
    branch is refused."""

    def __init__(self, access: MariaAccess, driver: Any) -> None:
        self.access = access
        self._driver = driver
        self._result: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED:
            return getattr(self._driver, name)
        raise AttributeError(f"a branch's PyMySQL connection has no attribute {name!r}")

    @property
    def open(self) -> bool:
        """False once the association has ended, or the connection is broken."""
        return not self.access.is_over and bool(self._driver.open)

    def cursor(self, cursor: Any = None) -> Any:
        """A cursor of PyMySQL's, of the class `cursor`."""
        return (cursor or self._driver.cursorclass)(self)

    def _statement(self) -> AbstractContextManager[MariaConnection]:
        return self.access.statement()

    def _further_result(self) -> AbstractContextManager[MariaConnection]:
        return self.access.further_result()

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Carries out a statement."""
        effects = self.access.admit(sql if isinstance(sql, str) else sql.decode("latin-1"))
        return self._carry_out(sql, effects, unbuffered)

    def insert(self, sql: str) -> int:
        """Carries out an INSERT that the caller has made itself. Its words are not looked at, which takes long where
        many rows are inserted at once."""
        return self._carry_out(sql, WRITES, unbuffered=False)

    def _carry_out(self, sql: str | bytes, effects: int, unbuffered: bool) -> int:
        self._result = None
        with self._statement() as connection:
            affected: int = connection.driver.query(sql, unbuffered)
            self._result = connection.last_result
        self.access.done(effects, affected)
        return affected

    def next_result(self, unbuffered: bool = False) -> int:
        """Goes on to the next result of a procedure."""
        with self._further_result() as connection:
            affected: int = connection.driver.next_result(unbuffered)
            self._result = connection.last_result
        return affected

    def affected_rows(self) -> int:
        """How many rows the last statement has changed."""
        return self._result.affected_rows if self._result is not None else 0

    def insert_id(self) -> int:
        """The number that the last statement has generated for a row."""
        return self._result.insert_id if self._result is not None else 0

    def show_warnings(self) -> Any:
        """The warnings of the last statement."""
        self.query("SHOW WARNINGS")
        return self._result.rows

    def ping(self, reconnect: bool = False) -> None:
        """Asks the server for a sign of life. It never connects anew, because the branch would be lost."""
        del reconnect
        with self._statement() as connection:
            connection.driver.ping(reconnect=False)

    def get_autocommit(self) -> bool:
        """Always off: the transaction manager commits."""
        return False

    # --- what belongs to the transaction manager ------------------------------------------------------------------

    def autocommit(self, value: bool) -> None:
        """Refused, if it is to be on."""
        if value:
            self.access.refuse("autocommit")

    def begin(self) -> NoReturn:
        self.access.refuse("begin()")

    def commit(self) -> NoReturn:
        self.access.refuse("commit()")

    def rollback(self) -> NoReturn:
        self.access.refuse("rollback()")

    def close(self) -> NoReturn:
        self.access.refuse("close()")

    def connect(self, sock: object = None) -> NoReturn:  # noqa: ARG002 — PyMySQL's signature
        self.access.refuse("connect()")

    def select_db(self, db: object) -> NoReturn:  # noqa: ARG002 — PyMySQL's signature
        self.access.refuse("select_db()")

    def kill(self, thread_id: object) -> NoReturn:  # noqa: ARG002 — PyMySQL's signature
        self.access.refuse("kill()")

    def set_character_set(self, charset: object, collation: object = None) -> NoReturn:  # noqa: ARG002 — likewise
        self.access.refuse("set_character_set()")

    def set_charset(self, charset: object) -> NoReturn:  # noqa: ARG002 — PyMySQL's signature
        self.access.refuse("set_charset()")

    def __enter__(self) -> NoReturn:
        self.access.refuse("leaving `with` on the connection, which closes it,")

    def __exit__(self, *_: object) -> None:
        """`with` is refused before."""
