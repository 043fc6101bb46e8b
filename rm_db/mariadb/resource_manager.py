"""MariaResource: MariaDB or MySQL as a resource manager, by XA START, XA END, XA PREPARE, XA COMMIT and XA ROLLBACK.

`xa.switch` and `xa.branches` carry out the XA verbs. What is MariaDB's own is here and in the modules beside this one:
`MariaTransaction` is a branch until it is prepared, and `PreparedBranches` completes and lists it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rm_db.address import Address
from rm_db.mariadb.database import MariaDatabase
from rm_db.mariadb.diagnosis import diagnose_mariadb
from rm_db.mariadb.transaction import MariaTransaction
from xa import TMUSEASYNC, Code, xa_error
from xa.branches import Branches, Part, UnitDriver
from xa.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xa import Registrar, Xid
    from xa.connection_usage import Connections
    from xa.diagnosis import Diagnosis
    from xa.driver import Pending
    from xa.holdings import InDoubtBranch


class MariaDriver(UnitDriver[MariaTransaction]):
    """One database, behind `xa.switch.Switch`."""

    name = "xabridge MariaDB"
    flags = TMUSEASYNC

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self.database: MariaDatabase | None = None
        self._url = ""

    def open(self, open_string: str) -> None:
        if self.database is not None:
            if open_string != self._url:
                raise xa_error(Code.XAER_INVAL, "open: was opened with another open string; close it first")
            self.database.probe()
            return
        database = MariaDatabase(Address.parse(open_string))
        try:
            database.probe()
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
    def opened(self) -> MariaDatabase:
        """The database; XAER_PROTO unless it is open."""
        if self.database is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self.database

    def begin(self, xid: Xid, *, wait: bool) -> MariaTransaction:
        return self.opened.begin(xid, wait=wait)

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        database = self.opened
        return database.outstanding.carry_out(xid, database.prepared.commit(xid), later=later)

    def rollback_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        database = self.opened
        return database.outstanding.carry_out(xid, database.prepared.rollback(xid), later=later)

    def forget(self, xid: Xid, *, later: bool) -> Code:
        del later
        if xid in self.opened.outstanding.run(self.opened.prepared.scan()):
            raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
        raise xa_error(Code.XAER_NOTA, "forget: the server completes no branch on its own, none is remembered", xid)

    def scan(self, page: int) -> Iterator[Xid]:
        del page  # one statement lists them all, so that completed branches make it skip no others
        return iter(self.opened.outstanding.run(self.opened.prepared.scan()))

    def reports(self, page: int) -> Iterator[InDoubtBranch]:
        """The same branches, with what they hold."""
        del page
        return iter(self.opened.outstanding.run(self.opened.prepared.in_doubt()))

    def first(self, outstanding: Sequence[Any]) -> Pending:
        return self.opened.outstanding.first(outstanding)


class MariaResource(Switch[Part[MariaTransaction]]):
    """One database of MariaDB or MySQL. Open string: `mariadb://…` or `mysql://…`, see `rm_db.address`."""

    carries_out_sql: Final = True

    def __init__(self, registrar: Registrar | None = None) -> None:
        self._mariadb = MariaDriver()
        super().__init__(Branches(self._mariadb), registrar)

    def connections(self) -> Connections | None:
        database = self._mariadb.database
        return None if database is None else database.pool.usage

    def let_go(self, xid: Xid) -> None:
        """For a branch that this process has prepared, and that another one will complete: ends the session that is
        kept for it. Otherwise the other process would have to end it."""
        database = self._mariadb.database
        if database is not None:
            database.parked.let_go(xid)

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self.page("in_doubt", self._mariadb.reports, rmid, flags, count)

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_mariadb(open_string)
