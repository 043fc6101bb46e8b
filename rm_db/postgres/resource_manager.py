"""PostgresResource: PostgreSQL as a resource manager, by PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rm_db.postgres.database import PostgresDatabase
from rm_db.postgres.diagnosis import diagnose_postgres
from rm_db.postgres.transaction import PostgresTransaction
from rm_db.server.resource_manager import TwoPhaseDriver, TwoPhaseResource
from rm_db.sessions.postgres import PostgresSession
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.address import Address
    from rm_db.postgres.database import ServerFacts
    from rm_db.postgres.prepared_transactions import PreparedTransaction
    from xa import Registrar, Xid
    from xa.diagnosis import Diagnosis
    from xa.outcome_notes import BranchOutcome

logger = logging.getLogger("xabridge.rm_db")


class PostgresDriver(TwoPhaseDriver[PostgresTransaction, PostgresDatabase]):
    """One database, behind `xa.switch.Switch`."""

    name = "xabridge PostgreSQL"

    def _make(self, address: Address) -> PostgresDatabase:
        return PostgresDatabase(address, notes=True)

    def _probe(self, database: PostgresDatabase) -> None:
        _check_prepares(database.probe(), database.address)

    def begins_at_once(self) -> bool:
        return self.database is not None and self.database.pool.is_idle

    def begin(self, xid: Xid, *, wait: bool) -> PostgresTransaction:
        database = self.opened
        connection = database.pool.acquire(work=True, wait=wait)
        return PostgresTransaction(xid, database, connection, PostgresSession).begin()


class PostgresResource(TwoPhaseResource[PostgresTransaction, PostgresDatabase]):
    """One PostgreSQL database. Open string: `postgresql://…`, see `rm_db.address`."""

    def __init__(self, registrar: Registrar | None = None) -> None:
        super().__init__(PostgresDriver(), registrar)

    def most_prepared(self) -> int:
        """How many transactions the server lets be prepared at a time."""
        return self._database_driver.opened.facts.max_prepared

    def prepared_transactions(self, rmid: int, *, everybodys: bool = False) -> Sequence[PreparedTransaction]:
        """The branches that could be recovered here, with the locks that they hold. With `everybodys` also the prepared
        transactions of other databases, roles and naming schemes on this server, none of which is ever touched."""
        database = self._database_driver.opened
        return self.call(
            "prepared_transactions",
            rmid,
            lambda: database.outstanding.run(database.prepared.listed(everybodys=everybodys)),
        )

    def outcome_note(self, xid: Xid, rmid: int) -> bytes:
        del rmid
        database = self._database_driver.database
        return b"" if database is None else database.outcomes.notes.pop(xid, b"")

    def outcomes(self, notes: Sequence[bytes], rmid: int) -> Sequence[BranchOutcome]:
        database = self._database_driver.opened
        return self.call("outcomes", rmid, lambda: database.outstanding.run(database.outcomes.of(notes)))

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_postgres(open_string, two_phase=True)


def _check_prepares(facts: ServerFacts, address: Address) -> None:
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
