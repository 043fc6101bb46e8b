"""Session: what an application works with during one association; SessionUnitOfWork: a unit of work that has one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol

from rm_db.sessions.errors import unflushed_error
from xa.in_process_branches import UnitOfWork

if TYPE_CHECKING:
    from xa import XaError, Xid

INTERRUPT_S: Final = 5.0
"""How long to wait for the end of a statement that is interrupted because its branch is rolled back."""


class Session(Protocol):
    """One association's session. `facade` is the object that the application gets."""

    @property
    def facade(self) -> Any:
        """The native interface."""
        ...

    def finish(self) -> None:
        """The association ends: writes what the session holds back. Raises whatever that raises."""
        ...

    def expire(self) -> None:
        """Refuses every use from now on."""
        ...


class SessionUnitOfWork(UnitOfWork):
    """One branch's transaction in a database, with the session of the association that is at work."""

    xid: Xid
    _session: Session | None = None

    @abstractmethod
    def _check(self, *, looks: bool = True) -> XaError | None:
        """The XA_RB* that makes the branch rollback-only, or XAER_RMFAIL, or None. It `looks` whether the server has
        closed the connection since its last answer, or goes by that."""

    def check(self) -> None:
        """Raises what keeps the branch from being committed, as far as it is known. It is called between two messages,
        just after a statement: a look at the connection would be a system call for each message, in which another
        thread takes the interpreter, and the next statement, or the end of the association, finds the same."""
        fault = self._check(looks=False)
        if fault is not None:
            raise fault

    def end(self, *, fail: bool) -> None:
        session, self._session = self._session, None
        unflushed = None if session is None else self._finish(session, flush=not fail)
        fault = self._check() or unflushed
        if fault is not None:
            raise fault

    def _finish(self, session: Session, *, flush: bool) -> XaError | None:
        """Ends a session, and with `flush` writes what it holds back first. Returns the XA_RB* if that failed."""
        try:
            if flush:
                session.finish()
        except Exception as error:  # noqa: BLE001 — flushing runs the application's own code, and any of it may fail
            return unflushed_error(error, self.xid)
        finally:
            session.expire()
        return None

    def _expire_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.expire()
