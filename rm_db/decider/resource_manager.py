"""DecidingDatabase: a database as the one that decides. Its work and the decision are committed together, in one
local transaction, so that it needs no PREPARE TRANSACTION.

`rm_db.decider.backends` does the work, and `DecisionTable` keeps, settles and deletes the decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rm_db.address import DECIDER_PREFIX, Address
from rm_db.decider.backends import DeciderBackend, PostgresBackend, SqlBackend
from rm_db.decider.diagnosis import diagnose_decider
from rm_db.decider.engine import any_dialect
from rm_db.postgres.database import SCHEMES
from rm_db.resource import DatabaseResource
from xa import Code, xa_error
from xa.tables import BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_db.postgres.libpq import Steps
    from xa import DecisionRecord, Handle, Owner, Xid
    from xa.diagnosis import Diagnosis

T = TypeVar("T")


class DecidingDatabase(DatabaseResource[DeciderBackend]):
    """One database. Open string: a SQLAlchemy URL, with or without `decider+` before it, see `rm_db.address`."""

    name = "xabridge deciding database"

    _decider_id = b""

    @property
    def decider_id(self) -> bytes:
        if not self._decider_id:
            raise xa_error(Code.XAER_PROTO, "decider_id: the resource manager has not been opened")
        return self._decider_id

    def _reach(self, url: str, place: DeciderBackend | None) -> DeciderBackend:
        if place is not None:
            place.reach()
            return place
        address = Address.parse(url)
        scheme = address.url.removeprefix(DECIDER_PREFIX).partition("://")[0]
        place = PostgresBackend(address, self._operations) if scheme in SCHEMES else SqlBackend(address)
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
        return diagnose_decider(open_string)

    # --- owners ---------------------------------------------------------------------------------------------------

    def hold(self, owner: Owner, lease_s: float, rmid: int) -> None:
        control = self._enter("hold", rmid, 0)
        table = self._opened.table
        self._run(control, _call(lambda: table.hold(owner, lease_s)))

    def owners(self, rmid: int) -> Sequence[Owner]:
        control = self._enter("owners", rmid, 0)
        table = self._opened.table
        return self._run(control, _call(table.owners))

    # --- decisions ------------------------------------------------------------------------------------------------

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        control = self._enter("decide", rmid, 0, xid)
        place = self._opened
        steps = self._carry_out(
            "decide", BranchVerb.COMMIT_ONE_PHASE, xid, lambda work: place.decide(work, xid.gtrid, record)
        )
        answer = self._perform(control, "decide", xid, 0, steps, hold=True)
        return Code(answer)

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        control = self._enter("settle", rmid, 0)
        table = self._opened.table
        return self._run(control, _call(lambda: table.settle(gtrid)))

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
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
