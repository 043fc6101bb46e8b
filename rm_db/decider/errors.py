"""XA codes for the errors of SQLAlchemy and its drivers, for databases of any kind."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rm_db.sqlstate import ROLLED_BACK, lookup
from xa import Code, xa_error
from xa.sql.errors import IN_THE_WAY, ErrorKind, kind_of, mariadb_number, sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import XaError, Xid

_TRANSIENT: Final = IN_THE_WAY | {ErrorKind.CANCELLED}


def is_transient(error: DBAPIError) -> bool:
    """Whether a lock was in the way, so that the same call may succeed a moment later."""
    return kind_of(error) in _TRANSIENT


def is_loss(error: DBAPIError) -> bool:
    """Whether the connection is lost, so that it is unknown what the database has done."""
    kind = kind_of(error)
    if kind is ErrorKind.UNTOLD:
        return isinstance(error, OperationalError | InterfaceError)
    return kind is ErrorKind.LOST


def rollback_reason(error: DBAPIError, xid: Xid) -> XaError:
    """The XA_RB* for work that `error` ended."""
    state = sqlstate_of(error)
    if state is not None and not mariadb_number(error):  # theirs is mostly HY000, which says nothing
        code = lookup(ROLLED_BACK, state)
    elif is_loss(error):
        code = Code.XA_RBCOMMFAIL
    elif isinstance(error, IntegrityError):
        code = Code.XA_RBINTEGRITY
    elif kind_of(error) is ErrorKind.DEADLOCK:
        code = Code.XA_RBDEADLOCK
    else:
        code = Code.XA_RBTRANSIENT if is_transient(error) else Code.XA_RBOTHER
    return xa_error(code, said(error), xid)


def said(error: DBAPIError) -> str:
    """The database's message."""
    state = sqlstate_of(error)
    diagnosis = getattr(error.orig, "diag", None)
    words = " ".join((getattr(diagnosis, "message_primary", None) or str(error.orig)).split())
    return f"{state} {words}" if state else words


@contextmanager
def from_dbapi(verb: str, xid: Xid | None = None) -> Iterator[None]:
    """Around work that belongs to no branch. XAER_RMFAIL: the connection is lost. XA_RETRY: a lock was in the way for
    too long. XAER_RMERR: the database refused."""
    try:
        yield
    except PoolTimeout as error:
        raise xa_error(Code.XA_RETRY, f"{verb}: {error}", xid) from None
    except DBAPIError as error:
        code = Code.XAER_RMFAIL if is_loss(error) else Code.XA_RETRY if is_transient(error) else Code.XAER_RMERR
        raise xa_error(code, f"{verb}: {said(error)}", xid) from None
