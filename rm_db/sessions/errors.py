"""The errors of sessions: what the application asked for is reserved to the transaction manager, or can't be done
now."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from xa import Code, xa_error

if TYPE_CHECKING:
    from rm_db.sessions.connection import ConnectionAccess
    from xa import XaError, Xid


def reserved_error(what: str, xid: Xid) -> XaError:
    """`what` would begin, end or leave the transaction, which only the transaction manager may."""
    return xa_error(
        Code.XAER_PROTO,
        f"{what} is not the session's to do: the transaction manager ends this transaction, for all its resources "
        "together. Leave the block of begin() to commit, raise out of it to roll back; savepoints are allowed",
        xid,
    )


def busy_error(xid: Xid) -> XaError:
    """Another thread or task is in a statement, and the caller can't wait for it."""
    return xa_error(
        Code.XAER_PROTO,
        "another thread or task is in a statement of this branch. A branch has one connection: let one task at a time "
        "work with it, or begin a transaction for each task",
        xid,
    )


def unfinished_error(xid: Xid) -> XaError:
    """The caller itself has not finished a statement."""
    return xa_error(
        Code.XAER_PROTO,
        "a stream or COPY of this branch has not been finished: read it to its end, or close it, first",
        xid,
    )


def unflushed_error(error: Exception, xid: Xid) -> XaError:
    """What a session has held back could not be written, so that the branch can only be rolled back."""
    return xa_error(Code.XA_RBROLLBACK, f"{type(error).__name__} while the session was flushed: {error}", xid)


def expired_error(xid: Xid) -> XaError:
    """The session is used after its association has ended."""
    return xa_error(
        Code.XAER_PROTO,
        "this session is over: its transaction has ended, was suspended, or took too long and was rolled back. "
        "Ask the transaction for the resource again",
        xid,
    )


def forked_error(xid: Xid | None) -> XaError:
    """The session is used in a fork of the process that has its transaction."""
    return xa_error(
        Code.XAER_PROTO,
        "this process is a fork of the one that has this transaction: only that process works with its connection, and "
        "what becomes of the transaction is not known here. Open a transaction manager in this process",
        xid,
    )


def no_asyncio_error(database: str, xid: Xid) -> XaError:
    """The database's driver can't be awaited."""
    return xa_error(
        Code.XAER_PROTO,
        f"{database} has no asyncio session here, only PostgreSQL, and MariaDB and MySQL in two phases, have. "
        "Work with it in a thread: "
        'await asyncio.to_thread(work, transaction["…"]); cancelled, its statement is interrupted and rolled back',
        xid,
    )


def check_greenlet(xid: Xid) -> None:
    """XAER_PROTO: greenlet is not installed, without which there is no asyncio session."""
    if find_spec("greenlet") is None:
        raise xa_error(Code.XAER_PROTO, "SQLAlchemy's asyncio extension needs greenlet: install xabridge[asyncio]", xid)


def settled_error(xid: Xid) -> XaError:
    """The transaction was to decide, and recovery was there first."""
    settled = "recovery has settled this transaction as rolled back, before it was decided"
    return xa_error(Code.XA_RBROLLBACK, settled, xid)


def refuse(what: str, access: ConnectionAccess) -> NoReturn:
    """`what` is the transaction manager's. The branch becomes rollback-only, because an application that hides the
    error goes on as if it had been done."""
    if access.is_forked:
        raise forked_error(access.xid)
    if access.is_over:
        raise expired_error(access.xid)
    access.set_rollback_only(f"{what} was refused, which is the transaction manager's")
    raise reserved_error(what, access.xid)
