"""These harnesses run the contract suite: PostgreSQL in two phases, PostgreSQL and SQLite as the one that decides."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from rm_db import DecidingDatabase, MariaResource, PostgresResource
from rm_db.mariadb.connection import MariaConnection
from rm_db.postgres.database import PostgresDatabase
from rm_db.postgres.libpq import LibpqConnection
from rm_db.postgres.resource_manager import PostgresDriver
from tests.postgres import Postgres
from tests.rm_db.proxy import Proxy
from xa import BranchRolledBack, Code, DecidingResource, Registrar, ResourceManager, Xid
from xabridge.testing.contract.client import Client, refused
from xabridge.testing.contract.harness import Capabilities
from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60
BACKEND_ENDS_S = 10
"""A backend of PostgreSQL whose connection is closed needs a moment until it sees that."""


class _Harness:
    """What all of them share. `admin` is what a statement of the superuser answers, on a connection that the harness
    keeps: most tests look at the database several times."""

    capabilities = Capabilities(
        branches_shared=False, joins_active=False, heuristics=False, expires=False, max_prepared=50
    )
    manager: Callable[[Registrar], Any]
    open_string: str
    proxy: Proxy
    admin: Callable[..., list[tuple[Any, ...]]]

    def __init__(self) -> None:
        self._clients: list[Any] = []
        self._kept: Any = None

    def close(self) -> None:
        """The end, also of clients that a test has not closed."""
        for rm in self._clients:
            self.let_go(rm)
        self.proxy.close()
        self._forget()

    def _forget(self) -> None:
        """Closes the connection that is kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def new(self, registrar: Registrar) -> Any:
        rm = self.manager(registrar)
        self._clients.append(rm)
        return rm

    def let_go(self, rm: Any) -> None:
        """Closes what a client that is not used any more has connected."""
        raise NotImplementedError(rm.name)

    def crash(self, rm: ResourceManager) -> None:
        """The process is gone, and what it had connected to the server."""
        self.disconnect(rm)
        self.let_go(rm)
        self._clients.remove(rm)

    def disconnect(self, rm: ResourceManager) -> None:
        """Breaks the connections of a client."""
        raise NotImplementedError(rm.name)

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        session = rm.session(rmid)
        try:
            session.execute(text("INSERT INTO work VALUES (:key)"), {"key": key})
        except OperationalError as error:
            if not error.connection_invalidated:
                raise
            # SQLAlchemy has told it in its own words; the resource manager tells it at the end

    def read(self, rm: ResourceManager, rmid: int) -> None:
        rm.session(rmid).execute(text("SELECT count(*) FROM work")).scalar_one()

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        """A database keeps nothing of a branch that an operator has completed."""
        raise NotImplementedError(f"{xid}, commit={commit}")

    def narrow(self) -> None:
        self.open_string += ("&" if "?" in self.open_string else "?") + "xa_pool_size=1&xa_pool_wait_s=1"

    def expire(self, xid: Xid) -> None:
        """Branches have no timeout of their own."""
        raise NotImplementedError(str(xid))


class _Deciding(_Harness):
    """The same, deciding."""

    manager: Callable[[Registrar], Any] = DecidingDatabase

    def hold_the_reply(self) -> None:
        """To the commit."""
        self.proxy.hold_replies()

    def lose_decide(self, rm: DecidingResource, xid: Xid, rmid: int, record: bytes, *, before: bool) -> Code:
        if before:
            self.disconnect(rm)
            return rm.decide(xid, rmid, record)
        self.hold_the_reply()
        cutter = threading.Thread(target=self._cut_when_decided, args=(xid,))
        cutter.start()
        try:
            return rm.decide(xid, rmid, record)
        finally:
            cutter.join()

    def _cut_when_decided(self, xid: Xid) -> None:
        while not self.admin("SELECT gtrid FROM xabridge_decision WHERE gtrid = %s", xid.gtrid.hex()):
            pass
        self.proxy.cut()

    def decisions(self) -> list[str]:
        """Those that have been left."""
        return [f"{state}: {gtrid}" for gtrid, state in self.admin("SELECT gtrid, state FROM xabridge_decision")]


