"""OpenWireResource: an ActiveMQ Classic or ActiveMQ Artemis broker as a resource manager, by OpenWire's XA commands.

`xa.switch` and `xa.in_process_branches` carry out the XA verbs. `rm_openwire.branch` is a branch until it is prepared;
here is what happens to it afterwards, which any connection may ask for:

- An xid that the broker does not know any more may have been completed by an operator. Artemis lists it then among its
  branches in doubt, and does not say how it was completed: XA_HEURHAZ. Classic remembers nothing: XAER_NOTA.
- FORGET is sent to Artemis only, and only for a branch that is in doubt and is not prepared: Classic rolls a
  prepared branch back when it is asked to forget it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from rm_openwire.branch import AbandonedWork, BranchWork, in_doubt, recovery, transaction_id
from rm_openwire.connection import Connector
from rm_openwire.diagnosis import diagnose
from rm_openwire.errors import ARTEMIS, ConnectionLost, Refused
from rm_openwire.settings import parse
from rm_openwire.wire import TransactionInfo, TransactionKind
from xa import Code, XaError, Xid, xa_error
from xa.in_process_branches import AssociatedWork, Branches, UnitOfWorkDriver
from xa.keep_alive import MAINTENANCE
from xa.pool import ConnectionPool
from xa.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_openwire.connection import Connection
    from rm_openwire.settings import Settings
    from rm_openwire.wire import Response
    from xa import Registrar
    from xa.diagnosis import Diagnosis
    from xa.driver import Pending

logger = logging.getLogger("xabridge.rm_openwire")

_PASSED_ON = frozenset({Code.XA_RETRY, Code.XAER_PROTO, Code.XA_HEURCOM, Code.XA_HEURRB, Code.XA_HEURMIX})
"""Codes of a broker's exception that say the same to the transaction manager."""


MAX_IDLE: Final = 16
"""Connections that are kept for the next caller."""


def _new_pool(connector: Connector, settings: Settings) -> ConnectionPool[Connection]:
    """The connections of one instance. A command takes an idle one or opens another: it never waits for work, which may
    be waiting for it."""

    def connect(_: float) -> Connection:
        connection = connector.connect()
        MAINTENANCE.add(connection)
        return connection

    return ConnectionPool(
        connect,
        settings.connections,
        settings.timeout_s,
        partial(xa_error, Code.XA_RETRY),
        advice="end other work, or allow more with connections= in the open string",
        reserve=sys.maxsize,
        most_idle=MAX_IDLE,
    )


