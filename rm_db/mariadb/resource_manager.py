"""MariaResource: MariaDB or MySQL as a resource manager, by XA START, XA END, XA PREPARE, XA COMMIT and XA ROLLBACK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_db.mariadb.database import MariaDatabase
from rm_db.mariadb.diagnosis import diagnose_mariadb
from rm_db.mariadb.transaction import MariaTransaction
from rm_db.server.resource_manager import TwoPhaseDriver, TwoPhaseResource
from rm_db.sessions.mariadb import MariaSession

if TYPE_CHECKING:
    from rm_db.address import Address
    from xa import Registrar, Xid
    from xa.diagnosis import Diagnosis


class MariaDriver(TwoPhaseDriver[MariaTransaction, MariaDatabase]):
    """One database, behind `xa.switch.Switch`."""

    name = "xabridge MariaDB"

    def _make(self, address: Address) -> MariaDatabase:
        return MariaDatabase(address)

    def begin(self, xid: Xid, *, wait: bool) -> MariaTransaction:
        database = self.opened
        connection = database.pool.acquire(work=True, wait=wait)
        return MariaTransaction(xid, database, connection, MariaSession).begin()


class MariaResource(TwoPhaseResource[MariaTransaction, MariaDatabase]):
    """One database of MariaDB or MySQL. Open string: `mariadb://…` or `mysql://…`, see `rm_db.address`."""

    def __init__(self, registrar: Registrar | None = None) -> None:
        super().__init__(MariaDriver(), registrar)

    def let_go(self, xid: Xid) -> None:
        """Lets another process complete a branch that this one has prepared: ends the session that is
        kept for it. Otherwise the other process would have to end it."""
        database = self._database_driver.database
        if database is not None:
            database.parked.let_go(xid)

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_mariadb(open_string)
