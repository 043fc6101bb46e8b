"""PostgresResource: PostgreSQL as a resource manager, by PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED.

`xa.switch` and `xa.branches` carry out the XA verbs. What is PostgreSQL's own is here and in the modules beside this
one: `PostgresTransaction` is a branch until it is prepared, and `PreparedTransactions` completes and lists it
afterwards.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from rm_db.address import Address
from rm_db.postgres.database import Facts, PostgresDatabase
from rm_db.postgres.diagnosis import diagnose_postgres
from rm_db.postgres.transaction import PostgresTransaction
from xa import TMUSEASYNC, Code, xa_error
from xa.branches import Branches, Part, UnitDriver
from xa.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rm_db.connections.steps import Steps
    from rm_db.postgres.prepared_transactions import PreparedTransaction
    from xa import Registrar, Xid
    from xa.connection_usage import Connections
    from xa.diagnosis import Diagnosis
    from xa.driver import Pending
    from xa.holdings import InDoubtBranch

logger = logging.getLogger("xabridge.rm_db")


class PostgresDriver(UnitDriver[PostgresTransaction]):
    """One database, behind `xa.switch.Switch`."""

    name = "xabridge PostgreSQL"
    flags = TMUSEASYNC

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self.database: PostgresDatabase | None = None
        self._url = ""

    def open(self, open_string: str) -> None:
        if self.database is not None:
            if open_string != self._url:
                raise xa_error(Code.XAER_INVAL, "open: was opened with another open string; close it first")
            _check_prepares(self.database.probe(), self.database.address)
            return
        database = PostgresDatabase(Address.parse(open_string))
        try:
            _check_prepares(database.probe(), database.address)
        except BaseException:
            database.close()
            raise
        self.database, self._url = database, open_string

    def close(self) -> None:
        self.opened.close()
        self.start_over()

    def break_off(self) -> None:
        if self.database is not None:
            self.database.break_off()

    @property
    def opened(self) -> PostgresDatabase:
        """The database; XAER_PROTO unless it is open."""
        if self.database is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self.database

    def begins_at_once(self) -> bool:
        return self.database is not None and self.database.pool.is_idle

    def begin(self, xid: Xid, *, wait: bool) -> PostgresTransaction:
        return self.opened.begin(xid, wait=wait)

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        database = self.opened
        return database.outstanding.carry_out(xid, database.prepared.commit(xid), later=later)

    def rollback_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        database = self.opened
        return database.outstanding.carry_out(xid, database.prepared.rollback(xid), later=later)

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        return self.opened.outstanding.carry_out(xid, self._forget(xid), later=later)

    def _forget(self, xid: Xid) -> Steps[Code]:
        is_prepared = yield from self.opened.prepared.exists(xid)
        if is_prepared:
            raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
        raise xa_error(Code.XAER_NOTA, "forget: PostgreSQL completes no branch on its own, none is remembered", xid)

    def scan(self, page: int) -> Iterator[Xid]:
        del page  # one query lists them all, so that completed branches make it skip no others
        return iter(self.opened.outstanding.run(self.opened.prepared.scan()))

    def reports(self, page: int) -> Iterator[InDoubtBranch]:
        """The same branches, with what they hold."""
        del page
        return iter(self.opened.outstanding.run(self.opened.prepared.in_doubt()))

    def first(self, outstanding: Sequence[Any]) -> Pending:
        return self.opened.outstanding.first(outstanding)


class PostgresResource(Switch[Part[PostgresTransaction]]):
    """One PostgreSQL database. Open string: `postgresql://…`, see `rm_db.address`."""

    carries_out_sql: Final = True

    def __init__(self, registrar: Registrar | None = None) -> None:
        self._postgres = PostgresDriver()
        super().__init__(Branches(self._postgres), registrar)

    @property
    def max_prepared(self) -> int:
        """How many transactions the server lets be prepared at a time."""
        return self._postgres.opened.facts.max_prepared

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self.page("in_doubt", self._postgres.reports, rmid, flags, count)

    def prepared_transactions(self, rmid: int, *, everybodys: bool = False) -> Sequence[PreparedTransaction]:
        """The branches that could be recovered here, with the locks that they hold. With `everybodys` also the prepared
        transactions of other databases, roles and naming schemes on this server, none of which is ever touched."""
        database = self._postgres.opened
        return self.call(
            "prepared_transactions",
            rmid,
            lambda: database.outstanding.run(database.prepared.listed(everybodys=everybodys)),
        )

    def connections(self) -> Connections | None:
        database = self._postgres.database
        return None if database is None else database.pool.usage

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_postgres(open_string, two_phase=True)


def _check_prepares(facts: Facts, address: Address) -> None:
    if facts.max_prepared == 0:
        raise xa_error(
            Code.XAER_RMERR,
            f"max_prepared_transactions is 0: set it to at least {2 * address.pool_size} (transactions at work, "
            'and orphans) and restart PostgreSQL, or use mode = "decider"',
        )
    if facts.max_prepared < address.pool_size:
        logger.warning(
            "max_prepared_transactions is %d, less than the %d transactions that may be at work here (xa_pool_size)",
            facts.max_prepared,
            address.pool_size,
        )
