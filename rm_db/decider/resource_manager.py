"""DecidingDatabase: a database as the one that decides. Its work and the decision are committed together, in one
local transaction, so that it needs no PREPARE TRANSACTION.

A `DeciderBackend` does the work, and `DecisionTable` keeps, settles and deletes the decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rm_db.address import DECIDER_PREFIX, POSTGRES_SCHEMES, Address
from rm_db.decider.backends import DeciderBackend, SqlBackend
from rm_db.decider.diagnosis import diagnose_decider
from rm_db.decider.engine import any_dialect
from rm_db.server.steps import understood
from xa import TMUSEASYNC, Code, xa_error
from xa.in_process_branches import AssociatedWork, DecidingBranches, DecidingUnitOfWorkDriver, UnitOfWork
from xa.switch import DecidingSwitch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.decider.decision_table import DecisionTable
    from xa import DecisionRecord, NotedIncarnation, Owner, Registrar, Xid
    from xa.diagnosis import Diagnosis
    from xa.driver import Pending
    from xa.pool import Connections


class DeciderDriver(DecidingUnitOfWorkDriver[UnitOfWork]):
    """One database, behind `xa.switch.DecidingSwitch`."""

    name = "xabridge deciding database"
    flags = TMUSEASYNC

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self.backend: DeciderBackend | None = None
        self._url = ""
        self._decider_id = b""

    def open(self, open_string: str) -> None:
        if self.backend is not None:
            if open_string != self._url:
                raise xa_error(Code.XAER_INVAL, "open: was opened with another open string; close it first")
            self.backend.reach()
            return

        address = Address.parse(open_string)
        scheme = address.url.removeprefix(DECIDER_PREFIX).partition("://")[0]
        backend = _postgres(address) if scheme in POSTGRES_SCHEMES else SqlBackend(address)
        try:
            with understood():
                backend.reach()
                self._decider_id = backend.table.open()
        except BaseException:
            backend.close()
            raise
        self.backend, self._url = backend, open_string

    def close(self) -> None:
        self._opened.close()
        self.start_over()

    def break_off(self) -> None:
        if self.backend is not None:
            self.backend.break_off()

    @property
    def _opened(self) -> DeciderBackend:
        if self.backend is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self.backend

    @property
    def _table(self) -> DecisionTable:
        return self._opened.table

    def begins_at_once(self) -> bool:
        return self.backend is not None and self.backend.begins_at_once()

    def begin(self, xid: Xid, *, wait: bool) -> UnitOfWork:
        return self._opened.begin(xid, wait=wait)

    def first(self, outstanding: Sequence[Pending]) -> Pending:
        return self._opened.first(outstanding)

    # --- decisions ------------------------------------------------------------------------------------------------

    @property
    def decider_id(self) -> bytes:
        return self._decider_id

    def decide(self, unit: UnitOfWork, xid: Xid, record: bytes) -> Code:
        return self._opened.decide(unit, xid.gtrid, record)

    def hold(self, owner: Owner, lease_s: float, floor: int, ceiling: int) -> None:
        self._table.hold(owner, lease_s, floor, ceiling)

    def owners(self) -> Sequence[Owner]:
        return self._table.owners()

    def incarnations(self, node: str) -> Sequence[NotedIncarnation]:
        return self._table.incarnations(node)

    def settle(self, gtrid: bytes) -> bytes | None:
        return self._table.settle(gtrid)

    def decisions(self, after: bytes, count: int) -> Sequence[DecisionRecord]:
        return self._table.page(after, count)

    def end_decisions(self, gtrids: Sequence[bytes]) -> None:
        # deleted in batches; what has not been deleted when the process dies is found, and ended again, by recovery
        if self._table.end(gtrids):
            self._table.delete_due()


class DecidingDatabase(DecidingSwitch[AssociatedWork[UnitOfWork]]):
    """One database. Open string: a SQLAlchemy URL, with or without `decider+` before it, see `rm_db.address`."""

    carries_out_sql: Final = True

    def __init__(self, registrar: Registrar | None = None) -> None:
        self._driver = DeciderDriver()
        super().__init__(DecidingBranches(self._driver), registrar)

    def connections(self) -> Connections | None:
        backend = self._driver.backend
        return None if backend is None else backend.connections()

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_decider(open_string)


def deciding_database(scheme: str) -> type[DecidingDatabase]:
    """The factory, for `decider+*`, for URLs with any scheme that SQLAlchemy knows; LookupError for others."""
    any_dialect(scheme)
    return DecidingDatabase


def _postgres(address: Address) -> DeciderBackend:
    from rm_db.decider.postgres_backend import PostgresBackend  # noqa: PLC0415 — loads psycopg, which others don't need

    return PostgresBackend(address)
