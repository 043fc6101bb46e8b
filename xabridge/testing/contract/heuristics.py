"""These tests cover branches that an operator completed: they are remembered, reported, and forgotten only on
request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import Code, HeuristicOutcome

from .client import RMID, Client, Contract, new_key, refused

if TYPE_CHECKING:
    from .harness import Harness


class TestHeuristics(Contract):
    """Only for resource managers whose operators can do that; the others have no such branches to forget."""

    @pytest.fixture(autouse=True)
    def capable(self, harness: Harness) -> None:
        """Skips what can't be."""
        if not harness.capabilities.heuristics:
            pytest.skip("branches are not completed heuristically")

    @pytest.mark.parametrize("committed", [True, False])
    @pytest.mark.parametrize("verb", ["commit", "rollback"])
    def test_the_outcome_is_reported_until_it_is_forgotten(self, client: Client, verb: str, *, committed: bool) -> None:
        expected = Code.XA_HEURCOM if committed else Code.XA_HEURRB
        xid = client.begun(key := new_key())
        client.write(second := new_key())
        client.end(xid)
        client.prepare(xid)
        client.harness.complete_heuristically(xid, commit=committed)
        assert (key in client.harness.committed()) == (second in client.harness.committed()) == committed
        assert xid in client.in_doubt()

        for _ in range(2):
            with pytest.raises(HeuristicOutcome) as raised:
                getattr(client, verb)(xid)
            assert raised.value.code is expected
            assert xid in client.in_doubt()
        assert (key in client.harness.committed()) == committed
        assert client.forget(xid) is Code.XA_OK
        assert xid not in client.in_doubt()
        assert (key in client.harness.committed()) == committed
        for again in (client.forget, client.commit, client.rollback):
            with refused(Code.XAER_NOTA):
                again(xid)

    def test_another_client_hears_and_forgets(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        xid = other.prepared(key := new_key())
        harness.complete_heuristically(xid, commit=True)
        harness.crash(other.rm)
        if harness.capabilities.unreachable:
            harness.go_down()
            harness.come_back()
        assert xid in client.in_doubt()
        with refused(Code.XA_HEURCOM):
            client.commit(xid)
        assert client.forget(xid) is Code.XA_OK
        assert key in harness.committed()

    def test_its_locks_are_free(self, client: Client) -> None:
        xid = client.prepared(key := new_key())
        client.harness.complete_heuristically(xid, commit=False)
        second = client.prepared(key)
        client.commit(second)
        assert key in client.harness.committed()
        client.forget(xid)

    def test_close_and_open_do_not_forget(self, client: Client) -> None:
        xid = client.prepared(new_key())
        client.harness.complete_heuristically(xid, commit=False)
        client.rm.close("", RMID)
        client.reopen()
        with refused(Code.XA_HEURRB):
            client.rollback(xid)
        client.forget(xid)
