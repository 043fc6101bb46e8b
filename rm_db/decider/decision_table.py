"""DecisionTable: where a deciding database keeps its decisions, next to the data that they are about.

There are three tables. The first open makes those that are missing, if the user may create tables:

    xabridge_decider     one row: decider_id (16 hexadecimal digits, random), and the version of these tables
    xabridge_decision    gtrid (hexadecimal, the primary key), state, record, created
    xabridge_owner       a row for each transaction manager that is, or was, at work: node, incarnation (hexadecimal),
                         process, the time at which its lease ends (0: it has ended), the floor (the sequence below
                         which its transactions are over everywhere; 2^63 - 1 if all are), the ceiling (the sequence
                         that none of them reaches), and the time at which that was noted (seconds since 1970, by this
                         database's clock)

`state` is "decided", with the transaction manager's record, or "rolled back", which is a tombstone without a record. A
row "decided" is inserted in the business transaction itself. A tombstone is inserted by recovery when it settles a
transaction that has no row. The primary key lets only one of the two succeed. While the earlier insertion is not
committed, the database makes the later one wait, so that `settle` waits for a transaction that is deciding.

The version is looked at before anything else is read, and before a table is made; another one is refused. The tables of
xabridge 0.1.0 have none. That version refuses those of this one, because the column `incarnation` is missing.

Hexadecimal text sorts like the octets under every collation, and can be a key in every database.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    Delete,
    Double,
    Insert,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    any_,
    bindparam,
    case,
    delete,
    func,
    insert,
    inspect,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import CreateTable

from rm_db.decider.errors import from_dbapi, is_loss, is_transient, said
from rm_db.decider.sqlite import WAIT_OPTION
from xa import Code, DecisionRecord, NotedIncarnation, Owner, TryAgain, XaError, xa_error
from xa.format_version import version_refusal
from xa.gtrid import OVER
from xa.sql import mariadb, postgres
from xa.sql.statements import SECONDS_1970, missing_columns, upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from sqlalchemy import Connection, Engine, Inspector
    from sqlalchemy.types import TypeEngine

logger = logging.getLogger("xabridge.rm_db")

VERSION: Final = 2
DECIDED: Final = "decided"
ROLLED_BACK: Final = "rolled back"

SETTLE_WAIT_S: Final = 5
"""How long `settle` waits for a transaction that is deciding."""
_SETTLE_TRIES: Final = 5
_MAKE_TRIES: Final = 5
_MAKE_PAUSE_S: Final = 0.05

KEPT_OWNERS: Final = 10_000
"""So many rows of transaction managers are kept for each node. Those of which nothing is left go first, then the oldest
ones: recovery presumes nothing about what has no row."""

END_BATCH: Final = 256
END_AFTER_S: Final = 1.0
MAX_ENDED: Final = 10_000
"""Ended decisions are deleted in batches. If more than this many could not be deleted yet, recovery deletes the
rest."""


class DecisionTable:
    """The tables of one database, reached through an engine that only this object uses."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()
        self._deletes = threading.Lock()
        self._ended: dict[bytes, None] = {}
        self._ended_since = 0.0
        metadata = MetaData()
        self._decider = Table(
            "xabridge_decider",
            metadata,
            Column("singleton", SmallInteger, primary_key=True, autoincrement=False),
            Column("decider_id", String(16), nullable=False),
            Column("version", SmallInteger, nullable=False),
            **_INNODB,
        )

        self.decisions = Table(
            "xabridge_decision",
            metadata,
            Column("gtrid", String(128), primary_key=True),
            Column("state", String(11), nullable=False),
            Column("record", _octets(engine.dialect.name)),
            Column("created", DateTime(timezone=True), nullable=False, server_default=func.current_timestamp()),
            **_INNODB,
        )
        self._owners = Table(
            "xabridge_owner",
            metadata,
            Column("node", String(32), primary_key=True),
            Column("incarnation", String(16), primary_key=True),
            Column("process", String(255), nullable=False),
            Column("until", Double, nullable=False),
            Column("floor", BigInteger, nullable=False),
            Column("ceiling", BigInteger, nullable=False),
            Column("noted", Double, nullable=False),
            **_INNODB,
        )
        self._metadata = metadata

    def ddl(self) -> str:
        """The statements that make the tables, for a message to users who may not create them."""
        dialect = self._engine.dialect
        statements = (
            str(CreateTable(table).compile(dialect=dialect)).strip() for table in self._metadata.tables.values()
        )
        return "; ".join(" ".join(statement.split()) for statement in statements)

    # --- open -------------------------------------------------------------------------------------------------

    def open(self) -> bytes:
        """Makes or checks the tables. Returns the decider's id."""
        for tries_left in reversed(range(_MAKE_TRIES)):
            try:
                self._find_schema()
                self._check_version()
                self._make()
                return self._identify()
            except DBAPIError as error:  # another process is making them, or we may not
                if tries_left == 0 or is_loss(error):
                    raise self._unopened(error) from None
                self._pause(_MAKE_PAUSE_S)
            except PoolTimeout as error:
                raise xa_error(Code.XA_RETRY, f"open: {error}") from None
        raise AssertionError("the last try returns or raises")

    def _unopened(self, error: DBAPIError) -> XaError:
        if is_loss(error):
            return xa_error(Code.XAER_RMFAIL, f"open: {said(error)}")
        if is_transient(error):
            return xa_error(Code.XA_RETRY, f"open: {said(error)}")
        return xa_error(
            Code.XAER_RMERR,
            f"open: the tables for decisions can't be created or used: {said(error)}. Ask an administrator to create "
            f"them, and to grant SELECT, INSERT, UPDATE and DELETE on them: {self.ddl()}",
        )

    def _find_schema(self) -> None:
        with self._engine.connect() as connection:  # the first connection makes a file of SQLite a shared one
            schema = inspect(connection).default_schema_name
        for table in self._metadata.tables.values():
            table.schema = schema

    def _check_version(self) -> None:
        """XAER_RMERR: the tables that are there are another version's."""
        decider = self._decider
        with self._engine.connect() as connection:
            seen = inspect(connection)
            later = [  # looked at before the decider's, which is made first
                table.name
                for table in (self.decisions, self._owners)
                if _is_there(seen, table) and not missing_columns(connection, table)
            ]
            if not _is_there(seen, decider):
                if later:
                    raise xa_error(
                        Code.XAER_RMERR,
                        f"the table {decider.name} is missing, which has the version of {', '.join(later)}: restore it "
                        "from a backup",
                    )
                return

            present = {column["name"] for column in seen.get_columns(decider.name, schema=decider.schema)}
            if decider.c.version.name in present:
                for version in connection.execute(select(decider.c.version)).scalars():
                    _refuse_other(version)
            elif decider.c.decider_id.name in present:
                _refuse_other(None)

    def _make(self) -> None:
        for table in self._metadata.tables.values():
            with self._engine.connect() as connection:
                present = inspect(connection)
                if not present.has_table(table.name, schema=table.schema):
                    table.create(connection)
                    connection.commit()
                    continue
                missing = missing_columns(connection, table)
                engine = None
                if connection.dialect.name in mariadb.DIALECTS:
                    engine = mariadb.other_engine(connection, table.schema or "", table.name)

            if engine is not None:
                raise xa_error(
                    Code.XAER_RMERR,
                    f"the table {table.name} is in {engine}, which has no transactions: make it InnoDB's with "
                    f"ALTER TABLE {table.name} ENGINE = InnoDB",
                )
            if missing:
                raise xa_error(
                    Code.XAER_RMERR,
                    f"the table {table.name} has no column {missing}: it is not ours; "
                    f"rename it, or make the right one with: {self.ddl()}",
                )

    def _identify(self) -> bytes:
        decider = self._decider
        find = select(decider.c.decider_id, decider.c.version)
        with self._transaction() as connection:
            found = connection.execute(find).first()
            if found is None:
                made = insert(decider).values(singleton=1, decider_id=secrets.token_hex(8), version=VERSION)
                connection.execute(made)
                found = connection.execute(find).one()
        _refuse_other(found.version)
        return bytes.fromhex(found.decider_id)

    # --- owners ---------------------------------------------------------------------------------------------------

    def hold(self, owner: Owner, lease_s: float, floor: int = 0, ceiling: int = 0) -> None:
        table = self._owners
        whose = table.c.node == owner.node, table.c.incarnation == owner.incarnation.hex()
        with from_dbapi("hold"), self._transaction() as connection:
            now = _now(connection)
            noted = {"until": now + lease_s if lease_s else 0.0, "floor": floor, "ceiling": ceiling, "noted": now}
            renewed = connection.execute(update(table).where(*whose).values(noted))
            if renewed.rowcount == 0 and lease_s:
                key = {"node": owner.node, "incarnation": owner.incarnation.hex(), "process": owner.process[:255]}
                self._delete_earlier(connection, owner.node)
                connection.execute(insert(table).values(key | noted))

    def _delete_earlier(self, connection: Connection, node: str) -> None:
        """Deletes the rows of a node that are too many."""
        table = self._owners
        order = case((table.c.floor == OVER, 1), else_=0), table.c.noted.desc()
        wanted_first = select(table.c.incarnation).where(table.c.node == node).order_by(*order)
        surplus = list(connection.execute(wanted_first).scalars())[KEPT_OWNERS - 1 :]
        for first in range(0, len(surplus), END_BATCH):
            some = surplus[first : first + END_BATCH]
            connection.execute(delete(table).where(table.c.node == node, table.c.incarnation.in_(some)))

    def incarnations(self, node: str) -> list[NotedIncarnation]:
        table = self._owners
        noted = select(table.c.incarnation, table.c.floor, table.c.ceiling, table.c.noted).where(table.c.node == node)
        with from_dbapi("incarnations"), self._transaction() as connection:
            return [
                NotedIncarnation(bytes.fromhex(incarnation), floor, ceiling, noted_s)
                for incarnation, floor, ceiling, noted_s in connection.execute(noted)
            ]

    def owners(self) -> list[Owner]:
        table = self._owners
        with from_dbapi("owners"), self._transaction() as connection:
            running = select(table.c.node, table.c.incarnation, table.c.process).where(table.c.until > _now(connection))
            return [Owner(node, bytes.fromhex(at), process) for node, at, process in connection.execute(running)]

    # --- decisions --------------------------------------------------------------------------------------------

    def insert_into(self) -> str:
        """The beginning of the statement that decides, up to the values of gtrid, state and record."""
        quote = self._engine.dialect.identifier_preparer.format_table
        return f"INSERT INTO {quote(self.decisions)} (gtrid, state, record)"

    def insertion(self, gtrid: bytes, record: bytes) -> Insert:
        """The statement that decides, for the business transaction."""
        return insert(self.decisions).values(gtrid=gtrid.hex(), state=DECIDED, record=record)

    def settle(self, gtrid: bytes) -> bytes | None:
        decisions = self.decisions
        key = gtrid.hex()
        find = select(decisions.c.state, decisions.c.record).where(decisions.c.gtrid == key)
        for _ in range(_SETTLE_TRIES):
            with from_dbapi("settle"):
                with self._transaction() as connection:
                    row = connection.execute(find).one_or_none()
                if row is not None:
                    return None if row.state == ROLLED_BACK else bytes(row.record)
                if self._insert_tombstone(key):
                    return None
            # another transaction has inserted a row: it is there now, or has been ended since
        raise xa_error(Code.XA_RETRY, f"settle: the row of {key} comes and goes")

    def _insert_tombstone(self, key: str) -> bool:
        """True: the tombstone is durable. False: the transaction has a row already."""
        tombstone = _insert_if_missing(self._engine.dialect.name, self.decisions)
        try:
            with self._transaction() as connection:
                return connection.execute(tombstone.values(gtrid=key, state=ROLLED_BACK)).rowcount == 1
        except IntegrityError:
            return False

    def page(self, after: bytes, count: int) -> list[DecisionRecord]:
        self.flush()
        decisions = self.decisions
        query = select(decisions.c.gtrid, decisions.c.record).where(decisions.c.state == DECIDED)
        if after:
            query = query.where(decisions.c.gtrid > after.hex())
        with self._lock:
            left = set(self._ended)
        with from_dbapi("decisions"), self._transaction() as connection:
            rows = connection.execute(query.order_by(decisions.c.gtrid).limit(count + len(left)))
            found = [DecisionRecord(bytes.fromhex(row.gtrid), bytes(row.record)) for row in rows]
        return [decision for decision in found if decision.gtrid not in left][:count]

    def end(self, gtrids: Sequence[bytes]) -> bool:
        """Notes that these decisions are carried out, without deleting them; whether a deletion is due."""
        ended = self._ended
        with self._lock:
            if not ended:
                self._ended_since = self._clock()
            for gtrid in gtrids:
                if len(ended) < MAX_ENDED:
                    ended[gtrid] = None
            return len(ended) >= END_BATCH or (bool(ended) and self._clock() - self._ended_since > END_AFTER_S)

    def delete_due(self) -> None:
        """Deletes the ended decisions, unless another thread is doing so."""
        if self._deletes.acquire(blocking=False):
            try:
                self._delete()
            finally:
                self._deletes.release()

    def flush(self) -> None:
        """Deletes the ended decisions. If another transaction holds a lock on them, a later call deletes them."""
        with self._deletes:
            self._delete()

    def _delete(self) -> None:
        while True:
            with self._lock:
                batch = list(self._ended)[:END_BATCH]
            if not batch:
                return
            try:
                with from_dbapi("end_decisions"), self._transaction(wait_s=0) as connection:
                    connection.execute(*self._deletion([gtrid.hex() for gtrid in batch]))
            except TryAgain:
                with self._lock:
                    self._ended_since = self._clock()
                return
            with self._lock:
                for gtrid in batch:
                    self._ended.pop(gtrid, None)

    def _deletion(self, keys: list[str]) -> tuple[Delete, Any]:
        """The statement that deletes these rows: with one parameter, where the database has arrays."""
        key = self.decisions.c.gtrid
        if self._engine.dialect.name in mariadb.DIALECTS:  # one by one: for a list it reads, and locks, the whole table
            return delete(self.decisions).where(key == bindparam("ended")), [{"ended": ended} for ended in keys]
        if self._engine.dialect.name == "postgresql":
            return delete(self.decisions).where(key == any_(bindparam("keys", type_=ARRAY(String)))), {"keys": keys}
        return delete(self.decisions).where(key.in_(keys)), {}

    def close(self) -> None:
        """Deletes the ended decisions, if possible, and closes the connections."""
        try:
            self.flush()
        except XaError as error:
            logger.info("ended decisions are left to the next recovery: %s", error)
        self._engine.dispose()

    @contextmanager
    def _transaction(self, wait_s: float | None = None) -> Iterator[Connection]:
        """A transaction whose commit is durable, and which waits for locks at most `wait_s`, or as long as `settle`."""
        wait_s = SETTLE_WAIT_S if wait_s is None else wait_s
        with self._engine.connect().execution_options(**{WAIT_OPTION: wait_s}) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                postgres.force_commit(connection)
                postgres.limit_lock_waits(connection, wait_s)
            elif connection.dialect.name in mariadb.DIALECTS:
                connection.exec_driver_sql(mariadb.lock_timeout(wait_s))
            elif connection.dialect.name == "mssql":
                connection.exec_driver_sql(f"SET LOCK_TIMEOUT {max(1, round(wait_s * 1000))}")
            yield connection