class OpenWireDriver(UnitOfWorkDriver[BranchWork]):
    """One broker, with its backups."""

    name = "xabridge OpenWire"

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        self._pool: ConnectionPool[Connection] | None = None
        self._open_string = ""
        self._settings: Settings | None = None
        self._left = AbandonedWork()

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str) -> None:
        if self._pool is not None and open_string != self._open_string:
            raise xa_error(Code.XAER_INVAL, "open: is open already, with another open string")
        settings = parse(open_string)
        pool = self._pool
        if pool is None:
            pool = _new_pool(Connector(settings), settings)
        try:
            pool.release(pool.acquire(work=False))
        except BaseException:
            if self._pool is None:
                pool.close()
            raise
        self._pool, self._settings, self._open_string = pool, settings, open_string

    def close(self) -> None:
        self.pool.close()
        self.start_over()

    def drop(self) -> None:
        if self._pool is not None:
            for connection in self._pool.close_all():
                connection.drop("it was dropped")
        self.start_over()

    def break_off(self) -> None:
        if self._pool is not None:
            self._pool.break_off()

    @property
    def pool(self) -> ConnectionPool[Connection]:
        """Its connections; XAER_PROTO unless it is open."""
        if self._pool is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self._pool

    # --- branches ---------------------------------------------------------------------------------------------
    def begin(self, xid: Xid, *, wait: bool) -> BranchWork:
        pool = self.pool
        assert self._settings is not None  # noqa: S101 — it is open
        return BranchWork(xid, pool, self._settings, self._left, wait=wait)

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        self._complete("commit", TransactionKind.COMMIT_TWO_PHASE, xid)
        return Code.XA_OK

    def rollback_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        left_s = self._left.left_s(xid)
        if left_s:
            why = f"work of the branch may be under way over a connection that was lost; again in {left_s:.0f} s"
            raise xa_error(Code.XA_RETRY, f"rollback: {why}", xid)
        self._complete("rollback", TransactionKind.ROLLBACK, xid)
        return Code.XA_OK

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        connection = self.pool.acquire(work=False)
        try:
            with connection.lock:
                if xid not in self._listed(connection):
                    raise xa_error(Code.XAER_NOTA, "forget: the broker remembers no such branch", xid)
                if not self._was_completed(connection, xid):
                    raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
                self._ask(connection, TransactionKind.FORGET, xid)
        except (ConnectionLost, Refused) as failure:
            raise self._failed("forget", failure, xid) from None
        finally:
            self.pool.release(connection)
        return Code.XA_OK

    def scan(self, page: int) -> Iterator[Xid]:
        """Recovery passes come again and again, so that this is also where branches are rolled back that could not be
        when their connection was lost."""
        del page  # one answer lists them all, so that completed branches make it skip no others
        connection = self.pool.acquire(work=False)
        try:
            with connection.lock:
                for xid in self._left.due():
                    with contextlib.suppress(Refused):  # the broker has done it
                        self._ask(connection, TransactionKind.ROLLBACK, xid)
                return iter(self._listed(connection))
        except (ConnectionLost, Refused) as failure:
            raise self._failed("recover", failure, None) from None
        finally:
            self.pool.release(connection)

    # --- asking -----------------------------------------------------------------------------------------------
    def _complete(self, verb: str, kind: TransactionKind, xid: Xid) -> None:
        connection = self.pool.acquire(work=False)
        try:
            with connection.lock:
                try:
                    self._ask(connection, kind, xid)
                except Refused as refused:
                    if refused.code is Code.XAER_NOTA and xid in self._listed(connection):
                        why = f"{verb}: the broker has completed the branch already, and does not say how: {refused}"
                        raise xa_error(Code.XA_HEURHAZ, why, xid) from None
                    raise
        except (ConnectionLost, Refused) as failure:
            raise self._failed(verb, failure, xid) from None
        finally:
            self.pool.release(connection)

    @staticmethod
    def _ask(connection: Connection, kind: TransactionKind, xid: Xid) -> Response:
        return connection.ask(
            TransactionInfo(connection_id=connection.connection_id, transaction_id=transaction_id(xid), kind=kind.value)
        )

    @staticmethod
    def _listed(connection: Connection) -> list[Xid]:
        """The branches in doubt. What is no xid of X/Open's is none of ours."""
        found: dict[Xid, None] = {}
        for one in in_doubt(connection.ask(recovery(connection))):
            try:
                found[Xid(one.format_id, one.gtrid, one.bqual)] = None
            except ValueError:
                logger.debug("a branch in doubt has no valid xid: %s", one)
        return list(found)

    def _was_completed(self, connection: Connection, xid: Xid) -> bool:
        """Whether a branch in doubt is one that an operator has completed: Artemis does not know it when it is to be
        prepared. It ignores the prepare of a branch that is prepared; Classic refuses that over another connection. The
        first prepare over a connection fails in Artemis, with an error of its own, whatever the branch is."""
        for _ in range(2):
            try:
                self._ask(connection, TransactionKind.PREPARE, xid)
            except Refused as refused:
                if refused.cause.name.startswith(ARTEMIS) and refused.code is Code.XAER_NOTA:
                    return True
            else:
                return False
        return False

    @staticmethod
    def _failed(verb: str, failure: ConnectionLost | Refused, xid: Xid | None) -> XaError:
        """A failure of a completion, as an XA code. What an exception without a code means is unknown."""
        code: Code | None = None
        if isinstance(failure, Refused):
            code = failure.code
            if code is Code.XAER_NOTA or code in _PASSED_ON:
                assert code is not None  # noqa: S101 — it is one of these
                return xa_error(code, f"{verb}: {failure}", xid)
        return xa_error(Code.XAER_RMFAIL, f"{verb}: {failure}", xid)


class OpenWireResource(Switch[AssociatedWork[BranchWork]]):
    """One broker. Open string: `openwire://…`, see `rm_openwire.settings`."""

    sends_messages: Final = True

    def __init__(self, registrar: Registrar | None = None) -> None:
        self._openwire = OpenWireDriver()
        super().__init__(Branches(self._openwire), registrar)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return sum(connection.lost is None for connection in self._openwire.pool)

    def diagnose(self, open_string: str) -> Diagnosis:
        """Opens a connection of its own, and closes it again."""
        return diagnose(open_string)
