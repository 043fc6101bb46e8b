"""TMASYNC and complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import (
    TMASYNC,
    TMFAIL,
    TMMULTIPLE,
    TMNOWAIT,
    TMONEPHASE,
    TMREGISTER,
    TMSUCCESS,
    TMUSEASYNC,
    BranchRolledBack,
    Code,
    Handle,
    ResourceUnavailable,
    TryAgain,
)

from .client import RMID, Client, Contract, elsewhere, new_key, new_xid, plain, refused

if TYPE_CHECKING:
    from .harness import Harness

POLLS = 1_000_000


class TestAsynchrony(Contract):
    """Overlapped operations. A resource manager without TMUSEASYNC is refused in opening.py."""

    @pytest.fixture(autouse=True)
    def capable(self, client: Client) -> None:
        """Skips what can't be."""
        if not client.rm.flags & TMUSEASYNC:
            pytest.skip("does not offer TMASYNC")

    def test_prepare_and_commit(self, client: Client) -> None:
        xid = client.ended(key := new_key())
        assert client.wait(client.send("prepare", xid)) is Code.XA_OK
        assert xid in client.in_doubt()
        assert client.wait(client.send("commit", xid)) is Code.XA_OK
        assert key in client.harness.committed()

    def test_rollback(self, client: Client) -> None:
        for bring in (client.ended, client.prepared):
            xid = bring(key := new_key())
            client.wait(client.send("rollback", xid))
            with refused(Code.XAER_NOTA):
                client.rollback(xid)
            assert key not in client.harness.committed()

    def test_commit_in_one_phase(self, client: Client) -> None:
        xid = client.ended(key := new_key())
        assert client.wait(client.send("commit", xid, TMONEPHASE)) is Code.XA_OK
        assert key in client.harness.committed()

    def test_start_and_end(self, client: Client) -> None:
        if client.rm.flags & TMREGISTER:
            pytest.skip("registers itself")
        xid = new_xid()
        assert client.wait(client.send("start", xid)) is Code.XA_OK
        client.write(key := new_key())
        assert client.wait(client.send("end", xid, TMSUCCESS)) is Code.XA_OK
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert key in client.harness.committed()

    def test_open_and_close(self, harness: Harness) -> None:
        client = Client(harness, opened=False)
        handle = client.rm.open(harness.open_string, RMID, TMASYNC)
        assert isinstance(handle, Handle)
        assert client.wait(handle) is Code.XA_OK
        handle = client.rm.close("", RMID, TMASYNC)
        assert isinstance(handle, Handle)
        assert client.wait(handle) is Code.XA_OK
        with refused(Code.XAER_PROTO):
            client.in_doubt()

    def test_branches_overlap(self, client: Client) -> None:
        """Every prepare is sent before a vote is read; the votes are read in another order."""
        keys = {client.ended(key): key for key in (new_key() for _ in range(5))}
        for verb in ("prepare", "commit"):
            handles = [client.send(verb, xid) for xid in keys]
            assert len(set(handles)) == len(handles)
            assert [client.wait(handle) for handle in reversed(handles)] == [Code.XA_OK] * 5
        assert set(keys.values()) <= client.harness.committed()

    def test_any_of_several(self, client: Client) -> None:
        keys = {client.ended(key): key for key in (new_key() for _ in range(4))}
        handles = {client.send("prepare", xid): xid for xid in keys}
        completions = [client.rm.complete(None, RMID, TMMULTIPLE) for _ in handles]
        assert {completion.handle for completion in completions} == set(handles)
        assert {completion.code for completion in completions} == {Code.XA_OK}
        with refused(Code.XAER_INVAL):
            client.rm.complete(None, RMID, TMMULTIPLE)
        for xid in keys:
            client.commit(xid)
        assert set(keys.values()) <= client.harness.committed()

    def test_any_means_this_threads(self, client: Client) -> None:
        mine, others = client.ended(new_key()), client.ended(new_key())
        handle = client.send("prepare", mine)
        with elsewhere():
            theirs = client.send("prepare", others)
            assert client.rm.complete(None, RMID, TMMULTIPLE).handle == theirs
            with refused(Code.XAER_INVAL):
                client.rm.complete(None, RMID, TMMULTIPLE)
        assert client.wait(handle) is Code.XA_OK
        client.rollback(mine)
        client.rollback(others)

    def test_without_waiting(self, client: Client) -> None:
        """Polled: XA_RETRY until it has completed, and then its answer once."""
        for flags in (TMNOWAIT, TMNOWAIT | TMMULTIPLE):
            xid = client.ended(key := new_key())
            handle = client.send("prepare", xid)
            for _ in range(POLLS):
                try:
                    completion = client.rm.complete(None if flags & TMMULTIPLE else handle, RMID, flags)
                    break
                except TryAgain as said:
                    assert said.code is Code.XA_RETRY  # noqa: PT017 — the other right answer
            assert (completion.handle, completion.code) == (handle, Code.XA_OK)
            with refused(Code.XAER_INVAL):
                client.rm.complete(handle, RMID)
            client.commit(xid)
            assert key in client.harness.committed()

    def test_handles_that_are_none(self, client: Client) -> None:
        xid = client.ended(new_key())
        handle = client.send("prepare", xid)
        with refused(Code.XAER_INVAL):
            client.rm.complete(Handle(handle + 1000), RMID)
        with refused(Code.XAER_INVAL):
            client.rm.complete(None, RMID)
        with refused(Code.XAER_INVAL):
            client.rm.complete(handle, RMID, TMMULTIPLE)
        client.wait(handle)
        with refused(Code.XAER_INVAL):
            client.wait(handle)
        client.rollback(xid)

    def test_complete_returns_a_failure(self, client: Client) -> None:
        unknown = new_xid()
        for verb in ("prepare", "commit", "rollback", "forget"):
            completion = client.rm.complete(client.send(verb, unknown), RMID)
            assert completion.code is Code.XAER_NOTA
            assert completion.error is not None
            assert completion.error.xid == unknown
        failed = client.begun(key := new_key())
        try:
            client.end(failed, TMFAIL)
        except BranchRolledBack as said:
            assert said.xid == failed  # noqa: PT017 — one of two right answers
        completion = client.rm.complete(client.send("prepare", failed), RMID)
        assert isinstance(completion.error, BranchRolledBack)
        assert key not in client.harness.committed()

    def test_flags_are_refused_at_once(self, client: Client) -> None:
        xid = client.ended(new_key())
        with refused(Code.XAER_INVAL):
            client.rm.prepare(xid, RMID, TMASYNC | TMONEPHASE)
        client.rollback(xid)

    def test_one_operation_on_a_branch_at_a_time(self, client: Client) -> None:
        xid = client.ended(key := new_key())
        handle = client.send("prepare", xid)
        with refused(Code.XAER_PROTO):
            client.commit(xid)
        with refused(Code.XAER_PROTO):
            client.rollback(xid)
        with refused(Code.XAER_ASYNC):
            client.send("commit", xid)
        other = client.prepared(second := new_key())  # nothing is in the way of another branch
        client.commit(other)
        assert client.wait(handle) is Code.XA_OK
        client.commit(xid)
        assert {key, second} <= client.harness.committed()

    def test_close_does_not_wait(self, client: Client) -> None:
        xid = client.ended(new_key())
        handle = client.send("prepare", xid)
        with refused(Code.XAER_PROTO):
            client.rm.close("", RMID)
        client.wait(handle)
        client.rollback(xid)

    def test_a_connection_that_is_cut_before_the_vote_arrives(self, harness: Harness, client: Client) -> None:
        """The vote was read already, or XAER_RMFAIL is returned, not raised; then recovery finds the outcome."""
        xid = client.ended(key := new_key())
        handle = client.send("prepare", xid)
        harness.disconnect(client.rm)
        code = client.wait(handle)
        assert code in {Code.XA_OK, Code.XAER_RMFAIL}
        if code is Code.XAER_RMFAIL:
            with refused(Code.XAER_PROTO):
                client.in_doubt()
            client.reopen()

        if code is Code.XA_OK:
            assert client.retrying("commit", xid) is Code.XA_OK
        elif xid in client.in_doubt():
            assert client.commit(xid) is Code.XA_OK
        else:
            client.retrying("rollback", xid)
            assert key not in harness.committed()
            return
        assert key in harness.committed()

    def test_while_the_resource_can_not_be_reached(self, harness: Harness, client: Client) -> None:
        if not harness.capabilities.unreachable:
            pytest.skip("can't be made unreachable")
        xid = client.prepared(key := new_key())
        harness.go_down()
        try:
            code = client.wait(client.send("commit", xid))
        except ResourceUnavailable as error:  # could not even be sent
            code = error.code
        assert code is Code.XAER_RMFAIL
        harness.come_back()
        client.reopen()
        assert client.commit(xid) is Code.XA_OK
        assert key in harness.committed()

    def test_synchronous_calls_between(self, client: Client) -> None:
        first, second = client.ended(new_key()), client.ended(new_key())
        handle = client.send("prepare", first)
        assert client.prepare(second) is Code.XA_OK
        assert plain(client.rm.rollback(second, RMID)) in {Code.XA_OK, Code.XA_RBROLLBACK}
        assert client.wait(handle) is Code.XA_OK
        client.rollback(first)
