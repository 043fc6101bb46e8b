"""A database that rows of a pipeline go into: PostgreSQL or MariaDB, which prepare them, or a PostgreSQL that decides
and prepares nothing. Its tables are `orders` and, with a key, `totals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from sqlalchemy import make_url

from tests.xabridge.pipeline.core.environment import ALERTS, TABLE, CoreEnvironment
from xabridge.pipeline.core import Attempt, SinkPlan, SinkReport, TableTarget
from xabridge.pipeline.core.task.mariadb_session import connect
from xabridge.testing.mariadb import MariaDB

KINDS: Final = ("shop", "decider", "maria")
MARIADB: Final = (
    "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, body longtext CHARACTER SET utf8mb4 NOT NULL)",
    "CREATE TABLE totals (product varchar(20) PRIMARY KEY, total bigint, note varchar(60), raw varbinary(9))",
)


@dataclass
class SinkDatabase:
    """One of `KINDS`, for the pipeline of `env`."""

    env: CoreEnvironment
    kind: str
    url: str
    rows: TableTarget = TABLE
    patience_s: float = 10.0
    """How long locks of `totals` are waited for; in MariaDB whole seconds."""

    @property
    def resource(self) -> str:
        """Its name."""
        return self.rows.resource

    def totals(self, update: str = "") -> TableTarget:
        """The table with a key, and how rows of one key meet: in the words of PostgreSQL."""
        if self.kind != "maria":
            return TableTarget("shop", "totals", ("product",), update, self.patience_s)
        for name in ("total", "note"):
            update = update.replace(f"totals.{name}", name).replace(f"excluded.{name}", f"VALUES({name})")
        return TableTarget("maria", "totals", ("product",), update, max(1.0, self.patience_s))

    @property
    def added(self) -> TableTarget:
        """The same, where totals are added."""
        return self.totals("total = totals.total + excluded.total")

    def write(self, plan: SinkPlan, rows: Sequence[str], attempt: Attempt) -> SinkReport:
        """What a task writes: each row into the table and as a message, and how many there are into `totals`."""
        tea = [("tea", 1)] * len(rows)
        return self.env.task(plan, attempt, (self.rows, rows), (self.added, ("product", "total"), tea), (ALERTS, rows))

    def connect(self) -> Any:
        """A connection, whose transaction ends with it."""
        return connect(self.url) if self.kind == "maria" else psycopg.connect(self.url)

    def ask(self, query: str) -> list[Any]:
        """The rows that a query finds."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def change(self, *statements: str) -> None:
        """Statements of an administrator."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def table(self) -> list[str]:
        """The rows that were written."""
        return sorted(body for (body,) in self.ask("SELECT body FROM orders"))

    def check(self, rows: Sequence[str]) -> None:
        """Each row is there once, and once at the address, and nothing is prepared but source branches."""
        assert self.table() == sorted(self.env.queued("alerts")) == sorted(rows)
        assert self.ask("SELECT product, total FROM totals") == [("tea", len(rows))]
        assert not [branch for branch in self.env.prepared() if not branch.startswith("src/")]


def sink_database(env: CoreEnvironment, kind: str, mariadb: MariaDB | None) -> SinkDatabase:
    """One with empty tables. MariaDB is the further resource `maria`."""
    if mariadb is None:
        if kind == "decider":
            env.log, env.decides = env.database, True
        return SinkDatabase(env, kind, env.database)
    url = mariadb.create_database("mariadb")
    mariadb.admin(f"USE {make_url(url).database}", *MARIADB)
    env.others = (("maria", url),)
    return SinkDatabase(env, kind, url, TableTarget("maria", "orders", lock_timeout_s=1.0))
