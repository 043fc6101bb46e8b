"""Lost connections, dead clients, a resource that can't be reached, and time that passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import ROLLBACK_CODES, TMFAIL, TMNOFLAGS, TMONEPHASE, TMSUCCESS, Code, ResourceUnavailable

from .client import RMID, ROLLED_BACK, Client, Contract, new_key, refused

if TYPE_CHECKING:
    from xa import Xid

    from .harness import Harness


class TestFailures(Contract):
    """Tests of what is left, and what is said, when something goes away."""

    # --- the client dies ------------------------------------------------------------------------------------
    def test_a_client_that_dies_at_work_leaves_nothing(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        xid = other.begun(key := new_key())
        harness.crash(other.rm)
        assert xid not in client.in_doubt()
        assert client.retrying("prepare", xid) in ROLLED_BACK
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
        assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK  # its locks are free
        assert key in harness.committed()

    def test_a_client_that_dies_after_end(self, harness: Harness, client: Client) -> None:
        """No branch has voted: not in doubt. A shared branch may still be prepared by another; another's is gone."""
        other = Client(harness)
        xid = other.ended(key := new_key())
        harness.crash(other.rm)
        assert xid not in client.in_doubt()
        assert key not in harness.committed()
        if harness.capabilities.branches_shared:
            assert client.prepare(xid) is Code.XA_OK
            assert client.commit(xid) is Code.XA_OK
            assert key in harness.committed()
        else:
            with refused(Code.XAER_NOTA):
                client.prepare(xid)
            assert key not in harness.committed()

    def test_a_client_that_dies_after_prepare(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        verbs = {other.prepared(key := new_key()): (key, verb) for verb in ("commit", "rollback")}
        harness.crash(other.rm)
        assert verbs.keys() <= client.in_doubt()
        for xid, (key, verb) in verbs.items():
            assert key not in harness.committed()
            assert client.retrying(verb, xid) in {Code.XA_OK, *ROLLBACK_CODES}
            assert (key in harness.committed()) == (verb == "commit")
            assert xid not in client.in_doubt()

    def test_a_new_process_recovers_what_all_the_dead_ones_left(self, harness: Harness, client: Client) -> None:
        xids, lost = {}, []
        for _ in range(min(4, harness.capabilities.max_prepared)):
            other = Client(harness)
            key = new_key()
            xids[other.prepared(key)] = key
            lost.append(other.begun(new_key()))
            harness.crash(other.rm)
        assert client.in_doubt() >= set(xids)
        assert not client.in_doubt() & set(lost)
        for xid in xids:
            assert client.commit(xid) is Code.XA_OK
        assert set(xids.values()) <= harness.committed()
        for xid in lost:
            assert client.retrying("rollback", xid) in {Code.XA_OK, *ROLLED_BACK}

    # --- the connection is cut ------------------------------------------------------------------------------
    def test_a_connection_that_is_cut_at_work(self, harness: Harness, client: Client) -> None:
        xid = client.begun(key := new_key())
        harness.disconnect(client.rm)
        with pytest.raises(ResourceUnavailable):
            self.work_and_end(client, xid)
        with refused(Code.XAER_PROTO):  # not before it is opened again
            client.rm.recover(RMID, TMNOFLAGS)
        client.reopen()
        assert client.retrying("prepare", xid) in ROLLED_BACK
        assert key not in harness.committed()
        assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK
        assert key in harness.committed()

    @staticmethod
    def work_and_end(client: Client, xid: Xid) -> None:
        """The client notices the cut in one or the other."""
        client.write(new_key())
        client.end(xid)

    @pytest.mark.parametrize("flags", [TMSUCCESS, TMFAIL])
    def test_the_end_of_an_association_whose_connection_was_cut(
        self, harness: Harness, client: Client, flags: int
    ) -> None:
        xid = client.begun(key := new_key())
        harness.disconnect(client.rm)
        with refused(Code.XAER_RMFAIL, *ROLLBACK_CODES) as raised:
            client.end(xid, flags)
        if raised.value.code is Code.XAER_RMFAIL:
            client.reopen()
        assert client.retrying("rollback", xid) in {Code.XA_OK, Code.XAER_NOTA, *ROLLBACK_CODES}
        assert key not in harness.committed()

    def test_start_after_the_connection_was_cut(self, harness: Harness, client: Client) -> None:
        """With no association there is nothing to lose: it works, or says XAER_RMFAIL and works after open."""
        client.commit(client.ended(new_key()), TMONEPHASE)
        harness.disconnect(client.rm)
        key = new_key()
        try:
            xid = client.ended(key)
        except ResourceUnavailable:
            client.reopen()
            xid = client.ended(key)
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert key in harness.committed()

    def test_a_connection_that_is_cut_after_end(self, harness: Harness, client: Client) -> None:
        """The branch can still be prepared, or it is gone: never half of it."""
        xid = client.ended(key := new_key())
        harness.disconnect(client.rm)
        vote = client.retrying("prepare", xid)
        assert vote in {Code.XA_OK, *ROLLED_BACK}
        if vote is Code.XA_OK:
            assert client.commit(xid) is Code.XA_OK
        assert (key in harness.committed()) == (vote is Code.XA_OK)

    @pytest.mark.parametrize("verb", ["commit", "rollback"])
    def test_a_connection_that_is_cut_after_prepare(self, harness: Harness, client: Client, verb: str) -> None:
        xid = client.prepared(key := new_key())
        harness.disconnect(client.rm)
        assert client.retrying(verb, xid) in {Code.XA_OK, *ROLLBACK_CODES}
        assert (key in harness.committed()) == (verb == "commit")
        assert xid not in client.in_doubt()

    # --- the resource can't be reached ----------------------------------------------------------------------
    def test_connections_that_are_broken_off(self, harness: Harness, client: Client) -> None:
        """A connection with nothing at work may stay; everything is as after a failure of the network."""
        if not hasattr(client.rm, "break_off"):
            pytest.skip("its connections can't be broken off")
        prepared = client.prepared(key := new_key())
        begun = client.begun(lost := new_key())
        client.rm.break_off()
        try:
            client.end(begun)
        except ResourceUnavailable:
            client.reopen()
        client.retrying("rollback", begun)
        assert client.retrying("commit", prepared) is Code.XA_OK
        assert key in harness.committed()
        assert lost not in harness.committed()
        assert client.commit(client.ended(another := new_key()), TMONEPHASE) is Code.XA_OK
        assert another in harness.committed()

    def test_while_the_resource_can_not_be_reached(self, harness: Harness, client: Client) -> None:
        if not harness.capabilities.unreachable:
            pytest.skip("can't be made unreachable")
        prepared = client.prepared(first := new_key())
        active = client.begun(second := new_key())
        harness.go_down()
        with pytest.raises(ResourceUnavailable):
            client.end(active)
        for _ in range(2):
            with pytest.raises(ResourceUnavailable):
                client.open()
            with refused(Code.XAER_RMFAIL, Code.XAER_PROTO):  # PROTO: it is not open
                client.commit(prepared)
            with refused(Code.XAER_RMFAIL, Code.XAER_PROTO):
                client.in_doubt()

        fresh = Client(harness, opened=False)
        with pytest.raises(ResourceUnavailable):
            fresh.open()
        with refused(Code.XAER_PROTO):  # it never was open
            fresh.in_doubt()
        harness.come_back()
        client.reopen()
        assert client.in_doubt() >= {prepared}
        assert client.retrying("commit", prepared) is Code.XA_OK
        assert first in harness.committed()
        assert client.retrying("rollback", active) in {Code.XA_OK, *ROLLED_BACK}
        assert second not in harness.committed()

    # --- time -----------------------------------------------------------------------------------------------
    def test_the_timeout_of_a_branch_at_work(self, harness: Harness, client: Client) -> None:
        if not harness.capabilities.expires:
            pytest.skip("has no timeouts")
        xid = client.begun(key := new_key())
        harness.expire(xid)
        other = Client(harness)  # its locks are free, at once
        assert other.commit(other.ended(key), TMONEPHASE) is Code.XA_OK
        other.rm.close("", RMID)
        with refused(*ROLLBACK_CODES):
            client.end(xid)
        with refused(*ROLLBACK_CODES):
            client.prepare(xid)

    def test_the_timeout_of_an_ended_branch(self, harness: Harness, client: Client) -> None:
        if not harness.capabilities.expires:
            pytest.skip("has no timeouts")
        xid = client.ended(key := new_key())
        harness.expire(xid)
        with refused(Code.XA_RBTIMEOUT):
            client.prepare(xid)
        assert key not in harness.committed()

    def test_no_timeout_touches_a_prepared_branch(self, harness: Harness, client: Client) -> None:
        if not harness.capabilities.expires:
            pytest.skip("has no timeouts")
        xid = client.prepared(key := new_key())
        harness.expire(xid)
        assert xid in client.in_doubt()
        assert client.commit(xid) is Code.XA_OK
        assert key in harness.committed()
