"""XA codes for the errors of SQLAlchemy and its drivers, for databases of any kind."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rm_db.decider import mysql
from rm_db.sqlstate import ROLLED_BACK, is_lost, lookup
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import XaError, Xid

_SQLITE_PRIMARY: Final = 0xFF
_SQLITE_BUSY: Final = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED
_SQLITE_IOERR: Final = 10
_TRANSIENT_STATES: Final = ("55P03", "57014", "40")


def is_transient(error: DBAPIError) -> bool:
    """Whether a lock was in the way, so that the same call may succeed a moment later."""
    number = _mysql_number(error)
    if number:
        return number in mysql.TRANSIENT  # their SQLSTATE is HY000, which says nothing
    state = sqlstate(error)
    if state is not None:
        return state.startswith(_TRANSIENT_STATES)
    sqlite = getattr(error.orig, "sqlite_errorcode", None)
    return sqlite is not None and sqlite & _SQLITE_PRIMARY in _SQLITE_BUSY


def is_loss(error: DBAPIError) -> bool:
    """Whether the connection is lost, so that it is unknown what the database has done."""
    if error.connection_invalidated:
        return True
    if not isinstance(error, OperationalError | InterfaceError) or is_transient(error):
        return False
    number = _mysql_number(error)
    if number:
        return mysql.lost(number)  # the drivers raise OperationalError for most errors that they do not know
    state = sqlstate(error)
    if state is not None:
        return is_lost(state)
    sqlite = getattr(error.orig, "sqlite_errorcode", None)
    return sqlite is None or sqlite & _SQLITE_PRIMARY == _SQLITE_IOERR


def sqlstate(error: DBAPIError) -> str | None:
    """The SQLSTATE, if the driver has one."""
    original: Any = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) else None


def _mysql_number(error: DBAPIError) -> int:
    """The number that MariaDB's and MySQL's drivers put first; 0 from others, and from these where they have none."""
    number = next(iter(getattr(error.orig, "args", ())), 0)
    return number if isinstance(number, int) and not hasattr(error.orig, "sqlite_errorcode") else 0


def is_deadlock(error: DBAPIError) -> bool:
    """Whether the database has rolled the whole transaction back because of a deadlock."""
    return _mysql_number(error) == mysql.DEADLOCK or sqlstate(error) == "40P01"


def rollback_reason(error: DBAPIError, xid: Xid) -> XaError:
    """The XA_RB* for work that `error` ended."""
    state = sqlstate(error)
    if state is not None and not _mysql_number(error):
        code = lookup(ROLLED_BACK, state)
    elif is_loss(error):
        code = Code.XA_RBCOMMFAIL
    elif isinstance(error, IntegrityError):
        code = Code.XA_RBINTEGRITY
    elif is_deadlock(error):
        code = Code.XA_RBDEADLOCK
    else:
        code = Code.XA_RBTRANSIENT if is_transient(error) else Code.XA_RBOTHER
    return xa_error(code, said(error), xid)


def said(error: DBAPIError) -> str:
    """What the database said."""
    state = sqlstate(error)
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
