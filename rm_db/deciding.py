"""DecidingDatabase: a database as the one that decides. Its work and the decision are committed together, in one
local transaction, so that it needs no PREPARE TRANSACTION.

PostgreSQL through psycopg goes the short way: its work is `PgWork`, the same that is prepared elsewhere, and the
decision travels in one message with the commit. Every other database goes through SQLAlchemy. The decisions
themselves are kept, settled and discarded by `DecisionTable`, for all of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import URL

from rm_db.address import Address
from rm_db.decisions import DECIDED, DecisionTable
from rm_db.diagnosing import diagnose_decider
from rm_db.resource import DatabaseResource, Place
from rm_db.server import SCHEMES, PgServer
from rm_db.sql_errors import from_dbapi
from rm_db.sql_server import DECIDER_PREFIX, TABLE_CONNECTIONS, any_dialect, guard, make_engine, parse_url
from rm_db.sql_work import SqlWork
from xa import Code, xa_error
from xa.sql import mariadb
from xa.tables import BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_db.pool import Outstanding
    from rm_db.wire import Steps
    from rm_db.work import PgWork
    from xa import DecisionRecord, Handle, Owner, Xid
    from xa.diagnosis import Diagnosis


logger = logging.getLogger("xabridge.rm_db")

T = TypeVar("T")


class DecidingPlace(Place, Protocol):
    """Where the work of a deciding database is done."""

    @property
    def table(self) -> DecisionTable:
        """Where its decisions are."""
        ...

    def reach(self) -> None:
        """Reaches the database; raises what `open` raises."""
        ...

    def decide(self, work: Any, gtrid: bytes, record: bytes) -> Steps[Code]:
        """Commits work that `begin` made, with the decision."""
        ...


class PostgresPlace:
    """PostgreSQL through psycopg."""

    def __init__(self, address: Address, outstanding: Outstanding) -> None:
        url = address.url.removeprefix(DECIDER_PREFIX)
        plain = Address(url, address.pool_size, address.pool_wait_s, address.reply_s, address.pooled)
        self._server = PgServer(plain, outstanding)
        self.table = DecisionTable(
            make_engine(
                URL.create("postgresql+psycopg"), TABLE_CONNECTIONS, address.pool_wait_s, creator=self._server.connect
            )
        )
        self.reply_s = address.reply_s
        self.begin = self._server.begin
        self._into = b""

    def reach(self) -> None:
        """As `DecidingPlace` says."""
        self._server.probe()

    def decide(self, work: PgWork, gtrid: bytes, record: bytes) -> Steps[Code]:
        """As `DecidingPlace` says."""
        if not self._into:
            self._into = self.table.insert_into().encode()
        # a literal: calling decode() costs the server as much as the rest of the insertion
        values = f" VALUES ('{gtrid.hex()}', '{DECIDED}', E'\\\\x{record.hex()}')"
        return work.decide(self._into + values.encode("ascii"))

    def close(self) -> None:
        """As `DecidingPlace` says."""
        self.table.close()
        self._server.close()


class SqlPlace:
    """Any other database, through SQLAlchemy."""

    def __init__(self, address: Address) -> None:
        url = parse_url(address)
        self._engine = make_engine(url, address.pool_size, address.pool_wait_s)
        guard(self._engine)
        self.reply_s = address.reply_s
        options = {"isolation_level": mariadb.ISOLATION} if self._engine.dialect.name in mariadb.DIALECTS else {}
        self.table = DecisionTable(make_engine(url, TABLE_CONNECTIONS, address.pool_wait_s, **options))

    def reach(self) -> None:
        """As `DecidingPlace` says: opening the table reaches it, where nothing is to be asked."""
        if self._engine.dialect.name in mariadb.DIALECTS:
            with from_dbapi("open"), self._engine.connect() as connection:
                for weakness, mend in mariadb.weaknesses(connection):
                    logger.warning("%s: a crash of the server's machine can lose a decision; %s", weakness, mend)

    def begin(self, xid: Xid, *, wait: bool) -> SqlWork:
        """As `DecidingPlace` says."""
        return SqlWork(xid, self._engine, wait=wait)

    def decide(self, work: SqlWork, gtrid: bytes, record: bytes) -> Steps[Code]:
        """As `DecidingPlace` says."""
        return work.decide(self.table.insertion(gtrid, record))

    def close(self) -> None:
        """As `DecidingPlace` says."""
        self.table.close()
        self._engine.dispose()


class DecidingDatabase(DatabaseResource[DecidingPlace]):
    """One database. Open string: a SQLAlchemy URL, with or without `decider+` before it, see `rm_db.address`."""

    name = "xabridge deciding database"

    _decider_id = b""

    @property
    def decider_id(self) -> bytes:
        """As `xa.DecidingResource` says."""
        if not self._decider_id:
            raise xa_error(Code.XAER_PROTO, "decider_id: the resource manager has not been opened")
        return self._decider_id

    def _reach(self, url: str, place: DecidingPlace | None) -> DecidingPlace:
        if place is not None:
            place.reach()
            return place
        address = Address.parse(url)
        scheme = address.url.removeprefix(DECIDER_PREFIX).partition("://")[0]
        place = PostgresPlace(address, self._operations) if scheme in SCHEMES else SqlPlace(address)
        try:
            place.reach()
            self._decider_id = place.table.open()
        except BaseException:
            place.close()
            raise
        return place

    # --- what is not its way --------------------------------------------------------------------------------------

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Refused, as `xa.DecidingResource` says."""
        self._enter("prepare", rmid, flags, xid)
        raise xa_error(Code.XAER_PROTO, "prepare: the one that decides is not prepared", xid)

    def _commit_prepared(self, xid: Xid) -> Steps[Code]:
        yield from ()
        raise xa_error(Code.XAER_PROTO, "commit: the one that decides commits by decide, or with TMONEPHASE", xid)

    def _rollback_prepared(self, xid: Xid) -> Steps[Code]:
        yield from ()
        raise xa_error(Code.XAER_NOTA, "rollback: no such branch in this instance, and none is ever prepared", xid)

    def _forget(self, xid: Xid) -> Steps[Code]:
        yield from ()
        self._find("forget", BranchVerb.FORGET, xid)
        raise xa_error(Code.XAER_NOTA, "forget: no branch is ever completed heuristically here", xid)

    def _scan(self) -> Steps[list[Xid]]:
        yield from ()
        return []

    def diagnose(self, open_string: str) -> Diagnosis:
        """As `xa.diagnosis.Diagnosing` says."""
        return diagnose_decider(open_string)

    # --- owners ---------------------------------------------------------------------------------------------------

    def hold(self, owner: Owner, lease_s: float, rmid: int) -> None:
        """As `xa.DecidingResource` says."""
        control = self._enter("hold", rmid, 0)
        table = self._opened.table
        self._run(control, _call(lambda: table.hold(owner, lease_s)))

    def owners(self, rmid: int) -> Sequence[Owner]:
        """As `xa.DecidingResource` says."""
        control = self._enter("owners", rmid, 0)
        table = self._opened.table
        return self._run(control, _call(table.owners))

    # --- decisions ------------------------------------------------------------------------------------------------

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        """As `xa.DecidingResource` says."""
        control = self._enter("decide", rmid, 0, xid)
        place = self._opened
        steps = self._carry_out(
            "decide", BranchVerb.COMMIT_ONE_PHASE, xid, lambda work: place.decide(work, xid.gtrid, record)
        )
        answer = self._perform(control, "decide", xid, 0, steps, hold=True)
        return Code(answer)

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        """As `xa.DecidingResource` says."""
        control = self._enter("settle", rmid, 0)
        table = self._opened.table
        return self._run(control, _call(lambda: table.settle(gtrid)))

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        """As `xa.DecidingResource` says."""
        control = self._enter("decisions", rmid, 0)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"decisions: count {count} is below 1")
        table = self._opened.table
        return self._run(control, _call(lambda: table.page(after, count)))

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        """As `xa.DecidingResource` says. They are deleted in batches; what has not been deleted when the process dies
        is found, and ended again, by recovery."""
        control = self._enter("end_decisions", rmid, 0)
        table = self._opened.table
        if table.end(gtrids):
            self._run(control, _call(table.delete_due))


def deciding_database(scheme: str) -> type[DecidingDatabase]:
    """For `decider+*`: the factory for URLs with any scheme that SQLAlchemy knows; LookupError for others."""
    any_dialect(scheme)
    return DecidingDatabase


def _call(call: Callable[[], T]) -> Steps[T]:
    """A call that waits for itself, as steps."""
    yield from ()
    return call()