def _is_there(seen: Inspector, table: Table) -> bool:
    return seen.has_table(table.name, schema=table.schema)


def _refuse_other(version: int | None) -> None:
    refusal = version_refusal("the tables for decisions (xabridge_decider)", version, VERSION)
    if refusal is not None:
        raise xa_error(Code.XAER_RMERR, refusal)


def _now(connection: Connection) -> float:
    """Seconds since 1970, by the clock of the database. One that is not in the table tells the time in its sessions'
    time zone, which has to be the same for all of them."""
    seconds = SECONDS_1970.get(connection.dialect.name)
    if seconds is not None:
        return float(connection.execute(select(literal_column(seconds))).scalar_one())
    now: datetime = connection.execute(select(func.current_timestamp())).scalar_one()
    return now.replace(tzinfo=now.tzinfo or UTC).timestamp()


_INNODB: Final[dict[str, Any]] = {f"{dialect}_engine": "InnoDB" for dialect in mariadb.DIALECTS}


def _octets(dialect: str) -> TypeEngine[bytes]:
    """The type of octets of any length."""
    if dialect in mariadb.DIALECTS:
        from sqlalchemy.dialects.mysql import LONGBLOB  # noqa: PLC0415 — a process uses one dialect

        return LONGBLOB()  # a BLOB there ends at 64 KiB
    return LargeBinary()


def _insert_if_missing(dialect: str, table: Table) -> Insert:
    """An insertion that does nothing where the key is there. Elsewhere than here it raises IntegrityError then."""
    if dialect in {"postgresql", "sqlite"}:
        return upsert(dialect, table).on_conflict_do_nothing()
    return insert(table)
