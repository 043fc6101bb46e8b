"""TwoPhaseResource: a database of a server that prepares branches, as a resource manager.

`xa.switch` and `xa.in_process_branches` carry out the XA verbs. A `ServerTransaction` is a branch until it is prepared,
and `PreparedWork` completes and lists it afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rm_db.address import Address
from rm_db.server.database import ServerDatabase
from rm_db.server.steps import drive
from rm_db.server.transaction import ServerTransaction
from xa import TMUSEASYNC, Code, xa_error
from xa.in_process_branches import AssociatedWork, Branches, UnitOfWorkDriver
from xa.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xa import Registrar, Xid
    from xa.driver import Pending
    from xa.holdings import InDoubtBranch
    from xa.pool import Connections

T = TypeVar("T", bound=ServerTransaction[Any])
D = TypeVar("D", bound=ServerDatabase[Any, Any])


class TwoPhaseDriver(UnitOfWorkDriver[T], Generic[T, D]):
    """One database, behind `xa.switch.Switch`."""

    flags = TMUSEASYNC

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self.database: D | None = None
        self._url = ""

    @abstractmethod
    def _make(self, address: Address) -> D:
        """The database at this address, which is not asked anything yet."""

    def _probe(self, database: D) -> None:
        """Checks that branches can be prepared there, as `open` does."""
        database.probe()

    def open(self, open_string: str) -> None:
        if self.database is not None:
            if open_string != self._url:
                raise xa_error(Code.XAER_INVAL, "open: was opened with another open string; close it first")
            self._probe(self.database)
            return
        database = self._make(Address.parse(open_string))
        try:
            self._probe(database)
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
    def opened(self) -> D:
        """The database; XAER_PROTO unless it is open."""
        if self.database is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self.database

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        database = self.opened
        steps = database.prepared.complete("commit", xid)
        return database.outstanding.begin(xid, steps) if later else drive(steps, database.address.reply_s)

    def rollback_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        database = self.opened
        steps = database.prepared.complete("rollback", xid)
        return database.outstanding.begin(xid, steps) if later else drive(steps, database.address.reply_s)

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later  # it is not a common call
        database = self.opened
        if database.outstanding.run(database.prepared.exists(xid)):
            raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
        raise xa_error(Code.XAER_NOTA, "forget: the server completes no branch on its own, none is remembered", xid)

    def scan(self, page: int) -> Iterator[Xid]:
        del page  # one query lists them all, so that completed branches make it skip no others
        return iter(self.opened.outstanding.run(self.opened.prepared.scan()))

    def reports(self, page: int) -> Iterator[InDoubtBranch]:
        """The same branches, with what they hold."""
        del page
        return iter(self.opened.outstanding.run(self.opened.prepared.in_doubt()))

    def first(self, outstanding: Sequence[Any]) -> Pending:
        return self.opened.outstanding.first(outstanding)


class TwoPhaseResource(Switch[AssociatedWork[T]], Generic[T, D]):
    """One database in which branches are prepared."""

    carries_out_sql: Final = True

    def __init__(self, driver: TwoPhaseDriver[T, D], registrar: Registrar | None = None) -> None:
        self._database_driver = driver
        super().__init__(Branches(driver), registrar)

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self.page("in_doubt", self._database_driver.reports, rmid, flags, count)

    def connections(self) -> Connections | None:
        database = self._database_driver.database
        return None if database is None else database.pool.usage
