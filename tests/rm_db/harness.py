"""The contract suite's harness for PostgreSQL, two-phase and deciding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from rm_db import PostgresResource
from tests.contract.harness import Capabilities

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from rm_db.wire import Wire
    from tests.postgres import Postgres
    from xa import Registrar, ResourceManager, Xid

CAPABILITIES = Capabilities(
    branches_shared=False,
    joins_active=False,
    heuristics=False,
    expires=False,
    max_prepared=50,
)


class PostgresHarness:
    """One database of the session's server."""

    capabilities = CAPABILITIES
    wrong_open_string = "postgresql://127.0.0.1:1/nowhere?xa_nonsense=1"

    def __init__(self, server: Postgres, *, settings: str = "") -> None:
        self._server = server
        self.url = server.create_database()
        self.open_string = self.url + settings
        self.admin("CREATE TABLE work (key text PRIMARY KEY)")
        self._clients: list[Any] = []

    def admin(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What a statement of the superuser answers."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def new(self, registrar: Registrar) -> PostgresResource:
        """As `Harness` says."""
        rm = PostgresResource(registrar)
        self._clients.append(rm)
        return rm

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        """As `Harness` says."""
        session = rm.session(rmid)
        try:
            session.execute(text("INSERT INTO work VALUES (:key)"), {"key": key})
        except OperationalError as error:
            if not error.connection_invalidated:
                raise
            # SQLAlchemy has told it in its own words; the resource manager tells it at the end

    def read(self, rm: ResourceManager, rmid: int) -> None:
        """As `Harness` says."""
        rm.session(rmid).execute(text("SELECT count(*) FROM work")).scalar_one()

    def committed(self) -> AbstractSet[str]:
        """As `Harness` says."""
        return {key for (key,) in self.admin("SELECT key FROM work")}

    def crash(self, rm: ResourceManager) -> None:
        """As `Harness` says: the process is gone, and what it had connected to the server."""
        self.disconnect(rm)
        for wire in wires(rm):
            wire.close()
        self._clients.remove(rm)

    def disconnect(self, rm: ResourceManager) -> None:
        """As `Harness` says."""
        pids = [wire.pgconn.backend_pid for wire in wires(rm)]
        self.admin("SELECT pg_terminate_backend(pid, 60000) FROM unnest(%s::int[]) pid", pids)

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        """PostgreSQL keeps nothing of a branch that an operator has completed."""
        raise NotImplementedError

    def expire(self, xid: Xid) -> None:
        """Branches have no timeout of their own."""
        raise NotImplementedError

    def go_down(self) -> None:
        """As `Harness` says."""
        self._server.stop(immediate=True)

    def come_back(self) -> None:
        """As `Harness` says."""
        self._server.start()

    def leaks(self) -> list[str]:
        """As `Harness` says."""
        left = [
            f"prepared: {gid}"
            for (gid,) in self.admin("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        ]
        for rm in self._clients:
            left += [f"connection: {wire}" for wire in wires(rm)]
        left += [
            f"backend: {query}"
            for (query,) in self.admin(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND state <> 'idle' AND application_name = 'xabridge'"
            )
        ]
        return left


def wires(rm: Any) -> list[Wire]:
    """The connections that an instance has."""
    if rm._server is None:
        return []
    working = [branch.work.wire for branch in rm._branches.all() if branch.work is not None]
    return [*rm._server.pool._idle, *filter(None, working)]
