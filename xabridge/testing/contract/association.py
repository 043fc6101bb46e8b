"""start and end: associations of threads of control with branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import (
    ROLLBACK_CODES,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMNOMIGRATE,
    TMNOWAIT,
    TMONEPHASE,
    TMRESUME,
    TMSUCCESS,
    TMSUSPEND,
    BranchRolledBack,
    Code,
    ThreadOfControl,
    XaError,
    entered,
)

from .client import (
    NOT_JOINED,
    RMID,
    ROLLED_BACK,
    Client,
    Contract,
    elsewhere,
    new_key,
    new_xid,
    plain,
    refused,
)

if TYPE_CHECKING:
    from xa import Xid

    from .harness import Harness


class TestAssociation(Contract):
    """Tests of which thread works for which branch."""

    # --- work belongs to a branch -------------------------------------------------------------------------
    def test_work_is_seen_after_commit_and_not_before(self, client: Client) -> None:
        key = new_key()
        xid = client.begun(key)
        assert key not in client.harness.committed()
        client.end(xid)
        assert key not in client.harness.committed()
        client.prepare(xid)
        assert key not in client.harness.committed()
        assert client.commit(xid) is Code.XA_OK
        assert key in client.harness.committed()

    def test_there_is_no_session_without_an_association(self, client: Client) -> None:
        if client.registers:
            pytest.skip("registers itself: see registration.py")
        with refused(Code.XAER_PROTO):
            client.rm.session(RMID)
        xid = client.ended(new_key())
        with refused(Code.XAER_PROTO):
            client.rm.session(RMID)
        client.rollback(xid)

    def test_work_after_end_is_not_the_branchs(self, client: Client) -> None:
        if client.registers:
            pytest.skip("registers itself: see registration.py")
        xid = client.ended(key := new_key())
        with refused(Code.XAER_PROTO):
            client.write(new_key())
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert key in client.harness.committed()

    def test_branches_of_one_thread_one_after_the_other(self, client: Client) -> None:
        keys = [new_key() for _ in range(3)]
        xids = [client.ended(key) for key in keys]
        client.rollback(xids[1])
        for xid in (xids[2], xids[0]):
            client.prepare(xid)
            assert client.commit(xid) is Code.XA_OK
        assert {keys[0], keys[2]} <= client.harness.committed()
        assert keys[1] not in client.harness.committed()

    def test_branches_of_one_global_transaction_are_apart(self, client: Client) -> None:
        first = new_xid(b"1")
        second = type(first)(first.format_id, first.gtrid, b"2")
        third = type(first)(first.format_id + 1, first.gtrid, b"1")
        keys = {xid: new_key() for xid in (first, second, third)}
        apart = client.harness.capabilities.format_ids
        for xid, key in keys.items():
            if xid is third and not apart:
                with refused(Code.XAER_DUPID):
                    client.start(third)
                for verb in (client.commit, client.rollback):
                    with refused(Code.XAER_NOTA):
                        verb(third)
                continue
            client.prepared(key, xid)

        assert client.in_doubt() & set(keys) == ({first, second, third} if apart else {first, second})
        client.rollback(second)
        client.commit(first)
        assert keys[second] not in client.harness.committed()
        assert keys[third] not in client.harness.committed()
        assert keys[first] in client.harness.committed()
        if apart:
            assert client.in_doubt() & set(keys) == {third}
            client.commit(third)
            assert keys[third] in client.harness.committed()

    # --- rollback only ------------------------------------------------------------------------------------
    def test_a_failed_branch_votes_no(self, client: Client) -> None:
        xid = client.begun(key := new_key())
        self.fail(client, xid)
        with pytest.raises(BranchRolledBack):
            client.prepare(xid)
        with refused(Code.XAER_NOTA):  # it is gone
            client.rollback(xid)
        assert key not in client.harness.committed()

    def test_a_failed_branch_is_not_committed_in_one_phase(self, client: Client) -> None:
        xid = client.begun(key := new_key())
        self.fail(client, xid)
        with pytest.raises(BranchRolledBack):
            client.commit(xid, TMONEPHASE)
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
        assert key not in client.harness.committed()

    def test_a_failed_branch_is_rolled_back(self, client: Client) -> None:
        xid = client.begun(key := new_key())
        self.fail(client, xid)
        assert client.retrying("rollback", xid) in {Code.XA_OK, *ROLLBACK_CODES}
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
        assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK  # its locks are free
        assert key in client.harness.committed()

    def test_a_failed_branch_takes_no_more_work(self, client: Client) -> None:
        if not client.harness.capabilities.joins:
            pytest.skip("branches can't be joined")
        xid = client.begun(new_key())
        self.fail(client, xid)
        with refused(*ROLLBACK_CODES):
            client.start(xid, TMJOIN)
        client.retrying("rollback", xid)

    def test_a_suspended_association_ends_with_failure(self, client: Client) -> None:
        xid = client.begun(key := new_key())
        client.end(xid, TMSUSPEND)
        self.fail(client, xid)
        with pytest.raises(BranchRolledBack):
            client.prepare(xid)
        assert key not in client.harness.committed()

    @staticmethod
    def fail(client: Client, xid: Xid) -> None:
        """xa_end(TMFAIL), which answers XA_OK or that the branch is rollback-only."""
        try:
            assert client.end(xid, TMFAIL) is Code.XA_OK
        except BranchRolledBack as said:
            assert said.xid == xid  # noqa: PT017 — one of two right answers

    # --- join -----------------------------------------------------------------------------------------------
    def test_join_an_ended_branch(self, client: Client) -> None:
        xid = client.ended(first := new_key())
        with elsewhere():
            if not client.harness.capabilities.joins:
                with refused(*NOT_JOINED):
                    client.start(xid, TMJOIN)
            else:
                client.start(xid, TMJOIN)
                client.write(second := new_key())
                client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        assert first in client.harness.committed()
        if client.harness.capabilities.joins:
            assert second in client.harness.committed()

    def test_join_again_in_the_same_thread(self, client: Client) -> None:
        if not client.harness.capabilities.joins:
            pytest.skip("branches can't be joined")
        xid = client.ended(first := new_key())
        client.start(xid, TMJOIN)
        client.write(second := new_key())
        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert {first, second} <= client.harness.committed()

    def test_join_while_another_thread_is_at_work(self, client: Client) -> None:
        xid = client.begun(first := new_key())
        joined = client.harness.capabilities.joins_active
        other = ThreadOfControl()
        with entered(other):
            if joined:
                client.start(xid, TMJOIN)
                client.write(second := new_key())
            else:
                with refused(*NOT_JOINED, Code.XA_RETRY):
                    client.start(xid, TMJOIN | (0 if client.registers else TMNOWAIT))

        assert client.end(xid) is Code.XA_OK
        if joined:
            with refused(Code.XAER_PROTO):  # the other is still at work
                client.prepare(xid)
            with entered(other):
                client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        assert first in client.harness.committed()
        assert not joined or second in client.harness.committed()

    def test_the_failure_of_one_thread_is_the_failure_of_the_branch(self, client: Client) -> None:
        if not client.harness.capabilities.joins_active:
            pytest.skip("one thread at a time")
        xid = client.begun(first := new_key())
        other = ThreadOfControl()
        with entered(other):
            client.start(xid, TMJOIN)
            client.write(second := new_key())
            self.fail(client, xid)
        with pytest.raises(BranchRolledBack):
            client.end(xid)
        with pytest.raises(BranchRolledBack):
            client.prepare(xid)
        assert not {first, second} & client.harness.committed()

    def test_join_through_another_client(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        xid = client.ended(first := new_key())
        if not harness.capabilities.branches_shared:
            with refused(*NOT_JOINED):
                other.start(xid, TMJOIN)
            client.prepare(xid)
        else:
            other.start(xid, TMJOIN)
            other.write(second := new_key())
            other.end(xid)
            assert other.prepare(xid) is Code.XA_OK
            assert client.commit(xid) is Code.XA_OK
            assert {first, second} <= harness.committed()

        other.rm.close("", RMID)
        if not harness.capabilities.branches_shared:
            client.commit(xid)

    def test_an_xid_exists_once(self, harness: Harness, client: Client) -> None:
        xid = client.begun(first := new_key())
        with elsewhere(), refused(Code.XAER_DUPID):
            client.start(xid)
        client.end(xid)
        with elsewhere(), refused(Code.XAER_DUPID):
            client.start(xid)
        with refused(Code.XAER_DUPID):
            client.start(xid)
        if harness.capabilities.branches_shared:
            other = Client(harness)
            with refused(Code.XAER_DUPID):
                other.start(xid)
            other.rm.close("", RMID)

        client.prepare(xid)
        client.commit(xid)
        assert first in harness.committed()

    def test_an_xid_that_another_client_prepared_is_taken(self, harness: Harness, client: Client) -> None:
        """Where the start does not know yet, the prepare does; the first branch is not harmed."""
        xid = client.prepared(first := new_key())
        other = Client(harness)
        if harness.capabilities.branches_shared:
            with refused(Code.XAER_DUPID):
                other.start(xid)
        else:
            try:
                other.ended(second := new_key(), xid)
            except XaError as error:
                assert error.code is Code.XAER_DUPID  # noqa: PT017 — refused early
            else:
                with refused(Code.XAER_DUPID, *ROLLBACK_CODES):
                    other.prepare(xid)
                assert second not in harness.committed()

        other.rm.close("", RMID)
        assert xid in client.in_doubt()
        assert client.commit(xid) is Code.XA_OK
        assert first in harness.committed()

    # --- suspend, resume, migrate ---------------------------------------------------------------------------
    def test_suspend_and_resume(self, client: Client) -> None:
        xid = client.begun(first := new_key())
        assert client.end(xid, TMSUSPEND) is Code.XA_OK
        if not client.registers:
            with refused(Code.XAER_PROTO):
                client.write(new_key())
        with refused(Code.XAER_PROTO):
            client.end(xid, TMSUSPEND)
        client.start(xid, TMRESUME)
        client.write(second := new_key())
        client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        assert {first, second} <= client.harness.committed()

    def test_a_suspended_association_has_not_ended(self, client: Client) -> None:
        xid = client.begun(key := new_key())
        client.end(xid, TMSUSPEND)
        for verb in (client.prepare, client.commit, client.rollback, client.forget):
            with refused(Code.XAER_PROTO):
                verb(xid)
        with refused(Code.XAER_PROTO):
            client.commit(xid, TMONEPHASE)
        assert client.end(xid, TMSUCCESS) is Code.XA_OK
        client.prepare(xid)
        client.commit(xid)
        assert key in client.harness.committed()

    def test_two_branches_interleaved_in_one_thread(self, client: Client) -> None:
        keys = [new_key() for _ in range(4)]
        first = client.begun(keys[0])
        client.end(first, TMSUSPEND)
        if not client.harness.capabilities.interleaves:
            with refused(Code.XAER_PROTO, Code.XAER_RMERR):
                client.start(new_xid())
            client.end(first)
            client.rollback(first)
            return

        second = client.begun(keys[1])
        client.end(second, TMSUSPEND)
        client.start(first, TMRESUME)
        client.write(keys[2])
        client.end(first)
        client.start(second, TMRESUME)
        client.write(keys[3])
        client.end(second)
        client.prepare(first)
        client.rollback(second)
        client.commit(first)
        assert {keys[0], keys[2]} <= client.harness.committed()
        assert not {keys[1], keys[3]} & client.harness.committed()

    def test_another_thread_may_join_while_this_one_is_suspended(self, client: Client) -> None:
        if not client.harness.capabilities.joins:
            pytest.skip("branches can't be joined")
        xid = client.begun(first := new_key())
        client.end(xid, TMSUSPEND)
        with elsewhere():
            client.start(xid, TMJOIN)
            client.write(second := new_key())
            client.end(xid)
        with refused(Code.XAER_PROTO):
            client.prepare(xid)
        client.start(xid, TMRESUME)
        client.end(xid)
        client.prepare(xid)
        client.commit(xid)
        assert {first, second} <= client.harness.committed()

    def test_resume_belongs_to_the_thread_that_suspended(self, client: Client) -> None:
        xid = client.begun(key := new_key())
        client.end(xid, TMSUSPEND)
        with elsewhere(), refused(Code.XAER_PROTO):
            client.start(xid, TMRESUME)
        client.start(xid, TMRESUME)
        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert key in client.harness.committed()

    def test_migrate(self, client: Client) -> None:
        xid = client.begun(first := new_key())
        if client.rm.flags & TMNOMIGRATE:
            with refused(Code.XAER_INVAL):
                client.end(xid, TMSUSPEND | TMMIGRATE)
            client.end(xid)
            client.rollback(xid)
            return

        if plain(client.rm.end(xid, RMID, TMSUSPEND | TMMIGRATE)) is Code.XA_NOMIGRATE:
            with elsewhere(), refused(Code.XAER_PROTO):
                client.start(xid, TMRESUME)
            client.start(xid, TMRESUME)
        else:
            target = ThreadOfControl()
            with entered(target):
                client.start(xid, TMRESUME)
                client.write(second := new_key())
            for flags in (TMSUCCESS, TMFAIL, TMSUSPEND):
                with refused(Code.XAER_PROTO):  # the association is the other's now
                    client.end(xid, flags)
            with refused(Code.XAER_PROTO):
                client.start(xid, TMRESUME)
            with entered(target):
                client.end(xid)
            client.commit(xid, TMONEPHASE)
            assert {first, second} <= client.harness.committed()
            return

        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert first in client.harness.committed()

    def test_a_migrating_association_may_be_resumed_where_it_was(self, client: Client) -> None:
        if client.rm.flags & TMNOMIGRATE:
            pytest.skip("does not migrate")
        xid = client.begun(key := new_key())
        client.end(xid, TMSUSPEND | TMMIGRATE)
        client.start(xid, TMRESUME)
        with elsewhere(), refused(Code.XAER_PROTO):
            client.start(xid, TMRESUME)
        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert key in client.harness.committed()

    # --- what a branch's end leaves ------------------------------------------------------------------------
    def test_an_association_that_is_lost_takes_the_branch_with_it(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        xid = other.begun(key := new_key())
        other.end(xid, TMSUSPEND)
        harness.crash(other.rm)
        assert client.retrying("prepare", xid) in ROLLED_BACK
        assert key not in harness.committed()
