"""These tests cover the notes by which a resource manager can tell later what became of a branch, of those that give
notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from xa import Code, Xid
from xa.outcome_notes import MAX_NOTE, BranchOutcome

from .client import RMID, Client, Contract, new_key

if TYPE_CHECKING:
    from .harness import Harness


def prepared(client: Client) -> tuple[Xid, bytes]:
    """A prepared branch, and its note."""
    rm: Any = client.rm
    if not hasattr(rm, "outcome_note"):
        pytest.skip(f"{rm.name} gives no notes")
    xid = client.prepared(new_key())
    note = rm.outcome_note(xid, RMID)
    if not note:
        client.rollback(xid)
        pytest.skip(f"{rm.name} gives no notes here")
    assert len(note) <= MAX_NOTE
    return xid, note


def outcomes(client: Client, *notes: bytes) -> list[BranchOutcome]:
    """What it tells of these."""
    rm: Any = client.rm
    return list(rm.outcomes(notes, RMID))


class TestOutcomeNotes(Contract):
    """Notes, and what they report."""

    def test_a_note_tells_what_became_of_its_branch(self, client: Client) -> None:
        committed, rolled_back, waiting = (prepared(client) for _ in range(3))
        assert client.commit(committed[0]) is Code.XA_OK
        client.rollback(rolled_back[0])
        noted = outcomes(client, waiting[1], committed[1], rolled_back[1])
        assert noted == [BranchOutcome.PREPARED, BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK]
        client.rollback(waiting[0])
        assert outcomes(client, waiting[1]) == [BranchOutcome.ROLLED_BACK]

    def test_another_client_tells_it_too(self, client: Client, harness: Harness) -> None:
        xid, note = prepared(client)
        other = Client(harness)
        assert outcomes(other, note) == [BranchOutcome.PREPARED]
        other.commit(xid)
        assert outcomes(other, note) == outcomes(client, note) == [BranchOutcome.COMMITTED]
        other.rm.close("", RMID)

    def test_what_is_no_note_of_its_own_is_unknown(self, client: Client) -> None:
        xid, note = prepared(client)
        others = bytes([note[0] ^ 1]) + note[1:]
        wrong = [b"", b"x", note[:-1], note + b"x", bytes(len(note)), b"\xff" * len(note), others]
        assert outcomes(client, *wrong) == [BranchOutcome.UNKNOWN] * len(wrong)
        assert outcomes(client) == []
        client.rollback(xid)
