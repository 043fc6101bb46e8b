"""Session: what an application works with during one association, as the end of that association sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from xa import Code, xa_error

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
        """From now on every use is refused."""
        ...


def end_session(session: Session, xid: Xid, *, flush: bool) -> XaError | None:
    """Ends a session, and with `flush` writes what it holds back first. Returns the XA_RB* if that failed."""
    try:
        if flush:
            session.finish()
    except Exception as error:  # noqa: BLE001 — flushing runs the application's own code, and any of it may fail
        return xa_error(Code.XA_RBROLLBACK, f"{type(error).__name__} while the session was flushed: {error}", xid)
    finally:
        session.expire()
    return None
