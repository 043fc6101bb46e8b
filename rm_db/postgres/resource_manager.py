"""PostgresResource: PostgreSQL as a resource manager, by PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rm_db.address import Address
from rm_db.postgres.database import Facts, PostgresDatabase
from rm_db.postgres.diagnosis import diagnose_postgres
from rm_db.postgres.gid import encode_gid
from rm_db.postgres.prepared_transactions import PreparedTransaction, PreparedTransactions
from rm_db.resource import DatabaseResource
from xa import Code, XaError, xa_error
from xa.tables import BranchVerb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.postgres.libpq import Steps
    from xa import Handle, Xid
    from xa.diagnosis import Diagnosis
    from xa.holdings import InDoubtBranch

logger = logging.getLogger("xabridge.rm_db")


class PostgresResource(DatabaseResource[PostgresDatabase]):
    """One PostgreSQL database. Open string: `postgresql://…`, see `rm_db.address`."""

    name = "xabridge PostgreSQL"

    @property
    def max_prepared(self) -> int:
        """How many transactions the server lets be prepared at a time."""
        return self._opened.facts.max_prepared

    @property
    def _prepared(self) -> PreparedTransactions:
        return PreparedTransactions(self._opened)

    def _reach(self, url: str, place: PostgresDatabase | None) -> PostgresDatabase:
        database = place or PostgresDatabase(Address.parse(url), self._operations)
        try:
            _check_prepares(database.probe(), database.address)
        except BaseException:
            if place is None:
                database.close()
            raise
        return database

    # --- completion -----------------------------------------------------------------------------------------------

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        control = self._enter("prepare", rmid, flags, xid)
        steps = self._carry_out("prepare", BranchVerb.PREPARE, xid, lambda work: work.prepare(encode_gid(xid)))
        return self._perform(control, "prepare", xid, flags, steps, hold=True)

    def _commit_prepared(self, xid: Xid) -> Steps[Code]:
        self._find("commit", BranchVerb.COMMIT, xid)
        return (yield from self._completed(xid, self._prepared.commit(xid)))

    def _rollback_prepared(self, xid: Xid) -> Steps[Code]:
        return (yield from self._completed(xid, self._prepared.rollback(xid)))

    def _completed(self, xid: Xid, steps: Steps[Code]) -> Steps[Code]:
        """A prepared branch is completed by `steps`: it need not be remembered any more once it is gone."""
        try:
            code = yield from steps
        except XaError as error:
            if error.code is Code.XAER_NOTA:
                self._branches.forget_prepared(xid)
            raise
        self._branches.forget_prepared(xid)
        return code

    def _forget(self, xid: Xid) -> Steps[Code]:
        self._find("forget", BranchVerb.FORGET, xid)
        is_prepared = yield from self._prepared.exists(xid)
        if is_prepared:
            raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
        raise xa_error(Code.XAER_NOTA, "forget: PostgreSQL completes no branch on its own, none is remembered", xid)

    # --- recovery -------------------------------------------------------------------------------------------------

    def _scan(self) -> Steps[list[Xid]]:
        return self._prepared.scan()

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self._page(self._reports, self._report, rmid, flags, count)

    def _report(self) -> Steps[list[InDoubtBranch]]:
        return self._prepared.in_doubt()

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_postgres(open_string, two_phase=True)

    def prepared_transactions(self, rmid: int, *, everybodys: bool = False) -> Sequence[PreparedTransaction]:
        """What is prepared and could be recovered here, with what it holds; with `everybodys` also what other
        databases, other roles and other namings have prepared on this server, none of which is ever touched."""
        control = self._enter("prepared_transactions", rmid, 0)
        return self._run(control, self._prepared.listed(everybodys=everybodys))


def _check_prepares(facts: Facts, address: Address) -> None:
    if facts.max_prepared == 0:
        raise xa_error(
            Code.XAER_RMERR,
            f"max_prepared_transactions is 0: set it to at least {2 * address.pool_size} (transactions at work, "
            'and orphans) and restart PostgreSQL, or use mode = "decider"',
        )
    if facts.max_prepared < address.pool_size:
        logger.warning(
            "max_prepared_transactions is %d, less than the %d transactions that may be at work here (xa_pool_size)",
            facts.max_prepared,
            address.pool_size,
        )
