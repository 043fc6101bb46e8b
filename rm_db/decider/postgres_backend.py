"""PostgresBackend: a deciding PostgreSQL, through psycopg.

The work is a `PostgresTransaction`, the same class that `PostgresResource` prepares, and the decision is sent in one
message with the commit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL

from rm_db.address import DECIDER_PREFIX
from rm_db.decider.decision_table import DECIDED, DecisionTable
from rm_db.decider.engine import TABLE_CONNECTIONS, make_engine
from rm_db.postgres.database import PostgresDatabase
from rm_db.postgres.transaction import PostgresTransaction
from rm_db.sessions.postgres import PostgresSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.address import Address
    from xa import Code, Xid
    from xa.driver import Pending
    from xa.pool import Connections


class PostgresBackend:
    """The `DeciderBackend` of PostgreSQL."""

    def __init__(self, address: Address) -> None:
        url = address.url.removeprefix(DECIDER_PREFIX)
        self._database = PostgresDatabase(replace(address, url=url))
        self.table = DecisionTable(
            make_engine(
                URL.create("postgresql+psycopg"),
                TABLE_CONNECTIONS,
                address.pool_wait_s,
                creator=partial(self._database.connect, address.reply_s),
            )
        )
        self._into = b""

    def reach(self) -> None:
        self._database.probe()

    def begin(self, xid: Xid, *, wait: bool) -> PostgresTransaction:
        connection = self._database.pool.acquire(work=True, wait=wait)
        return PostgresTransaction(xid, self._database, connection, PostgresSession).begin()

    def begins_at_once(self) -> bool:
        return self._database.pool.is_idle

    def connections(self) -> Connections | None:
        return self._database.pool.usage

    def decide(self, unit: PostgresTransaction, gtrid: bytes, record: bytes) -> Code:
        if not self._into:
            self._into = self.table.insert_into().encode()
        # a literal: calling decode() costs the server as much as the rest of the insertion
        values = f" VALUES ('{gtrid.hex()}', '{DECIDED}', E'\\\\x{record.hex()}')"
        return unit.decide(self._into + values.encode("ascii"))

    def first(self, outstanding: Sequence[Any]) -> Pending:
        return self._database.outstanding.first(outstanding)

    def break_off(self) -> None:
        self._database.break_off()

    def close(self) -> None:
        self.table.close()
        self._database.close()
