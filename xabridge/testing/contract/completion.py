"""prepare, commit, rollback, forget: outcomes of branches without interference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xa import ROLLBACK_CODES, TMFAIL, TMJOIN, TMONEPHASE, TMRESUME, TMSUCCESS, TMSUSPEND, Code, Xid

from .client import FORMAT_ID, RMID, Client, Contract, elsewhere, new_key, new_xid, refused

if TYPE_CHECKING:
    from .harness import Harness

ROLLED_BACK_NOW = {Code.XA_OK, *ROLLBACK_CODES}


class TestCompletion(Contract):
    """The vote, and what is done with it."""

    def test_two_phase_commit(self, client: Client) -> None:
        xid = client.prepared(key := new_key())
        assert client.commit(xid) is Code.XA_OK
        assert key in client.harness.committed()
        assert xid not in client.in_doubt()
        for verb in (client.commit, client.rollback, client.prepare, client.forget):
            with refused(Code.XAER_NOTA):
                verb(xid)
        assert key in client.harness.committed()

    def test_one_phase_commit(self, client: Client) -> None:
        xid = client.ended(key := new_key())
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert key in client.harness.committed()
        with refused(Code.XAER_NOTA):
            client.commit(xid, TMONEPHASE)

    def test_rollback_of_an_ended_branch(self, client: Client) -> None:
        xid = client.ended(key := new_key())
        assert client.retrying("rollback", xid) in ROLLED_BACK_NOW
        assert key not in client.harness.committed()
        with refused(Code.XAER_NOTA):
            client.rollback(xid)

    def test_rollback_of_a_prepared_branch(self, client: Client) -> None:
        xid = client.prepared(key := new_key())
        assert client.retrying("rollback", xid) in ROLLED_BACK_NOW
        assert key not in client.harness.committed()
        assert xid not in client.in_doubt()
        with refused(Code.XAER_NOTA):
            client.commit(xid)
        assert key not in client.harness.committed()

    def test_what_was_rolled_back_can_be_done_again_under_the_same_xid(self, client: Client) -> None:
        xid = client.prepared(key := new_key())
        client.rollback(xid)
        client.prepared(key, xid)
        assert client.commit(xid) is Code.XA_OK
        assert key in client.harness.committed()

    def test_a_branch_that_changed_nothing(self, client: Client) -> None:
        xid = new_xid()
        client.start(xid)
        client.harness.read(client.rm, RMID)
        client.end(xid)
        vote = client.prepare(xid)
        if client.harness.capabilities.votes_read_only:
            assert vote is Code.XA_RDONLY
            assert xid not in client.in_doubt()
            with refused(Code.XAER_NOTA):
                client.commit(xid)
        else:
            assert vote is Code.XA_OK
            assert client.commit(xid) is Code.XA_OK

    def test_a_branch_without_any_work(self, client: Client) -> None:
        """Voted read-only or yes, and nothing is left of it."""
        for complete_it in (client.commit, client.rollback):
            xid = new_xid()
            client.start(xid)
            client.end(xid)
            if client.prepare(xid) is Code.XA_OK:
                complete_it(xid)
            with refused(Code.XAER_NOTA):
                client.rollback(xid)

    def test_a_branch_without_any_work_in_one_phase(self, client: Client) -> None:
        xid = new_xid()
        client.start(xid)
        client.end(xid)
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        with refused(Code.XAER_NOTA):
            client.rollback(xid)

    def test_any_thread_of_control_may_complete(self, client: Client) -> None:
        keys = [new_key() for _ in range(3)]
        xids = [client.ended(key) for key in keys]
        with elsewhere():
            client.prepare(xids[0])
            client.prepare(xids[1])
            client.commit(xids[2], TMONEPHASE)
        with elsewhere():
            client.commit(xids[0])
            client.rollback(xids[1])
        assert client.harness.committed() & set(keys) == {keys[0], keys[2]}

    def test_a_thread_that_is_at_work_may_complete_another_branch(self, client: Client) -> None:
        """The one-phase commit of one, and the second phase of another, while a third is being worked for."""
        first = client.prepared(one := new_key())
        second = client.ended(two := new_key())
        third = client.begun(three := new_key())
        client.commit(first)
        client.commit(second, TMONEPHASE)
        client.write(four := new_key())
        client.end(third)
        client.prepare(third)
        client.commit(third)
        assert {one, two, three, four} <= client.harness.committed()

    def test_another_client_completes_what_is_prepared(self, harness: Harness, client: Client) -> None:
        other = Client(harness)
        for commit in (True, False):
            xid = other.prepared(key := new_key())
            assert xid in client.in_doubt()
            if commit:
                assert client.commit(xid) is Code.XA_OK
            else:
                assert client.retrying("rollback", xid) in ROLLED_BACK_NOW
            assert (key in harness.committed()) == commit
            for verb in (other.commit, other.rollback):
                with refused(Code.XAER_NOTA):
                    verb(xid)
            assert (key in harness.committed()) == commit
        other.rm.close("", RMID)

    def test_unknown_xids(self, client: Client) -> None:
        for known in (False, True):
            xid = client.ended(new_key()) if known else new_xid()
            stranger = Xid(xid.format_id, xid.gtrid, b"stranger")
            for verb in (client.prepare, client.commit, client.rollback, client.forget):
                with refused(Code.XAER_NOTA):
                    verb(stranger)

            with refused(Code.XAER_NOTA):
                client.commit(stranger, TMONEPHASE)
            for flags in (TMSUCCESS, TMFAIL, TMSUSPEND):
                with refused(Code.XAER_NOTA):
                    client.end(stranger, flags)
            for flags in (TMJOIN, TMRESUME):
                with refused(Code.XAER_NOTA):
                    client.start(stranger, flags)
            if known:
                client.rollback(xid)

    def test_every_octet_in_an_xid(self, harness: Harness, client: Client) -> None:
        """Binary gtrids and bquals of every length come back from recovery as they were."""
        other = Client(harness)
        octets = bytes(range(256))
        unique = new_xid().gtrid[-12:]
        xids = [
            Xid(FORMAT_ID, unique + octets[start : start + 52], octets[start : start + 64])
            for start in range(0, 256, 52)
        ]
        xids += [Xid(0, unique + b"\0"), Xid(2**31 - 1, unique, b"\0")]
        keys = {xid: new_key() for xid in xids}

        for count, xid in enumerate(xids):
            client.prepared(keys[xid], xid)
            assert xid in other.in_doubt()
            if count % 2:
                assert other.commit(xid) is Code.XA_OK
            else:
                assert other.retrying("rollback", xid) in ROLLED_BACK_NOW
            assert (keys[xid] in harness.committed()) == bool(count % 2)
        other.rm.close("", RMID)
