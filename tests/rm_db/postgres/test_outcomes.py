"""These tests ask PostgreSQL what became of transactions whose ids are the newest ones, or were not given yet."""

from __future__ import annotations

from typing import Any

from tests.rm_db.harness import PostgresHarness
from xa import Code
from xa.outcome_notes import BranchOutcome
from xabridge.testing.contract.client import RMID, Client, new_key

PLACE = 12
"""Octets of a note before its transaction id."""


def ahead(note: bytes, by: int) -> bytes:
    """The note of a transaction that began so many later."""
    return note[:PLACE] + b"%d" % (int(note[PLACE:]) + by)


def test_an_id_that_was_not_given_yet_is_of_a_branch_that_was_lost(client: Client) -> None:
    rm: Any = client.rm
    xid = client.prepared(new_key())
    note = rm.outcome_note(xid, RMID)
    notes = [ahead(note, 100_000), note, ahead(note, 1 << 40)]
    assert rm.outcomes(notes, RMID) == [BranchOutcome.LOST, BranchOutcome.PREPARED, BranchOutcome.LOST]
    assert client.commit(xid) is Code.XA_OK
    assert rm.outcomes(notes, RMID) == [BranchOutcome.LOST, BranchOutcome.COMMITTED, BranchOutcome.LOST]


def test_asking_for_outcomes_takes_no_id(client: Client, harness: PostgresHarness) -> None:
    rm: Any = client.rm
    xid = client.prepared(new_key())
    note = rm.outcome_note(xid, RMID)
    client.rollback(xid)
    ((before,),) = harness.admin("SELECT pg_current_xact_id()::text")
    for _ in range(100):
        rm.outcomes([note, ahead(note, 100_000)], RMID)
    ((after,),) = harness.admin("SELECT pg_current_xact_id()::text")
    assert int(after) - int(before) < 50  # a maintenance job of the server may take some