class PostgresHarness(_Harness):
    """A database, which several tests may have one after the other, behind a proxy."""

    manager: Callable[[Registrar], Any] = PostgresResource
    wrong_open_string = "postgresql://127.0.0.1:1/nowhere?xa_nonsense=1"

    def __init__(self, server: Postgres, url: str, settings: str = "") -> None:
        super().__init__()
        self._server = server
        self.url = url
        self.proxy = Proxy(url)
        self.open_string = self.proxy.url + settings
        self.admin("CREATE TABLE IF NOT EXISTS work (key text PRIMARY KEY)")

    def admin(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        if self._kept is None:
            self._kept = psycopg.connect(self.url, autocommit=True, options="-c lock_timeout=10s")
        try:
            cursor = self._kept.execute(statement.encode(), parameters or None)
        except psycopg.OperationalError:
            if not self._kept.closed:
                raise
            self._forget()  # the server was away
            return self.admin(statement, *parameters)
        return cursor.fetchall() if cursor.description else []

    def set_server(self, name: str, value: str) -> None:
        """A setting of the whole server, once new sessions have it."""
        self.admin(f"ALTER SYSTEM SET {name} = {value}")
        self.admin("SELECT pg_reload_conf()")
        while self.admin(f"SHOW {name}") != [(value,)]:
            self._forget()
        self._forget()

    def committed(self) -> AbstractSet[str]:
        return {key for (key,) in self.admin("SELECT key FROM work")}

    def let_go(self, rm: Any) -> None:
        let_go(rm)

    def disconnect(self, rm: ResourceManager) -> None:
        pids = [connection.pgconn.backend_pid for connection in connections(rm)]
        self.admin("SELECT pg_terminate_backend(pid, 60000) FROM unnest(%s::int[]) pid", pids)

    def go_down(self) -> None:
        self._server.stop(immediate=True)

    def come_back(self) -> None:
        self._server.start()

    def leaks(self) -> list[str]:
        prepared = self.admin("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        left = [f"prepared: {gid}" for (gid,) in prepared]
        for rm in self._clients:
            left += [f"connection: {connection.pgconn.backend_pid}" for connection in connections(rm)]
        deadline = time.monotonic() + BACKEND_ENDS_S
        while at_work := self.admin(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND state <> 'idle' AND application_name = 'xabridge'"
        ):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return left + [f"backend at work: {query}" for (query,) in at_work]


class PostgresDeciderHarness(_Deciding, PostgresHarness):
    """The same, deciding."""

    wrong_open_string = "decider+postgresql://127.0.0.1:1/nowhere?xa_pool_size=0"

    def leaks(self) -> list[str]:
        return super().leaks() + self.decisions()


class PooledDeciderHarness(PostgresDeciderHarness):
    """The same behind a pooler in transaction mode, where no session is anybody's own."""

    def __init__(self, server: Postgres, url: str, pooled_url: str) -> None:
        super().__init__(server, url)
        self.proxy.close()
        self.proxy = Proxy(pooled_url)
        self.open_string = self.proxy.url + "?xa_pooler=transaction"

    def disconnect(self, rm: ResourceManager) -> None:  # noqa: ARG002 — the server does not know whose a connection is
        """Cuts what anybody has connected to the pooler."""
        self.proxy.cut()


class MariaHarness(_Harness):
    """A database of MariaDB's, behind a proxy."""

    capabilities = replace(_Harness.capabilities, format_ids=False)
    manager: Callable[[Registrar], Any] = MariaResource
    wrong_open_string = "mariadb://127.0.0.1:1/nowhere?xa_nonsense=1"

    def __init__(self, server: MariaDB, url: str) -> None:
        super().__init__()
        self._server = server
        self._url = make_url(url)
        self.proxy = Proxy(url)
        self.open_string = self.proxy.url
        self.admin("CREATE TABLE IF NOT EXISTS work (`key` varchar(100) PRIMARY KEY) ENGINE = InnoDB")

    def admin(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        if self._kept is None:
            self._kept = self.connect()
        try:
            with self._kept.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return list(cursor.fetchall())
        except pymysql.OperationalError:
            if self._kept.open:
                raise
            self._kept = None  # the server was away
            return self.admin(statement, *parameters)

    def connect(self) -> pymysql.Connection[Any]:
        """Somebody else's connection, which commits each statement."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self._url.port or 0,
            user=self._url.username,
            password=self._url.password or "",
            database=self._url.database,
            autocommit=True,
            ssl_disabled=True,  # PyMySQL would read all certificates of the system for it
        )

    def committed(self) -> AbstractSet[str]:
        return {key for (key,) in self.admin("SELECT `key` FROM work")}

    def let_go(self, rm: Any) -> None:
        abandon(rm)
        database = rm.driver.unit_driver.database
        if database is not None:
            database.close()

    def disconnect(self, rm: ResourceManager) -> None:
        """Cuts what anybody has connected through the proxy, and waits until the server has rolled it back."""
        del rm  # the server does not know whose a connection is
        self.proxy.cut()
        while self._at_work():
            pass

    def _at_work(self) -> list[tuple[Any, ...]]:
        """Connections to the database, beside the one that asks."""
        return self.admin(
            "SELECT id, info FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )

    def go_down(self) -> None:
        self._server.stop(immediate=True)

    def come_back(self) -> None:
        self._server.start()

    def leaks(self) -> list[str]:
        left = [f"prepared: {row}" for row in self.admin("XA RECOVER")]
        for rm in self._clients:
            left += [f"connection: {one.thread_id}" for one in maria_connections(rm)]
        at_work = "SELECT trx_mysql_thread_id, trx_query FROM information_schema.innodb_trx"
        if self._server.ask(at_work):  # the table is made anew only if nobody has read it for a tenth of a second
            time.sleep(0.2)
        return left + [f"at work: {row}" for row in self._server.ask(at_work)]


class MariaDeciderHarness(_Deciding, MariaHarness):
    """The same, deciding."""

    wrong_open_string = "mysql+pymysql://127.0.0.1:1/nowhere?xa_pool_size=0"

    def let_go(self, rm: Any) -> None:
        abandon(rm)
        backend = rm.driver.unit_driver.backend
        if backend is not None:
            backend._engine.dispose()
            backend.table._engine.dispose()

    def hold_the_reply(self) -> None:
        self.proxy.hold_replies_to(b"COMMIT")

    def leaks(self) -> list[str]:
        return self.decisions()


class SqliteDeciderHarness(_Deciding):
    """A database in a file, to which there is no connection that could be lost."""

    wrong_open_string = "sqlite://"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "work.sqlite"
        self.open_string = f"sqlite:///{self._path}"
        self.admin("CREATE TABLE work (key text PRIMARY KEY)")

    def admin(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def committed(self) -> AbstractSet[str]:
        return {key for (key,) in self.admin("SELECT key FROM work")}

    def crash(self, rm: ResourceManager) -> None:
        """The operating system closes the files of the process."""
        abandon(rm)
        rm.driver.unit_driver.backend.close()  # type: ignore[attr-defined]

    def go_down(self) -> None:
        """A file is always there."""
        raise NotImplementedError

    come_back = go_down

    def leaks(self) -> list[str]:
        return self.decisions()


def vote(client: Client, xid: Xid) -> BranchRolledBack:
    """Ends and prepares; both may say no, and the first to say so says why."""
    try:
        client.end(xid)
        with pytest.raises(BranchRolledBack) as raised:
            client.prepare(xid)
        no = raised.value
    except BranchRolledBack as told:
        client.retrying("rollback", xid)
        no = told
    assert no.xid == xid
    with refused(Code.XAER_NOTA):
        client.rollback(xid)
    return no


def let_go(rm: Any) -> None:
    """Closes what a client that is not used any more has connected."""
    for connection in connections(rm):
        connection.close()
    backend = getattr(rm.driver.unit_driver, "backend", None)
    if backend is not None:
        backend.table._engine.dispose()


def abandon(rm: Any) -> None:
    """Gives up the connections of an instance's unprepared branches."""
    for branch in rm.driver._branches.values():
        branch.unit.abandon()


def connections(rm: Any) -> list[LibpqConnection]:
    """The connections that an instance has to PostgreSQL."""
    driver = rm.driver.unit_driver
    database = driver.database if isinstance(driver, PostgresDriver) else getattr(driver.backend, "_database", None)
    if not isinstance(database, PostgresDatabase):
        return []
    working = [branch.unit.connection for branch in rm.driver._branches.values()]
    return [*database.pool._idle, *filter(None, working)]


def maria_connections(rm: Any) -> list[MariaConnection]:
    """The connections that an instance has to MariaDB."""
    database = rm.driver.unit_driver.database
    if database is None:
        return []
    working = [branch.unit.connection for branch in rm.driver._branches.values()]
    return [*database.pool._idle, *database.parked._parked.values(), *filter(None, working)]
