"""TransactionOutcomes: notes of prepared transactions, by which PostgreSQL can tell later what became of them.

PostgreSQL tells the outcome of a transaction id (`pg_xact_status`) as long as it keeps it: for at least
`autovacuum_freeze_max_age` / 2 transactions. An id says something only on the server that gave it: a restored or
promoted copy gives the same ids again to other transactions. So a note is

    system identifier    8 octets, big-endian
    timeline             4 octets
    transaction id       with its epoch (xid8), in decimal digits

and the outcome is unknown on a server with another system identifier or on another timeline. What is restored from a
copy of the disk, without a new timeline, looks like the original. As long as it has not come to the id yet, it is older
than the note: the branch is lost. Later the id is that of another transaction, and the outcome worth nothing. So it
takes no id to ask.

System identifier and timeline are asked once for each connection, because neither changes while a connection lasts.
There are no notes behind a transaction pooler, whose connections may be to another server the next time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from rm_db.server.steps import understood
from xa import Code, xa_error
from xa.outcome_notes import BranchOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.postgres.database import PostgresDatabase
    from rm_db.postgres.libpq import LibpqConnection, Reply
    from xa import Xid

NOTING: Final = b"SELECT pg_catalog.pg_current_xact_id(), pg_catalog.pg_advisory_unlock_all();"
"""Before PREPARE TRANSACTION, in the same message: tells the id of the transaction. It is also the part of the reset of
the session that has to be a SELECT, so that the id costs no statement of its own."""

_WHERE: Final = b"""
SELECT system_identifier, pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)
  FROM pg_catalog.pg_control_system()
"""
_OUTCOMES: Final = """
SELECT CASE WHEN id < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
            THEN coalesce(pg_catalog.pg_xact_status(id), 'forgotten') END
  FROM pg_catalog.unnest('{{{ids}}}'::pg_catalog.xid8[]) WITH ORDINALITY AS asked (id, place) ORDER BY place
"""
"""NULL for an id above all that are over. Either that transaction is not over, or its id was not given yet, which
pg_xact_status refuses: such an id is asked alone."""
_OUTCOME: Final = "SELECT coalesce(pg_catalog.pg_xact_status('{id}'), 'forgotten')"

_PLACE: Final = struct.Struct(">QI")
_NOT_GIVEN: Final = "22023"
"""What the server answers to an id that it has not given yet."""
_NEVER: Final = "42"
"""The class of SQLSTATEs for what the server does not know, or does not let this user do."""
_MOST: Final = 10_000
"""The most unread notes: of branches that another process commits, say."""
_BY_STATUS: Final = {
    b"committed": BranchOutcome.COMMITTED,
    b"aborted": BranchOutcome.ROLLED_BACK,
    b"in progress": BranchOutcome.PREPARED,
}


class TransactionOutcomes:
    """The notes of one database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self.notes: dict[Xid, bytes] = {}
        """Those that are not read yet."""

    # --- notes ------------------------------------------------------------------------------------------------------

    async def place_of(self, connection: LibpqConnection) -> bytes:
        """The beginning of a note of what is prepared over the connection; b"" where the server does not tell it, to
        this user or at all."""
        reply = await connection.exchange(_WHERE)
        if reply.failure is not None:
            return b""
        with understood(connection.close):
            identifier, timeline = (octets or b"" for octets in reply.rows()[0])
            return _PLACE.pack(int(identifier) & 0xFFFF_FFFF_FFFF_FFFF, int(timeline, 16) & 0xFFFF_FFFF)

    def add(self, xid: Xid, place: bytes, reply: Reply) -> None:
        """The branch is prepared there, as `reply` says, to NOTING and PREPARE TRANSACTION. It has its vote whether its
        note can be read or not."""
        transaction_id = reply.results[0].get_value(0, 0)
        if transaction_id is None or not _is_id(transaction_id):
            return
        if len(self.notes) >= _MOST:
            self.notes.clear()
        self.notes[xid] = place + transaction_id

    # --- outcomes ---------------------------------------------------------------------------------------------------

    async def of(self, notes: Sequence[bytes]) -> list[BranchOutcome]:
        """What became of the transactions of these notes."""
        database = self._database
        found = [BranchOutcome.UNKNOWN] * len(notes)
        with database.releasing(database.pool.acquire(work=False)) as connection:
            ours = [
                index
                for index, note in enumerate(notes)
                if connection.place and note.startswith(connection.place) and _is_id(note[_PLACE.size :])
            ]
            if not ours:
                return found
            ids = ",".join(notes[index][_PLACE.size :].decode("ascii") for index in ours)
            reply = await connection.exchange(_OUTCOMES.format(ids=ids).encode("ascii"))
            if not _answered(reply):
                return found
            with understood(database.pool.close_idle):
                statuses = [status for (status,) in reply.rows()]

            for index, status in zip(ours, statuses, strict=True):
                if status is None:
                    found[index] = await _newest(connection, notes[index][_PLACE.size :])
                else:
                    found[index] = _BY_STATUS.get(status, BranchOutcome.UNKNOWN)
        return found


async def _newest(connection: LibpqConnection, transaction_id: bytes) -> BranchOutcome:
    """What became of a transaction whose id is above all that are over, if it was given at all."""
    reply = await connection.exchange(_OUTCOME.format(id=transaction_id.decode("ascii")).encode("ascii"))
    if reply.failure is not None and reply.failure.sqlstate == _NOT_GIVEN:
        return BranchOutcome.LOST
    if not _answered(reply):
        return BranchOutcome.UNKNOWN
    with understood(connection.close):
        return _BY_STATUS.get(reply.rows()[0][0] or b"", BranchOutcome.UNKNOWN)


def _answered(reply: Reply) -> bool:
    """Whether the server has answered with outcomes. Where it does not let us know them at all, that is no failure."""
    failure = reply.failure
    if failure is not None and not (failure.sqlstate or "").startswith(_NEVER):
        raise xa_error(Code.XA_RETRY, f"the outcomes of transactions are unknown now: {failure}")
    return failure is None


def _is_id(octets: bytes) -> bool:
    """Whether they are the digits of a transaction id."""
    return octets.isdigit() and int(octets) < 1 << 64
